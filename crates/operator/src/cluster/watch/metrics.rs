//! What the metrics page says about watches.

use fairlead_plan::capability::Capability;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::platform::api_error::Class;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFailure {
    kind: &'static str,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCapability {
    capability: &'static str,
}

#[derive(Debug, Clone, Default)]
pub struct Metrics {
    objects: Family<OfKind, Gauge>,
    malformed: Family<OfKind, Gauge>,
    lists: Family<OfKind, Counter>,
    failures: Family<OfFailure, Counter>,
    capabilities: Family<OfCapability, Gauge>,
    images: Gauge,
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "fairlead_watched_objects",
            "Objects of a kind that this replica knows",
            metrics.objects.clone(),
        );
        registry.register(
            "fairlead_malformed_objects",
            "Stored objects of a kind that cannot be read and are therefore ignored",
            metrics.malformed.clone(),
        );
        registry.register(
            "fairlead_watch_lists",
            "How often all objects of a kind were listed",
            metrics.lists.clone(),
        );
        registry.register(
            "fairlead_watch_failures",
            "Failed requests of a watch, by what went wrong",
            metrics.failures.clone(),
        );
        registry.register(
            "fairlead_capability_enabled",
            "1 for a capability that works in this cluster; 0 if its kinds are missing or it is not implemented",
            metrics.capabilities.clone(),
        );
        registry.register(
            "fairlead_images_in_use",
            "Different images that the specifications of all Pods name",
            metrics.images.clone(),
        );
        for capability in Capability::ALL {
            metrics.set_capability(capability, false);
        }
        metrics
    }

    pub(super) fn set_counts(&self, kind: &'static str, objects: usize, malformed: usize) {
        self.objects.get_or_create(&OfKind { kind }).set(gauge(objects));
        self.malformed.get_or_create(&OfKind { kind }).set(gauge(malformed));
    }

    /// A kind that is not there has no number of objects, not even zero.
    pub(super) fn forget_counts(&self, kind: &'static str) {
        self.objects.remove(&OfKind { kind });
        self.malformed.remove(&OfKind { kind });
    }

    pub(super) fn set_images(&self, images: usize) {
        self.images.set(gauge(images));
    }

    pub(super) fn listed(&self, kind: &'static str) {
        self.lists.get_or_create(&OfKind { kind }).inc();
    }

    pub(super) fn failed(&self, kind: &'static str, class: Class) {
        self.failures.get_or_create(&OfFailure { kind, reason: class.name() }).inc();
    }

    pub(super) fn set_capability(&self, capability: Capability, on: bool) {
        self.capabilities.get_or_create(&OfCapability { capability: capability.name() }).set(i64::from(on));
    }
}

#[cfg(test)]
impl Metrics {
    pub(super) fn is_enabled(&self, capability: Capability) -> bool {
        self.capabilities.get_or_create(&OfCapability { capability: capability.name() }).get() == 1
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
