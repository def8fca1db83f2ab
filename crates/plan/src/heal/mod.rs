//! How Pods whose images cannot be pulled are moved to images that can be.
//!
//! The kubelet tries a changed image at once, so a container that waits for its pull is cured by writing another
//! reference into the Pod. [`Incidents`] tells when a failure is certain enough to act on, [`candidates`] what may be
//! written instead, [`choose`] which of it, and [`repair`] builds the one patch for all containers of a Pod.
//! What cannot be patched is left to [`evict`].
//!
//! Healing ends: a Pod with our record gets each candidate once, which [`Tried`] remembers on the Pod itself; a Pod
//! without one is patched once per container, and the record that such a patch leaves behind changes nothing about it.

mod annotations;
mod candidates;
pub mod evict;
mod incidents;
mod patch;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use jiff::Timestamp;

use crate::pod_record::{Place, Record, Route};
use crate::pull_failure::PullFailure;

pub use self::annotations::{Malformed, Tried, TriedImage, Written};
pub use self::candidates::{Background, Candidate, Candidates, Choice, candidates, choose};
pub use self::incidents::{Incidents, Look, Note};
pub use self::patch::{Move, Operation, Repair, carried_over, repair};

/// A failed patch is tried again after this time.
const RETRY_SECONDS: i64 = 15;

/// A container whose image, or one of whose image volumes, cannot be pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailingContainer<'a> {
    pub place: Place<'a>,
    /// Its position in the specification, among containers of its kind.
    pub position: usize,
    /// The same among the statuses.
    pub status_position: usize,
    pub image: &'a Arc<str>,
    /// The kubelet's reason, as it is stored.
    pub waiting: &'a str,
    pub failure: PullFailure,
    /// The kubelet's message names what cannot be pulled.
    pub names_image: bool,
    /// The image volume that cannot be pulled. The image of the container itself is then not at fault.
    pub volume: Option<FailingVolume<'a>>,
}

/// An image volume that cannot be pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailingVolume<'a> {
    pub name: &'a str,
    pub image: &'a str,
}

impl FailingContainer<'_> {
    pub fn name(&self) -> &str {
        match self.place {
            Place::Container(name) | Place::Init(name) | Place::Ephemeral(name) | Place::Volume(name) => name,
        }
    }

    /// What cannot be pulled: where it stands in the Pod, and the image.
    pub fn at_fault(&self) -> (Place<'_>, &str) {
        match &self.volume {
            Some(volume) => (Place::Volume(volume.name), volume.image),
            None => (self.place, self.image),
        }
    }

    /// Why no other image is written into the container; none if one can be.
    fn unpatchable(&self) -> Option<Unpatchable> {
        if !self.failure.may_be_cured_elsewhere() {
            return Some(Unpatchable::Cause(self.failure));
        }
        match (&self.volume, self.place) {
            (Some(_), _) => Some(Unpatchable::Volume),
            (None, Place::Ephemeral(_) | Place::Volume(_)) => Some(Unpatchable::Ephemeral),
            (None, Place::Container(_) | Place::Init(_)) => None,
        }
    }
}

/// Why a container cannot be healed by a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unpatchable {
    /// Another image would fail alike, or must not be used.
    Cause(PullFailure),
    /// The API server refuses to change the image of a volume.
    Volume,
    /// Nor that of an ephemeral container.
    Ephemeral,
}

/// A Pod with containers that wait for their images.
#[derive(Debug, Clone)]
pub struct FailingPod<'a> {
    pub uid: &'a Arc<str>,
    pub containers: Vec<FailingContainer<'a>>,
    pub written: Written<'a>,
}

impl FailingPod<'_> {
    /// The images that its containers were given before.
    pub fn tried(&self) -> Tried {
        self.written.tried(self.uid)
    }

    /// Until when what the kubelet says of a container may be about the image that it had before; none if it counts.
    fn old_news_until(&self, container: &FailingContainer<'_>, now: Timestamp) -> Option<Timestamp> {
        let vague = (!container.names_image).then_some(container.waiting)?;
        self.written.old_news_until(container.name(), vague, now)
    }

    /// What was recorded for an image when the Pod was admitted, as long as that is the image that it has. A record
    /// that there was nothing to choose from is as good as none, and so is one that healing wrote by itself.
    pub fn route<'r>(&self, record: Option<&'r Record>, place: &Place<'_>, image: &str) -> Option<&'r Route> {
        let chosen =
            |route: &&Route| route.is_rewritten() || route.is_healed() || !route.alternatives.is_empty();
        let mut route = record?.images.get(&place.key()).filter(|route| route.used == image);
        route = route.filter(|route| !route.bypassed);
        route.filter(chosen)
    }
}
