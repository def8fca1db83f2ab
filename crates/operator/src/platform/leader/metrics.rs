//! What the metrics page says about leadership.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Change {
    to: &'static str,
}

#[derive(Debug, Clone, Default)]
pub struct Metrics {
    leading: Gauge,
    transitions: Family<Change, Counter>,
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("fairlead_leader", "1 while this replica leads, else 0", metrics.leading.clone());
        registry.register(
            "kube_image_keeper_manager_is_leader",
            "1 while this replica leads, else 0; the name that kube-image-keeper uses",
            metrics.leading.clone(),
        );
        registry.register(
            "fairlead_leader_transitions",
            "Changes of leadership that this replica took part in",
            metrics.transitions.clone(),
        );
        // Both series exist from the start, so that an increase is never missed.
        for to in ["leading", "standby"] {
            drop(metrics.transitions.get_or_create(&Change { to }));
        }
        metrics
    }

    pub(super) fn started(&self) {
        self.leading.set(1);
        self.transitions.get_or_create(&Change { to: "leading" }).inc();
    }

    pub(super) fn ended(&self) {
        self.leading.set(0);
        self.transitions.get_or_create(&Change { to: "standby" }).inc();
    }
}
