//! What the metrics page says about watches.

use fairlead_plan::capability::Capability;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::controller::metrics::{labels, metrics};
use crate::platform::api_error::Class;

labels! {
    OfKind { kind }
    OfFailure { kind, reason }
    OfCapability { capability }
}

metrics! {
    pub struct Metrics {
        objects: Family<OfKind, Gauge> = "fairlead_watched_objects",
            "Objects of a kind that this replica knows";
        malformed: Family<OfKind, Gauge> = "fairlead_malformed_objects",
            "Stored objects of a kind that cannot be read and are therefore ignored";
        lists: Family<OfKind, Counter> = "fairlead_watch_lists",
            "How often all objects of a kind were listed";
        failures: Family<OfFailure, Counter> = "fairlead_watch_failures",
            "Failed requests of a watch, by what went wrong";
        capabilities: Family<OfCapability, Gauge> = "fairlead_capability_enabled",
            "1 for a capability that works in this cluster; 0 if its kinds are missing";
        images: Gauge = "fairlead_images_in_use", "Different images that the specifications of all Pods name";
    }
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::register_all(registry);
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

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
