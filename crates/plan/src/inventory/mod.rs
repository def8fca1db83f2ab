//! Which image every container and every image volume runs: what was asked for, what it was routed to, which digest is
//! expected, which one the kubelet reports, and whether these agree.
//!
//! *Expected* is what a registry said of the reference, mostly before the pull. *Reported* is what the kubelet says of
//! the content on the node. The two come in different forms: a registry names an index, a runtime may name the image of
//! the node's platform or its configuration, so they are compared through [`Contents`].

mod annotation;
mod compare;
mod contents;
mod currency;
mod drift;
mod last_seen;
mod memory;
mod places;
mod reported;
mod row;
mod rows;
mod series;
mod survey;
#[cfg(test)]
mod tests;

pub use self::annotation::{Change, VolumeDigest, VolumeDigests, WriteAttempts, change};
pub use self::compare::{Comparison, State, compare};
pub use self::contents::{Content, Contents, PlatformManifest, is_empty_config};
pub use self::currency::{DriftedRevision, RevisionDrift, by_revision, currency};
pub use self::drift::{Current, Drift, DriftFindings, DriftKind, DriftRead, Drifts, Suspects};
pub use self::memory::{MountMemory, NamespaceImage, Notes, Resolutions, SeenDigest};
pub use self::places::{ComparedPlaces, Places};
pub use self::reported::Reported;
pub use self::row::{Expected, Resolved, Role, Row, Source};
pub use self::rows::{
    Finding, FindingKind, Knowledge, Misplaced, MountView, PodRows, PodView, Proof, UseView, rows,
};
pub use self::series::{MOST_SERIES, Series, ShownSeries};
pub use self::survey::{ContentRead, ImageWish, Survey, Surveyed};
