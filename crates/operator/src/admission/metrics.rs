//! What can be seen of admission from outside.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// How a request ended. Every one but the first four is worth a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerKind {
    /// The Pod got another image.
    Rewritten,
    /// The Pod got its record and kept its images.
    Recorded,
    /// The Pod had the right record already.
    Unchanged,
    /// The Pod is not to be touched: the operator's own namespace, the mirror of a static Pod, or the configuration.
    Skipped,
    /// Not the creation of a Pod.
    Odd,
    Malformed,
    TooLarge,
    Overload,
    Late,
    Panic,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl AnswerKind {
    fn name(self) -> &'static str {
        match self {
            Self::Rewritten => "rewritten",
            Self::Recorded => "recorded",
            Self::Unchanged => "unchanged",
            Self::Skipped => "skipped",
            Self::Odd => "odd",
            Self::Malformed => "malformed",
            Self::TooLarge => "too_large",
            Self::Overload => "overload",
            Self::Late => "late",
            Self::Panic => "panic",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabel {
    policy: String,
}

/// Images that were given another reference, by the policy that offered it.
#[derive(Debug, Clone, Default)]
pub struct Rewrites(Family<PolicyLabel, Counter>);

impl Rewrites {
    pub fn register(registry: &mut Registry) -> Self {
        let rewrites = Self::default();
        registry.register(
            "fairlead_admission_rewrites",
            "Images that were given another reference at admission, by the policy that offered it",
            rewrites.0.clone(),
        );
        rewrites
    }

    pub(super) fn count(&self, policy: &str) {
        self.0.get_or_create(&PolicyLabel { policy: policy.to_owned() }).inc();
    }
}

/// Metrics of the admission webhook.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: Family<ResultLabel, Counter>,
    duration: Histogram,
    in_flight: Gauge,
    connections: Gauge,
    handshake_failures: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        // From an answer out of memory to the longest that an API server waits.
        let buckets =
            [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
        Self {
            requests: Family::default(),
            duration: Histogram::new(buckets),
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            handshake_failures: Counter::default(),
        }
    }
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "fairlead_admission_requests",
            "Requests of API servers about Pods, by how they ended",
            metrics.requests.clone(),
        );
        registry.register(
            "fairlead_admission_duration_seconds",
            "Time from the arrival of a request to its answer",
            metrics.duration.clone(),
        );
        registry.register(
            "fairlead_admission_in_flight",
            "Requests that are being answered",
            metrics.in_flight.clone(),
        );
        registry.register("fairlead_admission_connections", "Open connections", metrics.connections.clone());
        registry.register(
            "fairlead_admission_handshake_failures",
            "Connections that did not get through their TLS handshake",
            metrics.handshake_failures.clone(),
        );
        metrics
    }

    /// Counts as in flight until the guard is dropped.
    pub(super) fn begin(&self) -> GaugeGuard {
        GaugeGuard::of(&self.in_flight)
    }

    /// Counts as open until the guard is dropped.
    pub(super) fn connected(&self) -> GaugeGuard {
        GaugeGuard::of(&self.connections)
    }

    pub(super) fn handshake_failed(&self) {
        self.handshake_failures.inc();
    }

    pub(super) fn answered(&self, outcome: AnswerKind, after: Duration) {
        self.requests.get_or_create(&ResultLabel { result: outcome.name() }).inc();
        self.duration.observe(after.as_secs_f64());
    }
}

/// One unit of a gauge, given back when dropped.
#[derive(Debug)]
pub(super) struct GaugeGuard(Gauge);

impl GaugeGuard {
    fn of(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
