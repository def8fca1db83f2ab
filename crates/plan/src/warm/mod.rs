//! Warming: images pulled onto nodes before a Pod asks for them.
//!
//! [`Warming`] is what the lease holder knows from one round to the next. A round takes a snapshot of the cluster and
//! returns typed actions. It looks again only at pairs of image and node of which something changed or is due, because
//! there are nodes times images of them.

mod actions;
pub mod discovery;
mod eviction;
pub mod gate;
mod image;
pub mod memory;
pub mod pacing;
pub mod pod_state;
mod pods;
pub mod pull_pod;
pub mod record;
mod round;
mod schedule;
pub mod sets;
mod snapshot;
pub mod status;
pub mod targets;
#[cfg(test)]
mod tests;
mod time;

pub use self::actions::{Action, Creation, Event, EventKind, Plan, Refusal};
pub use self::round::{Figures, Warming};
pub use self::snapshot::{Routed, Snapshot, Trouble, WarmSettings, asked};
