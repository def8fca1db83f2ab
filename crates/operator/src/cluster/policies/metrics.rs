//! What the metrics page says about policies.

use std::collections::BTreeMap;

use fairlead_plan::routing::PolicyKind;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::compiled::{CompileState, CompiledPolicies};
use crate::controller::metrics::{labels, metrics};

labels! {
    OfPolicies { kind, state }
    OfWrites { result }
}

metrics! {
    pub struct Metrics {
        policies: Family<OfPolicies, Gauge> = "fairlead_policies",
            "Objects that routing follows, by whether they are used or broken";
        rebuilds: Counter = "fairlead_policy_index_rebuilds",
            "How often the index of all policies was built anew";
        writes: Family<OfWrites, Counter> = "fairlead_policy_status_writes",
            "Requests to write the status of a policy, by how they ended";
    }
}

const STATES: [&str; 2] = ["used", "broken"];

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::register_all(registry);
        for result in ["written", "failed"] {
            drop(metrics.writes.get_or_create(&OfWrites { result }));
        }
        metrics.count(&CompiledPolicies::default());
        metrics
    }

    pub(super) fn rebuilt(&self) {
        self.rebuilds.inc();
    }

    pub(super) fn wrote(&self, success: bool) {
        let result = if success { "written" } else { "failed" };
        self.writes.get_or_create(&OfWrites { result }).inc();
    }

    /// Requests to write a status that succeeded.
    pub fn written(&self) -> u64 {
        self.writes.get_or_create(&OfWrites { result: "written" }).get()
    }

    pub(super) fn count(&self, compiled: &CompiledPolicies) {
        let mut counts = BTreeMap::new();
        for (name, entry) in &compiled.entries {
            let state = if matches!(entry.state, CompileState::Compiled(_)) { "used" } else { "broken" };
            *counts.entry((name.kind, state)).or_insert(0_i64) += 1;
        }
        for kind in PolicyKind::ALL {
            for state in STATES {
                let count = counts.get(&(kind, state)).copied().unwrap_or(0);
                self.policies.get_or_create(&OfPolicies { kind: kind.name(), state }).set(count);
            }
        }
    }
}
