//! Which images Pods use, for every policy that has to know.
//!
//! Mirroring and watching both start from the images in use. All Pods are gone through once for all policies together:
//! a cluster has many Pods and few distinct images, so what depends on an image alone is found out once per image.

mod direct;
mod gathering;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use fairlead_api::names;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use fairlead_domain::selector::{ImageFilter, Labels, PodFacts, PodMatcher};

use crate::pod_record::Place;

pub use self::direct::DirectUses;
use self::gathering::Gathering;

/// Users of an image that are remembered, each with other credentials: the first of each namespace, up to so many, and
/// so many altogether. Most of them may hold nothing for the image's registry, which only their Secrets tell.
pub const MOST_HOLDERS: usize = 4096;
pub const MOST_HOLDERS_OF_NAMESPACE: usize = 64;

/// What one policy is about.
#[derive(Debug, Clone, Copy)]
pub struct Selection<'a> {
    /// Only Pods of this namespace. `None`: of all.
    pub namespace: Option<&'a str>,
    pub pods: &'a PodMatcher,
    pub images: &'a ImageFilter,
    /// Whether it has to be known which namespaces ran an image.
    pub proofs: bool,
}

/// One Pod.
#[derive(Debug)]
pub struct PodUse<'a> {
    pub facts: PodFacts<'a>,
    pub namespace: &'a Arc<str>,
    pub name: &'a Arc<str>,
    pub pull_secrets: &'a Arc<[Arc<str>]>,
    pub images: Vec<ImageUse<'a>>,
}

/// One image of a Pod.
#[derive(Debug, Clone, Copy)]
pub struct ImageUse<'a> {
    pub place: Place<'a>,
    /// As the specification has it.
    pub image: &'a Arc<str>,
    /// What the kubelet says it runs, as an `imageID`.
    pub running: Option<&'a str>,
}

/// One image in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    /// Normalised, however the Pods write it.
    pub image: Reference,
    /// Some Pod asked for it. Otherwise Pods were only given it in place of another.
    pub original: bool,
    /// Distinct by namespace and pull secrets, in order of these: the first ones, at most [`MOST_HOLDERS`], and
    /// [`MOST_HOLDERS_OF_NAMESPACE`] of one namespace.
    pub holders: Arc<[Holder]>,
    /// The digest that all Pods run which run it. `None` if they differ, since which one is right is unknown.
    pub running: Option<Digest>,
    /// Namespaces whose Pods name the image in their specification and run it, each with the digest: in order, the
    /// first [`MOST_HOLDERS`]. What annotations say does not count. Empty unless the selection asks for it.
    pub ran: Arc<[(Arc<str>, Digest)]>,
}

/// Who uses an image, and with which credentials.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder {
    pub namespace: Arc<str>,
    pub pull_secrets: Arc<[Arc<str>]>,
    /// The first by name of the Pods that are alike in this.
    pub pod: Arc<str>,
}

/// The images in use, one list per selection: by image, each once. Pods may come in any order.
///
/// An image counts as what the Pod asked for, and also as what it was given instead; each has to pass the selection's
/// filter by itself. A pinned tag counts as the tag and as its digest. Images that cannot be read are left out.
pub fn gather<'a>(
    selections: &[Selection<'_>],
    pods: impl IntoIterator<Item = PodUse<'a>>,
) -> Vec<Vec<Used>> {
    let mut gathering = Gathering::new(selections);
    for pod in pods {
        gathering.add(&pod);
    }
    gathering.finish()
}

/// Whether a Pod only warms a node. Its images are there to be warm, not because they are in use.
pub fn is_warming(labels: &dyn Labels) -> bool {
    labels.value(names::kubernetes::MANAGED_BY) == Some(names::drop::MANAGED_BY_DROP)
        && labels.value(names::drop::CACHED_IMAGE).is_some()
}
