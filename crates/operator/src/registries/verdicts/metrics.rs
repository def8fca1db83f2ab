//! What can be seen from outside of asking registries.
//!
//! Registries are named in labels, up to a bound, since their names come from Pods; images never are.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use fairlead_domain::verdict::VerdictKind;
use fairlead_plan::named_registries::Named;
use fairlead_registry::Client;
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{
        MetricType,
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::Registry,
};

use super::refresh::Outcome;
use crate::platform::telemetry::{OTHERS, RegistryLabels};

/// Why a registry was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Somebody wanted to know now.
    Admission,
    Refresh,
}

impl Source {
    const fn name(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Refresh => "refresh",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProbeLabels {
    registry: Arc<str>,
    source: &'static str,
    verdict: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RegistryLabel {
    registry: Arc<str>,
}

/// Metrics of verdicts and of the probes behind them.
#[derive(Clone, Debug)]
pub struct Metrics {
    probes: Family<ProbeLabels, Counter>,
    duration: Histogram,
    lookups: Family<ResultLabel, Counter>,
    // Looked up once: counting is part of every answer from memory.
    hits: Counter,
    misses: Counter,
    checked: Counter,
    down: Counter,
    refreshes: Family<ResultLabel, Counter>,
    kept: Gauge,
    named: Arc<Mutex<RegistryLabels>>,
}

impl Default for Metrics {
    fn default() -> Self {
        // From a registry next door to the longest that an API server waits.
        let buckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
        let lookups = Family::<ResultLabel, Counter>::default();
        let lookup = |result| lookups.get_or_create(&ResultLabel { result }).clone();
        let (hits, misses) = (lookup("hit"), lookup("miss"));
        let (checked, down) = (lookup("checked"), lookup("registry-down"));
        let refreshes = Family::<ResultLabel, Counter>::default();
        for outcome in Outcome::ALL {
            drop(refreshes.get_or_create(&ResultLabel { result: outcome.name() }));
        }
        Self {
            probes: Family::default(),
            duration: Histogram::new(buckets),
            lookups,
            hits,
            misses,
            checked,
            down,
            refreshes,
            kept: Gauge::default(),
            named: Arc::default(),
        }
    }
}

impl Metrics {
    pub fn register(registry: &mut Registry, client: &Client) -> Self {
        let metrics = Self::default();
        registry.register(
            "fairlead_probes",
            "Probes of images, by registry, by what asked for them and by what they found",
            metrics.probes.clone(),
        );
        registry.register(
            "fairlead_probe_duration_seconds",
            "Time from a question to a registry to its answer, waiting for the registry's budget included",
            metrics.duration.clone(),
        );
        registry.register(
            "fairlead_verdict_lookups",
            "Looks for what is known about an image, by what they found",
            metrics.lookups.clone(),
        );
        registry.register(
            "fairlead_verdict_refreshes",
            "Refreshes of verdicts in use, by what became of the verdict",
            metrics.refreshes.clone(),
        );
        registry.register("fairlead_verdicts", "Verdicts in memory", metrics.kept.clone());
        let named = Arc::clone(&metrics.named);
        registry.register_collector(Box::new(Down { client: client.clone(), named }));
        metrics
    }

    pub(super) fn hit(&self) {
        self.hits.inc();
    }

    pub(super) fn missed(&self) {
        self.misses.inc();
    }

    /// A caller waited for a liveness check.
    pub(super) fn checked(&self) {
        self.checked.inc();
    }

    /// A registry that is down was the answer.
    pub(super) fn answered_for_registry(&self) {
        self.down.inc();
    }

    pub(super) fn probed(&self, host: &str, source: Source, found: VerdictKind, after: Duration) {
        let source = source.name();
        let labels = ProbeLabels { registry: self.labels().get(host), source, verdict: found.name() };
        self.probes.get_or_create(&labels).inc();
        self.duration.observe(after.as_secs_f64());
    }

    pub(super) fn refreshed(&self, outcome: Outcome) {
        self.refreshes.get_or_create(&ResultLabel { result: outcome.name() }).inc();
    }

    pub(super) fn kept(&self, verdicts: usize) {
        self.kept.set(i64::try_from(verdicts).unwrap_or(i64::MAX));
    }

    /// Gives a registry a label on account of a namespace, if it may have one.
    pub(super) fn name(&self, host: &str, namespace: &str) {
        self.labels().of(host, namespace);
    }

    /// Gives labels to the registries that are named on purpose.
    pub(super) fn reserve(&self, named: &Named) {
        let mut labels = self.labels();
        labels.reserve(named.by_administrators().cloned());
        for (host, namespace) in named.by_tenants() {
            labels.of(host, namespace);
        }
    }

    /// Ends the series of a registry that is forgotten.
    pub(super) fn free(&self, host: &str) {
        let registry = self.labels().get(host);
        if *registry == *OTHERS {
            return;
        }
        self.labels().free(host);
        for source in [Source::Admission, Source::Refresh] {
            for verdict in VerdictKind::ALL {
                let (registry, source) = (Arc::clone(&registry), source.name());
                self.probes.remove(&ProbeLabels { registry, source, verdict: verdict.name() });
            }
        }
    }

    fn labels(&self) -> MutexGuard<'_, RegistryLabels> {
        self.named.lock()
    }
}

/// Which registries are down, read from the client at each scrape.
#[derive(Debug)]
struct Down {
    client: Client,
    named: Arc<Mutex<RegistryLabels>>,
}

impl Collector for Down {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut states: BTreeMap<Arc<str>, bool> = BTreeMap::new();
        {
            let labels = self.named.lock();
            for (host, health) in self.client.healths() {
                // Of those that share a label, one that is down counts.
                *states.entry(labels.get(host.as_str())).or_default() |= health.is_down();
            }
        }
        if states.is_empty() {
            return Ok(());
        }
        let mut metric = encoder.encode_descriptor(
            "fairlead_registry_down",
            "Whether a registry counts as down: 1 until a trial of ours is answered",
            None,
            MetricType::Gauge,
        )?;
        for (registry, is_down) in states {
            ConstGauge::new(i64::from(is_down)).encode(metric.encode_family(&RegistryLabel { registry })?)?;
        }
        Ok(())
    }
}
