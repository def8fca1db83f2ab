//! What the metrics page says about proxy caches, by the name that harbor-reef-operator gave it.

use std::sync::Arc;

use fairlead_api::reef::ProxyCacheType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::controller::metrics::{labels, metrics};

labels! {
    OfCache { proxycache: Arc<str>, registry_type }
    Looked { result }
}

metrics! {
    /// Gauge and counters of proxy caches.
    pub struct Metrics {
        healthy: Family<OfCache, Gauge> =
            "proxycache_healthy", "Whether Harbor says that the upstream is healthy (1) or not (0)";
        looks: Family<Looked, Counter> =
            "fairlead_proxycache_looks", "Looks at what Harbor holds for a ProxyCache";
    }
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        Self::register_all(registry)
    }

    pub(super) fn set(&self, name: &Arc<str>, kind: ProxyCacheType, healthy: bool) {
        self.healthy.get_or_create(&of(name, kind)).set(healthy.into());
    }

    pub(super) fn forget(&self, name: &Arc<str>, kind: ProxyCacheType) {
        self.healthy.remove(&of(name, kind));
    }

    pub(super) fn looked(&self, succeeded: bool) {
        let result = if succeeded { "success" } else { "error" };
        self.looks.get_or_create(&Looked { result }).inc();
    }

    /// This replica does not lead any more.
    pub(super) fn rest(&self) {
        self.healthy.clear();
    }
}

fn of(name: &Arc<str>, kind: ProxyCacheType) -> OfCache {
    let registry_type = match kind {
        ProxyCacheType::Public => "public",
        ProxyCacheType::Private => "private",
        ProxyCacheType::AwsEcrPrivate => "aws-ecr-private",
    };
    OfCache { proxycache: name.clone(), registry_type }
}
