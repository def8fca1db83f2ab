//! What the metrics page says about discovery, by the names that Drop's dashboard knows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::controller::metrics::metrics;

/// Seconds; the bounds that Prometheus' own libraries have.
const LATENCIES: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfSource {
    policy: Arc<str>,
    source_type: &'static str,
    /// Name of the query: addresses may hold what should not be shown.
    endpoint: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfType {
    policy: Arc<str>,
    source_type: &'static str,
}

metrics! {
    struct Gauges {
        health: Family<OfSource, Gauge> =
            "drop_discovery_source_health", "Whether a query of a policy succeeded when it was last sent";
        found: Family<OfType, Gauge> =
            "drop_discovery_images_found", "Different images that the queries of a policy returned, before ranking";
    }
}

/// What the page says about discovery. The lease holder alone says something.
#[derive(Debug, Clone)]
pub struct Metrics {
    gauges: Gauges,
    latency: Family<OfType, Histogram, fn() -> Histogram>,
}

/// What one query of a policy came to.
pub(super) struct Measured<'a> {
    pub(super) source_type: &'static str,
    pub(super) name: &'a str,
    pub(super) healthy: bool,
    pub(super) took: Duration,
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let latency: Family<OfType, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(LATENCIES));
        registry.register(
            "drop_discovery_source_latency_seconds",
            "Time that a query of a policy took, with all its requests",
            latency.clone(),
        );
        Self { gauges: Gauges::register_all(registry), latency }
    }

    /// Shows how the queries of a policy went in its last round, and nothing of the rounds before.
    pub(super) fn show(&self, policy: &Arc<str>, queries: &[Measured<'_>]) {
        for &Measured { source_type, name, healthy, took } in queries {
            let (policy, endpoint) = (policy.clone(), name.to_owned());
            let labels = OfType { policy: policy.clone(), source_type };
            self.latency.get_or_create(&labels).observe(took.as_secs_f64());
            let labels = OfSource { policy, source_type, endpoint };
            self.gauges.health.get_or_create(&labels).set(i64::from(healthy));
        }
    }

    /// Shows how many images came back in the last round of a policy, by kind of query.
    pub(super) fn show_found(&self, policy: &Arc<str>, found: &BTreeMap<&'static str, usize>) {
        for (&source_type, &images) in found {
            let labels = OfType { policy: policy.clone(), source_type };
            self.gauges.found.get_or_create(&labels).set(i64::try_from(images).unwrap_or(i64::MAX));
        }
    }

    /// Forgets the queries of a policy that was deleted, or edited.
    pub(super) fn forget(&self, policy: &Arc<str>, queries: &[(&'static str, &str)]) {
        for (source_type, name) in queries {
            let (policy, endpoint) = (policy.clone(), (*name).to_owned());
            let labels = OfType { policy: policy.clone(), source_type };
            self.latency.remove(&labels);
            self.gauges.found.remove(&labels);
            self.gauges.health.remove(&OfSource { policy, source_type, endpoint });
        }
    }

    /// This replica does not lead any more.
    pub(super) fn rest(&self) {
        self.gauges.health.clear();
        self.gauges.found.clear();
        self.latency.clear();
    }
}
