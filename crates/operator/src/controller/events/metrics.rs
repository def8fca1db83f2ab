//! What the metrics page says about events.

use fairlead_plan::routing_events::EventKind;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::controller::metrics::{labels, metrics};

labels! {
    OfEvents { reason, result }
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
    Created,
    /// It was there already.
    Exists,
    /// Its Pod was gone, or too old by the time it could have been emitted.
    Late,
    /// There were too many at once.
    Dropped,
    /// The API server does not take it.
    Failed,
}

impl SendOutcome {
    const ALL: [Self; 5] = [Self::Created, Self::Exists, Self::Late, Self::Dropped, Self::Failed];

    fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Exists => "exists",
            Self::Late => "late",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
        }
    }
}

metrics! {
    pub struct Metrics {
        events: Family<OfEvents, Counter> = "fairlead_events", "Kubernetes events, by what became of them";
    }
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::register_all(registry);
        for kind in EventKind::ALL {
            for outcome in SendOutcome::ALL {
                drop(metrics.events.get_or_create(&labels(kind.reason(), outcome)));
            }
        }
        metrics
    }

    pub(super) fn count(&self, reason: &'static str, outcome: SendOutcome) {
        self.events.get_or_create(&labels(reason, outcome)).inc();
    }

    /// How many events with a reason ended this way.
    pub fn counted(&self, reason: &'static str, outcome: SendOutcome) -> u64 {
        self.events.get_or_create(&labels(reason, outcome)).get()
    }
}

fn labels(reason: &'static str, outcome: SendOutcome) -> OfEvents {
    OfEvents { reason, result: outcome.name() }
}
