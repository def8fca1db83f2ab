//! What the metrics page says about the rounds of every controller.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::metrics::{labels, metrics};

/// From a round that finds nothing to do to one that writes thousands of objects.
const DURATIONS: [f64; 7] = [0.001, 0.01, 0.1, 1.0, 5.0, 20.0, 60.0];

labels! {
    RoundLabel { controller, result }
    ControllerLabel { controller }
}

/// How a round ended. One that the end of the term cut short is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundResult {
    Done,
    Failed,
    Panicked,
}

impl RoundResult {
    const ALL: [Self; 3] = [Self::Done, Self::Failed, Self::Panicked];

    fn name(self) -> &'static str {
        match self {
            Self::Done => "success",
            Self::Failed => "error",
            Self::Panicked => "panic",
        }
    }
}

metrics! {
    struct Counters {
        rounds: Family<RoundLabel, Counter> = "fairlead_controller_rounds",
            "Rounds of the controllers of the lease holder, by result; an error or a panic begins the controller anew";
    }
}

/// Counts rounds. Clones count the same.
#[derive(Debug, Clone)]
pub struct Rounds {
    counters: Counters,
    durations: Family<ControllerLabel, Histogram, fn() -> Histogram>,
}

impl Default for Rounds {
    fn default() -> Self {
        Self::with(Counters::default())
    }
}

impl Rounds {
    fn with(counters: Counters) -> Self {
        Self { counters, durations: Family::new_with_constructor(|| Histogram::new(DURATIONS)) }
    }

    pub fn register(registry: &mut Registry) -> Self {
        let rounds = Self::with(Counters::register_all(registry));
        registry.register(
            "fairlead_controller_round_duration_seconds",
            "Time that a round took which ended without an error",
            rounds.durations.clone(),
        );
        rounds
    }

    /// Shows a controller that has had no round yet.
    pub(super) fn show(&self, controller: &'static str) {
        for result in RoundResult::ALL {
            drop(self.counters.rounds.get_or_create(&RoundLabel { controller, result: result.name() }));
        }
    }

    pub(super) fn done(&self, controller: &'static str, after: Duration) {
        self.ended(controller, RoundResult::Done);
        self.durations.get_or_create(&ControllerLabel { controller }).observe(after.as_secs_f64());
    }

    pub(super) fn ended(&self, controller: &'static str, result: RoundResult) {
        self.counters.rounds.get_or_create(&RoundLabel { controller, result: result.name() }).inc();
    }
}
