//! The policies of the cluster, compiled: what admission asks on every replica, and what the status of each policy says
//! about itself by the lease holder.
//!
//! Readers get one immutable index that is replaced whole. A broken object is left out of it, alone, and says why in
//! its own status. Before a watch has listed its kind there is nothing of that kind in the index; readiness waits for
//! that.

mod compiled;
mod kinds;
mod metrics;
mod status;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use fairlead_domain::reference::HostPattern;
use fairlead_plan::routing::{Index, PolicyKind};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use compiled::{Name, PolicyProblem};
pub use metrics::Metrics;
pub use status::{PolicyStatus, RATE, Statuses};

use compiled::{CompiledPolicies, Terms};
use kinds::Sources;

use crate::cluster::state::{Bell, Changes};
use crate::cluster::watch::Resources;
use crate::platform::config::Config;

/// The shortest time between two rebuilds. The first change after a quiet time is seen at once; what follows in a burst
/// is seen together.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// The present policies. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Policies {
    shared: Arc<PoliciesInner>,
}

#[derive(Debug)]
struct PoliciesInner {
    sources: Sources,
    compiled: ArcSwap<CompiledPolicies>,
    changed: Bell,
    metrics: Metrics,
    /// The registries that namespaced policies may name.
    allowed: Arc<[HostPattern]>,
    /// What Pods know Harbor by.
    pull_host: Option<Arc<str>>,
}

impl Policies {
    pub fn new(resources: &Resources, config: &Config, metrics: Metrics) -> Self {
        Self {
            shared: Arc::new(PoliciesInner {
                sources: Sources::from(resources),
                compiled: ArcSwap::default(),
                changed: Bell::default(),
                metrics,
                allowed: config.routing.namespaced_registries.as_slice().into(),
                pull_host: config.harbor.pull_host().map(Into::into),
            }),
        }
    }

    /// Whether objects of the kind are policies.
    pub fn follows(kind: &str) -> bool {
        PolicyKind::ALL.iter().any(|policy| policy.name() == kind)
    }

    /// All policies that work, as they are now.
    pub fn current(&self) -> Arc<Index> {
        self.shared.compiled.load().index.clone()
    }

    /// Takes policies that were compiled elsewhere, where no watch runs.
    pub fn hold(&self, index: Index) {
        let compiled =
            CompiledPolicies { index: Arc::new(index), generation: 1, ..CompiledPolicies::default() };
        self.shared.compiled.store(Arc::new(compiled));
    }

    /// Whether everything that the watches have brought so far has been compiled.
    pub fn is_up_to_date(&self) -> bool {
        let view = self.shared.sources.view();
        self.shared.compiled.load().covers(&view)
    }

    /// How often the index was replaced.
    pub fn generation(&self) -> u64 {
        self.shared.compiled.load().generation
    }

    /// Objects that are not used, or not entirely, and why. Unusable Secrets are not among the reasons.
    pub fn problems(&self) -> Vec<PolicyProblem> {
        self.shared.compiled.load().problems()
    }

    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    fn compiled(&self) -> Arc<CompiledPolicies> {
        self.shared.compiled.load_full()
    }

    /// Word of every look at the policies that follows.
    pub(crate) fn changes(&self) -> Changes {
        self.shared.changed.listen()
    }

    /// Keeps the index in step with the objects until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&self) {
        let mut changes = self.shared.sources.changes();
        loop {
            let begun = Instant::now();
            self.look().await;
            Changes::any(&mut changes).await;
            tokio::time::sleep_until(begun + SHORTEST_INTERVAL).await;
        }
    }

    /// Compiles what changed, beside the threads that serve requests, and replaces the index if it is another one now.
    async fn look(&self) {
        let (before, view) = (self.compiled(), self.shared.sources.view());
        let compiling = {
            let (before, shared) = (before.clone(), self.shared.clone());
            tokio::task::spawn_blocking(move || {
                let terms = Terms { allowed: &shared.allowed, pull_host: shared.pull_host.as_deref() };
                before.next(&view, terms)
            })
        };
        let compiled = match compiling.await {
            Ok(compiled) => compiled,
            Err(error) => {
                tracing::error!(%error, "policies could not be compiled, the former ones stay in force; this is a bug");
                return;
            }
        };
        self.shared.metrics.count(&compiled);
        if compiled.generation != before.generation {
            self.shared.metrics.rebuilt();
        }
        self.shared.compiled.store(Arc::new(compiled));
        self.shared.changed.ring();
    }
}
