//! What can be seen from outside of asking registries.
//!
//! Registries are named in labels, up to a bound, since their names come from Pods; images never are.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::verdict::VerdictKind;
use fairlead_plan::named_registries::Named;
use fairlead_registry::Client;
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::refresh::RefreshOutcome;
use crate::controller::metrics::{labels, metrics};
use crate::platform::telemetry::{OTHERS, RegistryLabels};

/// Why a registry was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeCause {
    /// A caller waits for it.
    Admission,
    Refresh,
}

impl ProbeCause {
    const fn name(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Refresh => "refresh",
        }
    }
}

labels! {
    ProbeLabels { registry: Arc<str>, source, verdict }
    ResultLabel { result }
    RegistryLabel { registry: Arc<str> }
}

metrics! {
    struct Counters {
        probes: Family<ProbeLabels, Counter> =
            "fairlead_probes", "Probes of images, by registry, by what asked for them and by what they found";
        lookups: Family<ResultLabel, Counter> =
            "fairlead_verdict_lookups", "Looks for what is known about an image, by what they found";
        refreshes: Family<ResultLabel, Counter> =
            "fairlead_verdict_refreshes", "Refreshes of verdicts in use, by what became of the verdict";
        kept: Gauge = "fairlead_verdicts", "Verdicts in memory";
    }
}

/// Metrics of verdicts and of the probes behind them.
#[derive(Clone, Debug)]
pub struct Metrics {
    counters: Counters,
    duration: Histogram,
    // Looked up once: counting is part of every answer from memory.
    hits: Counter,
    misses: Counter,
    checked: Counter,
    down: Counter,
    named: Arc<Mutex<RegistryLabels>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(Counters::default())
    }
}

impl Metrics {
    fn new(counters: Counters) -> Self {
        let lookup = |result| counters.lookups.get_or_create(&ResultLabel { result }).clone();
        let (hits, misses) = (lookup("hit"), lookup("miss"));
        let (checked, down) = (lookup("checked"), lookup("registry-down"));
        for outcome in RefreshOutcome::ALL {
            drop(counters.refreshes.get_or_create(&ResultLabel { result: outcome.name() }));
        }
        // From a registry next door to the longest that an API server waits.
        let buckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
        let duration = Histogram::new(buckets);
        Self { counters, duration, hits, misses, checked, down, named: Arc::default() }
    }

    pub fn register(registry: &mut Registry, client: &Client) -> Self {
        let metrics = Self::new(Counters::register_all(registry));
        registry.register(
            "fairlead_probe_duration_seconds",
            "Time from a question to a registry to its answer, waiting for the registry's budget included",
            metrics.duration.clone(),
        );
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

    pub(super) fn probed(&self, host: &str, source: ProbeCause, found: VerdictKind, after: Duration) {
        let source = source.name();
        let labels = ProbeLabels { registry: self.labels().get(host), source, verdict: found.name() };
        self.counters.probes.get_or_create(&labels).inc();
        self.duration.observe(after.as_secs_f64());
    }

    pub(super) fn refreshed(&self, outcome: RefreshOutcome) {
        self.counters.refreshes.get_or_create(&ResultLabel { result: outcome.name() }).inc();
    }

    pub(super) fn kept(&self, verdicts: usize) {
        self.counters.kept.set(i64::try_from(verdicts).unwrap_or(i64::MAX));
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
        for source in [ProbeCause::Admission, ProbeCause::Refresh] {
            for verdict in VerdictKind::ALL {
                let (registry, source) = (Arc::clone(&registry), source.name());
                self.counters.probes.remove(&ProbeLabels { registry, source, verdict: verdict.name() });
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
