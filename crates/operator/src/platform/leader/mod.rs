//! Which replica may change the cluster.
//!
//! Every replica serves admission and computes; one, the holder of a Lease, writes. `fairlead_plan::leadership`
//! decides; [`Election`] carries it out; [`Leader`] lets controllers run while this replica leads, and makes sure that
//! they have stopped before another replica may start.

mod election;
mod lease;
mod metrics;
mod term;

pub use election::Election;
pub use metrics::Metrics;
pub use term::{Leader, Leadership, Term};
