//! Routes the images of a Pod: observes the policies and what is known of registries, lets the planner decide, and
//! turns the decision into a patch.
//!
//! Whatever goes wrong on the way concerns one place, one Secret or one image; the rest of the Pod is routed all the
//! same, and a warning informs its author.

mod choose;
mod pin;
mod prove;
mod pull_secrets;
pub mod survey;
#[cfg(test)]
pub(super) mod tests;
mod volume_digests;

use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::selector::PodFacts;
use fairlead_plan::admission::{self, Planned};
use fairlead_plan::owners::{ApiGroup, Exemption, exemption};
use fairlead_plan::pod_record::{self, Entry, RecordedOriginals, Room};
use fairlead_plan::routing::{Alternatives, Rules};
use fairlead_plan::warnings::Warnings;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::SignedDuration;
use tokio::time::{Instant, timeout_at};

use self::pin::Pinning;
use self::pull_secrets::PullSecrets;
use self::survey::Scope;
use super::decide::{AdmissionOutcome, Decide, PodRequest, Subject};
use super::ephemeral::Notice;
use super::metrics::Rewrites;
use super::patch::Patch;
use super::review::{PodImage, PodObject};
use crate::context::Context;

/// Kept back of a request's time for putting the answer together.
const RESERVE: Duration = Duration::from_millis(100);

/// Places that are asked about for one Pod, as many as sixty-four images have at most.
const MOST_PLACES: usize = 4096;

/// Planning gives way to other requests after this long.
const LONGEST_SLICE: Duration = Duration::from_millis(1);

const NO_TIME: &str = "there was no time left to look for alternatives, so the image stays as it is";
const TOO_MANY_PLACES: &str = "the images of this Pod may come from more places than are asked about for one Pod, so this one stays as it is";
const TOO_LARGE: &str = "this Pod is about as large as the API server can store; its images stay as they are, so that it is not refused";

/// Decides about every image of a Pod.
#[derive(Debug)]
pub struct Router {
    context: Arc<Context>,
    rules: Rules,
    skip_owners: Vec<ApiGroup>,
    /// How long proof of access counts.
    proof_lifetime: SignedDuration,
    rewrites: Rewrites,
    scope: Scope,
}

/// The images of a Pod, with all that is known before places are chosen from.
struct Prepared {
    planned: Vec<Planned>,
    secrets: PullSecrets,
    /// None: the Pod is not pinned.
    pinning: Option<Pinning>,
}

impl Router {
    pub fn new(context: Arc<Context>, rewrites: Rewrites) -> Self {
        let routing = &context.config.routing;
        let (rules, skip_owners) = (routing.rules(), routing.skip_owners.clone());
        let (proof_lifetime, scope) = (routing.proof_lifetime(), Scope::default());
        Self { context, rules, skip_owners, proof_lifetime, rewrites, scope }
    }

    /// Why the images of the Pod stay as its controller wrote them.
    pub fn exemption(&self, namespace: &str, pod: &PodObject<'_>) -> Option<Exemption> {
        let controller = pod.controller()?;
        let paused_until = self.context.owners.paused_until(namespace, controller.uid);
        exemption(&controller, &self.skip_owners, paused_until)
    }

    /// Plans one image after the other, one request of a namespace at a time, and gives way in between: planning is all
    /// computation. What its turn does not come to in time, or what is beyond the places of one Pod, stays as it is.
    async fn plan(
        &self,
        request: &PodRequest<'_>,
        images: &[PodImage<'_>],
        deadline: Instant,
    ) -> Vec<Planned> {
        let _turn = timeout_at(deadline, request.share.planning.acquire()).await;
        let index = self.context.policies.current();
        let policies = {
            let (labels, annotations) = (request.pod.labels(), request.pod.annotations());
            let facts = PodFacts { namespace: request.namespace, labels: &labels, annotations: &annotations };
            index.for_pod(&facts)
        };
        let claims = RecordedOriginals::read(&request.pod.found());
        let mut planned = Vec::with_capacity(images.len());
        let mut places = 0;
        let mut begun = Instant::now();
        for image in images {
            let now = Instant::now();
            let left_alone = [(now >= deadline, NO_TIME), (places >= MOST_PLACES, TOO_MANY_PLACES)];
            if let Some((_, why)) = left_alone.into_iter().find(|(applies, _)| *applies) {
                planned.push(Planned::left_alone(image.reference, why));
                continue;
            }
            let claimed = claims.asked(&image.place, image.reference);
            let foreign = |source: &_, copy: &_| self.context.claims.refuses(source, copy, &index);
            let plan =
                admission::plan(&policies, image.reference, claimed, image.pull_policy, &self.rules, foreign);
            places += plan.to_ask().map_or(0, |alternatives| alternatives.list().len());
            planned.push(plan);
            if now.duration_since(begun) >= LONGEST_SLICE {
                tokio::task::yield_now().await;
                begun = Instant::now();
            }
        }
        planned
    }

    /// Finds out, and has decided, everything that comes before the choice.
    async fn prepare(
        &self,
        request: &PodRequest<'_>,
        images: &[PodImage<'_>],
        deadline: Instant,
        warnings: &mut Warnings,
    ) -> Prepared {
        let mut planned = self.plan(request, images, deadline).await;
        self.prove(request, &mut planned, deadline).await;
        let pinning = self.known_pins(request, images, &mut planned, deadline, warnings).await;
        let resolves = pinning.as_ref().is_some_and(Pinning::resolves);
        let asks = resolves || self.resolves_volumes(request, images);
        let secrets = self.pull_secrets(request, &planned, asks, deadline, warnings).await;
        if let Some(pinning) = pinning.as_ref().filter(|_| resolves && self.scope.registries) {
            self.pin(request, pinning, &mut planned, &secrets, deadline, warnings).await;
        }
        Prepared { planned, secrets, pinning }
    }

    async fn route(&self, request: &PodRequest<'_>) -> AdmissionOutcome {
        let images = request.images();
        let mut warnings = Warnings::default();
        let mut planned = Vec::new();
        let (mut routes, to_add) = if let Some(exempt) = self.exemption(request.namespace, request.pod) {
            // Its controller may compare more than images, so pull secrets are not added, either.
            (images.iter().map(|image| exempt.route(image.reference)).collect(), Vec::new())
        } else {
            let deadline = request.deadline.checked_sub(RESERVE).unwrap_or_else(Instant::now);
            let prepared = self.prepare(request, &images, deadline, &mut warnings).await;
            let secrets = prepared.secrets;
            planned = prepared.planned;
            let mut routes = self.choose(&planned, &secrets, request, deadline).await;
            self.resolve_volumes(request, &images, &planned, &mut routes, &secrets, deadline).await;
            (routes, secrets.to_add)
        };

        let mut patch = Patch::default();
        let mut rewritten = false;
        let changed = images.iter().zip(&routes).map(|(image, route)| (image.reference, route.used.as_str()));
        let names = to_add.iter().map(String::as_str);
        let Some(room) = Room::of(request.body_bytes).after(changed, names) else {
            warnings.add(TOO_LARGE.to_owned());
            return AdmissionOutcome { warnings: warnings.lines(), ..AdmissionOutcome::default() };
        };
        for (image, route) in images.iter().zip(&mut routes) {
            if image.reference != route.used {
                rewritten = true;
                patch.image(image, &route.used);
                self.rewrites.count(&route.by);
            }
            if let Some(failure) = route.failure.take() {
                warnings.unavailable(&image.place.key(), failure);
            }
        }
        for (image, planned) in images.iter().zip(&planned) {
            if let Err(why) = &planned.places
                && [NO_TIME, TOO_MANY_PLACES].contains(&why.as_str())
            {
                warnings.add(format!("{}: {why}", image.place.key()));
            }
            if let Some(cut) = planned.to_ask().and_then(Alternatives::cut) {
                warnings.add(format!("{}: {cut}", image.place.key()));
            }
        }
        let entries: Vec<_> =
            images.iter().zip(routes).map(|(image, route)| Entry { place: image.place, route }).collect();
        match request.subject {
            Subject::NewPod => {
                patch.pull_secrets(request.pod, to_add);
                let (digests, found, room) = self.volume_digests(request, &entries, room);
                let mut annotations = pod_record::annotations(&found, entries, room);
                annotations.changes.extend(digests);
                patch.annotations(request.pod, annotations.changes);
                for name in annotations.left_out {
                    warnings.add(format!("this Pod has no room for the annotation {name}"));
                }
            }
            Subject::EphemeralContainers { .. } if request.dry_run => {}
            Subject::EphemeralContainers { .. } => self.context.records.note(Notice::new(request, entries)),
        }
        AdmissionOutcome { patch, rewritten, warnings: warnings.lines() }
    }
}

impl Decide for Router {
    fn decide<'a>(&'a self, request: &'a PodRequest<'a>) -> BoxFuture<'a, AdmissionOutcome> {
        self.route(request).boxed()
    }
}
