//! `kuik.enix.io/v1alpha1`: where images may come from instead (mirrors and replicas), and which are watched.
//!
//! Manifests written for kube-image-keeper apply unchanged. What it accepted and then stumbled over at run time
//! (durations in days, registries with a scheme, patterns that do not compile) is refused when it is applied.

mod availability;
mod credential;
mod filter;
mod mirror;
mod replicated;

pub use availability::{
    Availability, ClusterImageSetAvailability, ClusterImageSetAvailabilitySpec,
    ClusterImageSetAvailabilityStatus, MonitoredImage,
};
pub use credential::CredentialSecret;
pub(crate) use credential::namespace_is_said;
pub use filter::{Filter, FilterItem, ImageFilter};
pub use mirror::{
    AwaitedRegistry, Cleanup, ClusterImageSetMirror, ClusterImageSetMirrorSpec, ImageSetMirror,
    ImageSetMirrorSpec, MAX_MIRRORS, MatchingImage, Mirror, MirrorAccess, MirrorSetStatus, MirroredImage,
    NO_LONGER_MATCHING, SharingCluster,
};
pub use replicated::{
    ClusterReplicatedImageSet, ClusterReplicatedImageSetSpec, ReplicatedImageSet, ReplicatedImageSetSpec,
    ReplicatedSetStatus, Upstream,
};

pub const GROUP: &str = "kuik.enix.io";

/// As objects of this group name it.
pub const API_VERSION: &str = "kuik.enix.io/v1alpha1";

/// The largest number that every JSON reader takes for a whole one. What lies beyond could be stored, and not be read
/// back.
pub(crate) const MAX_PRIORITY: i64 = (1 << 53) - 1;
