//! What a round is given: the configuration, and the cluster at one moment.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::drop::{CachedImage, CachedImageSpec, PullPolicy};
use fairlead_domain::platform::Platform;
use fairlead_domain::reference::{DEFAULT_TAG, Reference, ReferenceError};
use jiff::Timestamp;

use super::pacing::Caps;
use super::pod_state::PullPod;
use crate::node::Node;

/// What the configuration says.
#[derive(Debug, Clone)]
pub struct WarmSettings {
    /// Namespace of pull Pods.
    pub namespace: Arc<str>,
    /// One Pod for all images that a node needs, where they agree in what concerns the Pod.
    pub batch: bool,
    pub caps: Caps,
    pub pull_deadline: Duration,
    pub gate_deadline: Duration,
    /// Image to run where images are to be pulled as volumes.
    pub runner: Option<Arc<str>>,
}

/// What Pods would be given for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routed {
    /// Or why there is none.
    pub reference: Result<Reference, Arc<str>>,
    /// All places of the image, in the order in which Pods are given them. Empty: there is only one.
    pub places: Arc<[Reference]>,
    /// Platforms that the image is for. Empty: not known.
    pub platforms: Arc<[Platform]>,
    /// Names of Secrets that pull Pods need besides those that the image names.
    pub pull_secrets: Arc<[Arc<str>]>,
    /// Why they lack one that a place asks for.
    pub secret_problem: Option<Arc<str>>,
    pub planned_at: Timestamp,
}

impl Routed {
    /// Whether pulls are the same by both, whenever they were planned.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let Self { reference, places, platforms, pull_secrets, secret_problem: _, planned_at: _ } = self;
        *reference == other.reference
            && *places == other.places
            && *platforms == other.platforms
            && *pull_secrets == other.pull_secrets
    }

    /// The place that a reference names, if what was pulled from there is as good: it is the one that was decided on,
    /// or one that Pods would rather be given. Such a one was passed over because of what its registry said, and will
    /// be given again. So nodes pull anew where the order of places is another, but not while a mirror is away.
    pub(super) fn accepts(&self, reference: &str) -> Option<&Reference> {
        let chosen = self.reference.as_ref().ok()?;
        let before = self.places.iter().take_while(|place| *place != chosen);
        [chosen].into_iter().chain(before).find(|place| *place.as_str() == *reference)
    }
}

/// Why a registry gets no new pulls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// `down` or `rate-limited`, for instance.
    pub what: Arc<str>,
    /// When it is worth to look again. None: a change will be told.
    pub until: Option<Timestamp>,
}

/// The cluster at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    pub now: Timestamp,
    pub images: &'a [Arc<CachedImage>],
    pub policies: &'a [Arc<PullPolicy>],
    /// Images with a gate that their sets are about to create: see [`coming_gate`](super::sets::coming_gate).
    pub coming_gates: &'a [CachedImageSpec],
    /// Each with the time of its last report. Comparing one that has not changed costs nothing if it is shared.
    pub nodes: &'a [(Arc<Node>, Timestamp)],
    /// The same holds for Pods.
    pub pods: &'a [Arc<PullPod>],
    /// By UID of the image. An image that is missing waits.
    pub routed: &'a HashMap<Arc<str>, Routed>,
    /// Images whose registries are to be left alone, by UID.
    pub troubles: &'a HashMap<Arc<str>, Trouble>,
}

/// The reference that an object asks for.
pub fn asked(image: &str, tag: Option<&str>, digest: Option<&str>) -> Result<Reference, ReferenceError> {
    match (digest.unwrap_or_default(), tag.unwrap_or_default()) {
        ("", "") => Reference::parse(&format!("{image}:{DEFAULT_TAG}")),
        ("", tag) => Reference::parse(&format!("{image}:{tag}")),
        (digest, _) => Reference::parse(&format!("{image}@{digest}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_fields_give_one_reference() {
        let digest = format!("sha256:{}", "0".repeat(64));
        let pinned = format!("r.io/a@{digest}");
        for (image, tag, given, expected) in [
            ("r.io/a", None, None, Some("r.io/a:latest")),
            ("r.io/a", Some(""), Some(""), Some("r.io/a:latest")),
            ("r.io:5000/a", Some("1"), None, Some("r.io:5000/a:1")),
            ("nginx", Some("1.29"), None, Some("docker.io/library/nginx:1.29")),
            ("index.docker.io/nginx", None, None, Some("docker.io/library/nginx:latest")),
            ("r.io/a", Some("1"), Some(&*digest), Some(&*pinned)),
            ("", None, None, None),
            ("r.io/UPPER", None, None, None),
            (&*"0".repeat(64), None, Some("nonsense"), None),
        ] {
            let found = asked(image, tag, given).ok();
            assert_eq!(found.as_ref().map(Reference::as_str), expected, "{image} {tag:?} {given:?}");
        }
    }
}
