//! What is decided about a Pod, behind one small trait, so that everything around it (deadlines, panics, load) is the
//! same whatever the decision costs.

use fairlead_plan::pod_record::Place;
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::patch::Patch;
use super::review::{PodImage, PodObject};
use super::shares::Share;

/// A Pod about which the API server asks.
#[derive(Debug)]
pub struct PodRequest<'a> {
    pub namespace: &'a str,
    pub subject: Subject<'a>,
    /// Nothing may be written anywhere.
    pub dry_run: bool,
    pub pod: &'a PodObject<'a>,
    /// Of the whole request, and so at least of the Pod.
    pub body_bytes: usize,
    /// What its namespace may take at once.
    pub share: &'a Share,
    /// The API server has stopped waiting at this moment.
    pub deadline: Instant,
}

/// What the API server is about to do.
#[derive(Debug, Clone, Copy)]
pub enum Subject<'a> {
    NewPod,
    /// Containers are added to a running Pod for debugging. Of the answer only their images count: the API server puts
    /// back everything else.
    EphemeralContainers {
        before: &'a PodObject<'a>,
    },
}

impl PodRequest<'_> {
    /// The images to decide about.
    pub(super) fn images(&self) -> Vec<PodImage<'_>> {
        let mut images = self.pod.images();
        if let Subject::EphemeralContainers { before } = self.subject {
            let known = before.spec.as_ref().and_then(|spec| spec.ephemeral_containers.as_deref());
            let is_known = |name: &str| known.into_iter().flatten().any(|container| *container.name == *name);
            images.retain(|image| matches!(image.place, Place::Ephemeral(name) if !is_known(name)));
        }
        images
    }
}

/// What becomes of the Pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AdmissionOutcome {
    /// Empty: the Pod stays as it is.
    pub patch: Patch,
    /// Whether an image is not the one that the Pod came with.
    pub rewritten: bool,
    /// Lines that are shown to the author of the Pod.
    pub warnings: Vec<String>,
}

/// Decides about Pods. A panic and a missed deadline leave the Pod as it is.
pub trait Decide: Send + Sync + 'static {
    fn decide<'a>(&'a self, request: &'a PodRequest<'a>) -> BoxFuture<'a, AdmissionOutcome>;
}
