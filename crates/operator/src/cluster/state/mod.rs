//! What the cluster holds, as far as it matters here: indexes fed by watches, read as snapshots.
//!
//! A reader gets one consistent view and never waits for the API server. Objects are trimmed before they come here.

mod changes;
mod entry;
mod intern;
mod key;
mod objects;
mod owners;
mod pods;

pub(crate) use changes::Bell;
pub use changes::Changes;
pub use entry::{Annotation, Container, Label, Mount, Owner, Phase, PodEntry, PullProblem, Role};
pub(crate) use intern::Interner;
pub use key::Key;
pub use objects::{Malformed, Snapshot, Store};
pub use owners::Owners;
pub use pods::{PodListing, Pods};
