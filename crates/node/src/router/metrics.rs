//! What the router counts: which mirror served, and what was left to sources or refused.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The mirror has it.
    Served,
    /// The mirror was asked in vain.
    Failed,
    /// The runtime asks the source.
    Source,
    Refused,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Failed => "failed",
            Self::Source => "source",
            Self::Refused => "refused",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    outcome: &'static str,
    /// Registry of the mirror; of the image, as policies name it, where no mirror has a part in the outcome.
    registry: String,
}

#[derive(Debug, Default)]
pub(super) struct Metrics {
    requests: Family<Labels, Counter>,
    bytes: Family<Mirror, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Mirror {
    registry: String,
}

impl Metrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "fairlead_router_requests",
            "Requests of the runtime, by what became of them",
            self.requests.clone(),
        );
        registry.register(
            "fairlead_router_bytes",
            "Bytes of layers and configurations that the router passed on from mirrors",
            self.bytes.clone(),
        );
    }

    pub(super) fn count(&self, outcome: Outcome, registry: &str) {
        self.requests.get_or_create(&Labels { outcome: outcome.name(), registry: registry.to_owned() }).inc();
    }

    pub(super) fn passed_on(&self, registry: &str) -> Counter {
        self.bytes.get_or_create(&Mirror { registry: registry.to_owned() }).clone()
    }
}
