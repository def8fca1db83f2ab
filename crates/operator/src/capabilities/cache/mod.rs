//! Proxy caches: keeps an endpoint and a project in Harbor for every `ProxyCache`, on the lease holder alone.
//!
//! `fairlead_plan::cache` decides. A look at one object reads Harbor, carries out one step after the other, and ends
//! with a status; looks run side by side, a few at a time. An object is looked at when it, or a Secret that it depends
//! on, has changed, and every few minutes. Writing a status is no reason to look again.

mod access;
mod controller;
mod events;
mod look;
mod metrics;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::reef::ProxyCache;
use fairlead_plan::cache::routing_error;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

pub use controller::CacheController;
pub use metrics::Metrics;

use crate::cluster::nodes::Watched;
use crate::cluster::state::Bell;
use crate::context::Context;

/// What proxy caches work with.
pub struct CacheSetup {
    context: Arc<Context>,
    metrics: Metrics,
    /// Set while this replica keeps caches.
    secrets: Mutex<Option<Watched>>,
    ahead: Mutex<SignedDuration>,
    skipped: Bell,
}

impl CacheSetup {
    pub fn new(context: Arc<Context>, metrics: Metrics) -> Self {
        let ahead = Mutex::new(SignedDuration::ZERO);
        Self { context, metrics, secrets: Mutex::default(), ahead, skipped: Bell::default() }
    }

    /// Why routing does not take an object.
    fn routing_error(&self, object: &ProxyCache) -> Option<String> {
        routing_error(object, self.context.config.harbor.pull_host())
    }

    fn now(&self) -> Timestamp {
        self.context.clock.now().checked_add(*self.ahead.lock()).unwrap_or(Timestamp::MAX)
    }

    /// Puts the clock of this capability forward, for tests of what happens in the long run.
    pub fn skip(&self, time: Duration) {
        *self.ahead.lock() += SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
        self.skipped.ring();
    }
}

impl fmt::Debug for CacheSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheSetup").finish_non_exhaustive()
    }
}
