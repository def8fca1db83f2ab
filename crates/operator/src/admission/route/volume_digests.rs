//! Which digests the image volumes of a Pod have: asked for before the pull, since no kubelet that is released reports
//! them afterwards.
//!
//! What is noted stays for the life of the Pod, so the registry is asked here unless it answered a moment ago, within
//! the time that a probe may take; a digest that is not known by then is left to the lease holder.

use std::time::Duration;

use fairlead_api::names::fairlead::VOLUME_DIGESTS;
use fairlead_domain::cause::Cause;
use fairlead_domain::reference::Reference;
use fairlead_plan::admission::Planned;
use fairlead_plan::inventory::{Change, VolumeDigest, change};
use fairlead_plan::pod_record::{Entry, Place, PodAnnotations, Route};
use futures::future::join_all;
use tokio::time::Instant;

use super::Router;
use super::pull_secrets::PullSecrets;
use crate::admission::decide::{PodRequest, Subject};
use crate::admission::review::PodImage;

/// Age at which an answer is asked for anew: the pull follows within seconds, and the tag may have moved.
const MOMENT: Duration = Duration::from_secs(2);

impl Router {
    fn annotates(&self, request: &PodRequest<'_>) -> bool {
        self.context.config.account.annotate && matches!(request.subject, Subject::NewPod)
    }

    /// Whether a registry may have to be asked about an image volume.
    pub(super) fn resolves_volumes(&self, request: &PodRequest<'_>, images: &[PodImage<'_>]) -> bool {
        let has_tag = |image: &PodImage<'_>| !image.reference.contains('@');
        let is_volume = |image: &PodImage<'_>| matches!(image.place, Place::Volume(_));
        self.annotates(request) && images.iter().any(|image| is_volume(image) && has_tag(image))
    }

    /// Asks for the digests of image volumes, all at once.
    pub(super) async fn resolve_volumes(
        &self,
        request: &PodRequest<'_>,
        images: &[PodImage<'_>],
        planned: &[Planned],
        routes: &mut [Route],
        secrets: &PullSecrets,
        deadline: Instant,
    ) {
        if !self.resolves_volumes(request, images) {
            return;
        }
        let asked =
            images.iter().zip(planned).zip(routes.iter_mut()).filter_map(|((image, planned), route)| {
                let wanted = matches!(image.place, Place::Volume(_)) && !route.unavailable;
                let used =
                    Reference::parse(&route.used).ok().filter(|used| wanted && used.digest().is_none())?;
                let mut places = planned.places.iter().flat_map(fairlead_plan::routing::Alternatives::list);
                let place = places.find(|place| place.reference.is_same_image(&used));
                // What no policy offers is asked about on account of the Pod's author.
                let (credentials, cause) = match place.filter(|_| planned.to_ask().is_some()) {
                    Some(place) => (secrets.credentials(place), place.cause()),
                    None => (secrets.own_credentials(&used), Cause::Tenant),
                };
                Some(async move {
                    let verdicts = self.context.verdicts.caused_by(cause);
                    let namespace = request.namespace;
                    let verdict =
                        verdicts.recall_within(&used, &credentials, namespace, MOMENT, deadline).await;
                    if let Some(digest) = verdict.digest() {
                        route.digest = digest.to_string();
                    }
                })
            });
        join_all(asked).await;
    }

    /// The annotation that says so, as a change to the Pod; with what is found on the Pod and the room that is left.
    pub(super) fn volume_digests<'p>(
        &self,
        request: &'p PodRequest<'_>,
        entries: &[Entry<'_>],
        room: usize,
    ) -> (Option<(&'static str, Option<String>)>, PodAnnotations<'p>, usize) {
        let found = request.pod.found();
        if !self.annotates(request) {
            return (None, found, room);
        }
        let volumes: Vec<_> = entries
            .iter()
            .filter_map(|Entry { place, route }| {
                let Place::Volume(name) = place else { return None };
                let named = Reference::parse(&route.used).ok().and_then(|used| used.digest());
                let expected = named.or_else(|| route.digest.parse().ok());
                Some(VolumeDigest { name, image: &route.used, reported: false, expected, pending: false })
            })
            .collect();
        match change(request.pod.annotation(VOLUME_DIGESTS), &volumes, false) {
            Change::Leave => (None, found, room),
            // Of an earlier Pod, or made up.
            Change::Remove => (Some((VOLUME_DIGESTS, None)), found, room),
            Change::Write(text) => {
                let left = room.checked_sub(VOLUME_DIGESTS.len() + text.len());
                match (left, found.joined_by(VOLUME_DIGESTS, &text)) {
                    (Some(left), Some(joined)) => (Some((VOLUME_DIGESTS, Some(text))), joined, left),
                    _ => (None, found, room),
                }
            }
        }
    }
}
