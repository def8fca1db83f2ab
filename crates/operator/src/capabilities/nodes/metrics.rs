//! What the metrics page says about mirror policies on nodes.

use std::sync::Arc;

use fairlead_api::conditions::ConditionStatus;
use fairlead_plan::node_config::status::{NodeCounts, Statuses};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::controller::metrics::{labels, metrics};

/// Policies with series of their own.
const MOST: usize = 500;

labels! {
    OfKind { kind }
    InState { state }
    OfPolicy { kind, name: Arc<str>, condition }
}

metrics! {
    /// Gauges of mirror policies.
    pub struct Metrics {
        policies: Family<OfKind, Gauge> =
            "fairlead_mirror_policies", "Mirror policies for nodes, by kind";
        sources: Gauge =
            "fairlead_mirror_policy_sources", "Sources that the mirror policies for nodes come to";
        nodes: Family<InState, Gauge> =
            "fairlead_mirror_policy_nodes", "Nodes that should follow mirror policies: applied, behind or failing";
        conditions: Family<OfPolicy, Gauge> =
            "fairlead_mirror_policy_condition", "1 while a condition of a mirror policy is True, 0 while it is False";
        unstored: Family<OfKind, Gauge> =
            "fairlead_mirror_policy_conditions_unstored",
            "1 for a kind whose definition, which is not Fairlead's, has no room for conditions";
    }
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        Self::register_all(registry)
    }

    pub(super) fn show(&self, Statuses { conditions, nodes }: &Statuses, sources: usize) {
        self.rest();
        for policy in conditions.keys() {
            self.policies.get_or_create(&OfKind { kind: policy.kind.name() }).inc();
        }
        set(&self.sources, sources);
        if let Some(NodeCounts { applied, behind, failing }) = *nodes {
            for (state, count) in [("applied", applied), ("behind", behind), ("failing", failing)] {
                set(&self.nodes.get_or_create(&InState { state }), count);
            }
        }
        for (policy, findings) in conditions.iter().take(MOST) {
            for finding in findings.iter().filter(|finding| finding.status != ConditionStatus::Unknown) {
                let labels = OfPolicy {
                    kind: policy.kind.name(),
                    name: policy.name.as_str().into(),
                    condition: finding.type_,
                };
                let holds = finding.status == ConditionStatus::True;
                self.conditions.get_or_create(&labels).set(holds.into());
            }
        }
    }

    pub(super) fn unstored(&self, kind: &'static str, is_unstored: bool) {
        self.unstored.get_or_create(&OfKind { kind }).set(is_unstored.into());
    }

    /// This replica does not lead any more.
    pub(super) fn rest(&self) {
        self.policies.clear();
        self.sources.set(0);
        self.nodes.clear();
        self.conditions.clear();
    }

    pub(super) fn end(&self) {
        self.rest();
        self.unstored.clear();
    }
}

fn set(gauge: &Gauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}
