//! What the metrics page says about mirrors. Numbers of copies are those of the lease holder; others show none.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fairlead_api::fairlead::CopyState;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::controller::metrics::{labels, metrics};

labels! {
    OfOutcome { outcome }
    OfState { state }
    OfWrite { what, outcome }
}

const STATES: [(CopyState, &str); 5] = [
    (CopyState::Pending, "Pending"),
    (CopyState::Mirrored, "Mirrored"),
    (CopyState::Failed, "Failed"),
    (CopyState::Refused, "Refused"),
    (CopyState::Deleting, "Deleting"),
];

/// Copies by state.
pub(super) type States = [i64; STATES.len()];

/// Where a state is counted.
pub(super) fn place_of(state: CopyState) -> usize {
    STATES.iter().position(|(one, _)| *one == state).unwrap_or_default()
}

metrics! {
    pub struct Metrics {
        states: Family<OfState, Gauge> = "fairlead_mirror_copies",
            "Copies of images by their state, as the lease holder sees them";
        copies: Family<OfOutcome, Counter> = "fairlead_mirror_copied",
            "Attempts to copy an image: copied, present (it was there), or failed";
        bytes: Counter = "fairlead_mirror_bytes", "Bytes of blobs sent to mirrors";
        waiting: Gauge = "fairlead_mirror_waiting", "Copies and removals that wait for their turn";
        running: Gauge = "fairlead_mirror_running", "Copies and removals under way";
        oldest: Gauge<f64, AtomicU64> = "fairlead_mirror_oldest_waiting_seconds",
            "Age of the task that has waited longest; 0 when none waits";
        drift: Counter = "fairlead_mirror_drift",
            "Tags that were found to name another image upstream than when they were copied";
        deletions: Family<OfOutcome, Counter> = "fairlead_mirror_deletions",
            "Removals of copies: removed, kept (it is not ours any more, or cannot be removed alone), or failed";
        writes: Family<OfWrite, Counter> = "fairlead_mirror_writes",
            "Requests to the API server that wrote a ledger, a status or a finalizer";
    }
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::register_all(registry);
        for outcome in ["copied", "present", "failed"] {
            drop(metrics.copies.get_or_create(&OfOutcome { outcome }));
        }
        for outcome in ["removed", "kept", "failed"] {
            drop(metrics.deletions.get_or_create(&OfOutcome { outcome }));
        }
        metrics.count(&States::default());
        metrics
    }

    pub(super) fn sent(&self, bytes: u64) {
        self.bytes.inc_by(bytes);
    }

    pub(super) fn copied(&self, outcome: &'static str) {
        self.copies.get_or_create(&OfOutcome { outcome }).inc();
    }

    pub(super) fn drifted(&self) {
        self.drift.inc();
    }

    pub(super) fn deleted(&self, outcome: &'static str) {
        self.deletions.get_or_create(&OfOutcome { outcome }).inc();
    }

    pub(super) fn wrote(&self, what: &'static str, well: bool) {
        let outcome = if well { "written" } else { "failed" };
        self.writes.get_or_create(&OfWrite { what, outcome }).inc();
    }

    pub(super) fn count(&self, states: &States) {
        for ((_, state), number) in STATES.iter().zip(states) {
            self.states.get_or_create(&OfState { state }).set(*number);
        }
    }

    pub(super) fn queue(&self, waiting: usize, running: usize, oldest: Option<Duration>) {
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        self.running.set(i64::try_from(running).unwrap_or(i64::MAX));
        self.oldest.set(oldest.unwrap_or_default().as_secs_f64());
    }

    /// This replica does not lead any more.
    pub(super) fn rest(&self) {
        self.count(&States::default());
        self.queue(0, 0, None);
    }
}
