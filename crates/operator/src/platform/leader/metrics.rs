//! What the metrics page says about leadership.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::controller::metrics::{labels, metrics};

labels! {
    Transition { to }
}

metrics! {
    pub struct Metrics {
        leading: Gauge = "fairlead_leader", "1 while this replica leads, else 0";
        keeper_leading: Gauge = "kube_image_keeper_manager_is_leader",
            "1 while this replica leads, else 0; the name that kube-image-keeper uses";
        transitions: Family<Transition, Counter> = "fairlead_leader_transitions",
            "Changes of leadership that this replica took part in";
    }
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::register_all(registry);
        // Both series exist from the start, so that an increase is never missed.
        for to in ["leading", "standby"] {
            drop(metrics.transitions.get_or_create(&Transition { to }));
        }
        metrics
    }

    pub(super) fn started(&self) {
        self.change(1, "leading");
    }

    pub(super) fn ended(&self) {
        self.change(0, "standby");
    }

    fn change(&self, leading: i64, to: &'static str) {
        self.leading.set(leading);
        self.keeper_leading.set(leading);
        self.transitions.get_or_create(&Transition { to }).inc();
    }
}
