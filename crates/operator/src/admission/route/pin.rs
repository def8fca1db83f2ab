//! Holds the tags of a Pod to digests, where the Pod, its namespace or the configuration asks for it.
//!
//! What the revision of the Pod's workload is held to already is known from memory. For the rest the registry is asked
//! once per revision, and the `ImagePin` decides between replicas ([`crate::registries::pins`]).

use fairlead_api::names::fairlead::PIN;
use fairlead_domain::cause::Cause;
use fairlead_domain::reference::Reference;
use fairlead_domain::selector::Labels;
use fairlead_plan::admission::Planned;
use fairlead_plan::pinning::{self, Mode, Revision, Said, opinion};
use fairlead_plan::routing::Alternatives;
use fairlead_plan::warnings::Warnings;
use tokio::time::Instant;

use super::Router;
use super::pull_secrets::PullSecrets;
use crate::admission::decide::{PodRequest, Subject};
use crate::admission::review::PodImage;
use crate::cluster::state::Key;
use crate::registries::pins::{NotPinned, Question, QuestionPlace};

/// What is to be pinned on a Pod.
#[derive(Debug)]
pub(super) struct Pinning {
    /// None for Pods without controller.
    pub(super) revision: Option<(Key, Revision)>,
    /// Positions and names of images whose digest is not known yet.
    pub(super) open: Vec<(usize, String)>,
}

impl Pinning {
    /// Whether registries have to be asked.
    pub(super) fn resolves(&self) -> bool {
        !self.open.is_empty()
    }
}

impl Router {
    /// Holds images to the digests that are known without asking; and tells what remains to be done. None: the Pod is
    /// not pinned.
    pub(super) async fn known_pins(
        &self,
        request: &PodRequest<'_>,
        images: &[PodImage<'_>],
        planned: &mut [Planned],
        deadline: Instant,
        warnings: &mut Warnings,
    ) -> Option<Pinning> {
        for image in planned.iter_mut() {
            if let Some(digest) = image.pin {
                image.hold(digest);
            }
        }
        if !self.is_pinned(request, deadline, warnings).await {
            return None;
        }
        let revision = pinning::revision(request.pod.controller(), &request.pod.labels()).map(|revision| {
            (Key { namespace: request.namespace.into(), name: revision.pin_name().into() }, revision)
        });
        let known = revision.as_ref().map(|(key, revision)| self.context.pins.known(key, revision));
        let mut open = Vec::new();
        for (position, (image, planned)) in images.iter().zip(planned).enumerate() {
            let Some(tag) = planned.unpinned_tag(image.pull_policy) else { continue };
            match known.as_ref().and_then(|known| known.digest(tag)) {
                Some(digest) => planned.hold(digest),
                None => open.push((position, image.place.key())),
            }
        }
        Some(Pinning { revision, open })
    }

    async fn is_pinned(&self, request: &PodRequest<'_>, deadline: Instant, warnings: &mut Warnings) -> bool {
        let mode = Mode::from(self.context.config.account.pinning);
        let (annotations, labels) = (request.pod.annotations(), request.pod.labels());
        let pod = Said { annotation: annotations.value(PIN), label: labels.value(PIN) };
        let namespaces = &self.context.resources.namespaces;
        let opinion = match (mode, pod) {
            (Mode::Off, _) => opinion(mode, pod, Said::default()),
            // The namespace does not count, so it is not waited for either.
            (_, pod) if pod.decides() => opinion(mode, pod, Said::default()),
            _ => namespaces.on_pinning(request.namespace, deadline, |said| opinion(mode, pod, said)).await,
        };
        opinion.warning.into_iter().for_each(|warning| warnings.add(warning));
        opinion.pinned
    }

    /// Finds out the digests that are missing, and holds the images to them. A tag without one stays as it is.
    pub(super) async fn pin(
        &self,
        request: &PodRequest<'_>,
        pinning: &Pinning,
        planned: &mut [Planned],
        secrets: &PullSecrets,
        deadline: Instant,
        warnings: &mut Warnings,
    ) {
        let places = |position: usize| planned.get(position)?.places.as_ref().ok();
        let questions: Vec<_> = pinning
            .open
            .iter()
            .filter_map(|(position, _)| places(*position).map(|places| question(places, secrets)))
            .collect();
        let pins = &self.context.pins;
        // A container that is added for debugging is no part of the revision, and a dry run writes nothing.
        let stores = matches!(request.subject, Subject::NewPod) && !request.dry_run;
        let revision = pinning.revision.as_ref();
        let answers = match revision.filter(|_| stores).cloned() {
            Some((key, revision)) => pins.ensure(key, revision, questions, deadline).await,
            None => pins.look_up(request.namespace, revision, questions, deadline).await,
        };
        for (position, name) in &pinning.open {
            let Some(image) = planned.get_mut(*position) else { continue };
            let Some(tag) = image.unpinned_tag(None).cloned() else { continue };
            match answers.digest(&tag) {
                Ok(digest) => image.hold(digest),
                Err(NotPinned(why)) => warnings.add(format!("{name}: {tag} is not pinned: {why}")),
            }
        }
    }
}

/// All that is needed to find out a tag's digest.
fn question(places: &Alternatives, secrets: &PullSecrets) -> Question {
    let asked: &Reference = places.original();
    let of = |place: &_| QuestionPlace::new(place, secrets.credentials(place));
    let origin = places.list().iter().find(|place| place.is_original());
    let origin = origin.map_or_else(
        || QuestionPlace {
            reference: asked.clone(),
            credentials: secrets.own_credentials(asked),
            cause: Cause::Tenant,
        },
        of,
    );
    let others = places.list().iter().filter(|place| !place.is_original()).map(of).collect();
    Question { origin, others }
}
