//! Routes the images of a Pod: observes the policies and what is known of registries, lets the planner decide, and
//! turns the decision into a patch.
//!
//! Whatever goes wrong on the way concerns one place, one Secret or one image; the rest of the Pod is routed all the
//! same, and a warning informs its author.

mod choose;
mod prove;
mod pull_secrets;
#[cfg(test)]
pub(super) mod tests;

use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::selector::PodFacts;
use fairlead_plan::admission::{self, Planned};
use fairlead_plan::owners::{ApiGroup, Exemption, exemption};
use fairlead_plan::pod_record::{self, Claims, Entry, Room};
use fairlead_plan::routing::{Alternatives, Rules};
use fairlead_plan::warnings::Warnings;
use futures::{FutureExt, future::BoxFuture};
use jiff::SignedDuration;
use tokio::time::{Instant, timeout_at};

use super::{
    decide::{AdmissionOutcome, Decide, DecideError, PodRequest, Subject},
    ephemeral::Notice,
    metrics::Rewrites,
    patch::Patch,
    review::PodImage,
};
use crate::context::Context;
use crate::registries::verdicts::NodeTrust;

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
    around: Arc<Context>,
    rules: Rules,
    skip_owners: Vec<ApiGroup>,
    trust: NodeTrust,
    /// How long proof of access counts.
    proof_lifetime: SignedDuration,
    rewrites: Rewrites,
}

impl Router {
    pub fn new(around: Arc<Context>, rewrites: Rewrites) -> Self {
        let routing = &around.config.routing;
        let rules = Rules {
            rewrite_on_never: routing.rewrite_on_never_image_pull_policy,
            honor_priorities_on_always: routing.honor_priorities_on_always_image_pull_policy,
        };
        let skip_owners = routing.skip_owners.clone();
        let (trust, proof_lifetime) = (NodeTrust::from(&around.config), routing.proof_lifetime());
        Self { around, rules, skip_owners, trust, proof_lifetime, rewrites }
    }

    /// Why the images of the Pod stay as its controller wrote them.
    fn exemption(&self, request: &PodRequest<'_>) -> Option<Exemption> {
        let controller = request.pod.controller()?;
        let paused_until = self.around.owners.paused_until(request.namespace, controller.uid);
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
        let index = self.around.policies.current();
        let policies = {
            let (labels, annotations) = (request.pod.labels(), request.pod.annotations());
            let facts = PodFacts { namespace: request.namespace, labels: &labels, annotations: &annotations };
            index.for_pod(&facts)
        };
        let claims = Claims::read(&request.pod.found());
        let mut planned = Vec::with_capacity(images.len());
        let mut places = 0;
        let mut begun = Instant::now();
        for image in images {
            let now = Instant::now();
            let left_alone = [(now >= deadline, NO_TIME), (places >= MOST_PLACES, TOO_MANY_PLACES)];
            if let Some((_, why)) = left_alone.into_iter().find(|(applies, _)| *applies) {
                planned.push(Planned { asked: image.reference.to_owned(), places: Err(why.to_owned()) });
                continue;
            }
            let claimed = claims.asked(&image.place, image.reference);
            let foreign = |source: &_, copy: &_| self.around.claims.refuses(source, copy, &index);
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

    async fn route(&self, request: &PodRequest<'_>) -> AdmissionOutcome {
        let images = request.images();
        let mut warnings = Warnings::default();
        let mut planned = Vec::new();
        let (mut routes, to_add) = if let Some(exempt) = self.exemption(request) {
            // Its controller may compare more than images, so pull secrets are not added, either.
            (images.iter().map(|image| exempt.route(image.reference)).collect(), Vec::new())
        } else {
            let deadline = request.deadline.checked_sub(RESERVE).unwrap_or_else(Instant::now);
            planned = self.plan(request, &images, deadline).await;
            self.prove(request, &mut planned, deadline).await;
            let secrets = self.pull_secrets(request, &planned, deadline, &mut warnings).await;
            (self.choose(&planned, &secrets, request, deadline).await, secrets.to_add)
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
        let entries =
            images.iter().zip(routes).map(|(image, route)| Entry { place: image.place, route }).collect();
        match request.subject {
            Subject::NewPod => {
                patch.pull_secrets(request.pod, to_add);
                let annotations = pod_record::annotations(&request.pod.found(), entries, room);
                patch.annotations(request.pod, annotations.changes);
                for name in annotations.left_out {
                    warnings.add(format!("this Pod has no room for the annotation {name}"));
                }
            }
            Subject::EphemeralContainers { .. } if request.dry_run => {}
            Subject::EphemeralContainers { .. } => self.around.records.note(Notice::new(request, entries)),
        }
        AdmissionOutcome { patch, rewritten, warnings: warnings.lines() }
    }
}

impl Decide for Router {
    fn decide<'a>(
        &'a self,
        request: &'a PodRequest<'a>,
    ) -> BoxFuture<'a, Result<AdmissionOutcome, DecideError>> {
        self.route(request).map(Ok).boxed()
    }
}
