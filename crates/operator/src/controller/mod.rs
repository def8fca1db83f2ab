//! The frame that every controller of the lease holder runs on.
//!
//! A capability implements [`Controller`]: what it waits for, what wakes it, and one round of observe, plan and act.
//! The frame does the rest for all of them alike: it runs them only while this replica leads, waits until the needed
//! kinds are listed, wakes them on change or on time, restarts them after an error or a panic with back-off, counts
//! their rounds, and beats for liveness. What controllers share besides is here as well: work in flight, statuses,
//! finalizers, events, back-off.

pub mod backoff;
pub mod events;
pub mod finalizers;
mod inflight;
pub(crate) mod ledger_writes;
pub(crate) mod metrics;
pub mod rate_limit;
mod rounds;
mod runner;
pub mod status;
pub mod tasks;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

pub use inflight::Inflight;
pub use rounds::Rounds;
pub use runner::run;

use crate::cluster::state::Changes;
use crate::platform::leader::Term;

/// One controller. A value of the type is what one term knows; it is made anew for each, because what another replica
/// did meanwhile is not known.
pub trait Controller: Sized + Send + 'static {
    /// Names the controller in logs and on the health page.
    const NAME: &'static str;

    /// The shortest time from one round to the next that a change calls for: a thousand changes make one round.
    const DEBOUNCE: Duration = Duration::from_millis(200);

    /// What outlives terms, often the process' [`Context`](crate::context::Context) alone.
    type Setup: Send + Sync + 'static;

    /// What has to be known before anything is planned or written; asked before every round.
    fn waits_for(setup: &Self::Setup) -> Option<String>;

    /// What wakes the controller.
    fn changes(setup: &Self::Setup) -> Vec<Changes>;

    /// Begins a term, from what earlier ones have stored.
    fn begin(setup: &Arc<Self::Setup>, term: &Term) -> impl Future<Output = Result<Self, Broken>> + Send;

    /// Observes, plans and acts, and tells when to look again if nothing changes before. Dropped where it stands when
    /// the term ends; asks the term before every write.
    fn round(&mut self, term: &Term) -> impl Future<Output = Result<Instant, Broken>> + Send;

    /// Something that wakes the controller has changed.
    fn changed(&mut self) {}

    /// Waits for work in flight or for messages, takes up what comes, and tells whether a round is to follow at once.
    /// It must lose nothing when it is dropped.
    fn progress(&mut self) -> impl Future<Output = bool> + Send {
        std::future::pending()
    }

    /// The term is over, or the controller restarts.
    fn end(_setup: &Self::Setup) {}
}

/// Longest time between two looks at the wall clock, which may be set.
pub const LONGEST_SLEEP: Duration = Duration::from_mins(1);

/// The instant of a round that has to follow at a time of the wall clock, where `now` was at `begun`; a minute later at
/// the latest.
pub fn wake_at(time: Option<Timestamp>, now: Timestamp, begun: Instant) -> Instant {
    let wait = time.map(|time| Duration::try_from(time.duration_since(now)).unwrap_or_default());
    begun + wait.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP)
}

/// Why a controller restarts, and forgets what it knows.
#[derive(Debug)]
pub struct Broken(String);

impl<E: fmt::Display> From<E> for Broken {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}
