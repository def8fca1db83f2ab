//! Finds the images that `DiscoveryPolicy` objects describe, on the lease holder, and lists them in their statuses.
//!
//! `plan::warm::discovery` decides what to ask, what the answers mean and when to ask again. Here its questions are
//! sent, each policy's one after the other, a few policies at once.

mod access;
mod ask;
mod controller;
mod dates;
mod metrics;

use std::fmt;
use std::sync::Arc;

use tokio::sync::Semaphore;

use self::dates::Dates;

pub use controller::DiscoverySync;
pub use metrics::Metrics;

use crate::context::Context;

/// What discovery works with.
pub struct DiscoverySetup {
    context: Arc<Context>,
    metrics: Metrics,
    warming: super::Metrics,
    dates: Dates,
    /// The turn of the policy with many answers.
    heavy: Arc<Semaphore>,
}

impl DiscoverySetup {
    /// `warming` counts the rounds of all its controllers.
    pub fn new(context: Arc<Context>, metrics: Metrics, warming: super::Metrics) -> Self {
        Self { context, metrics, warming, dates: Dates::default(), heavy: Arc::new(Semaphore::new(1)) }
    }
}

impl fmt::Debug for DiscoverySetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiscoverySetup").finish_non_exhaustive()
    }
}
