//! Looks at images in their registries, on the lease holder, before an outage needs them.
//!
//! Images are looked at, each at the pace that the configuration sets for its registry: those that
//! `ClusterImageSetAvailability` objects watch, the sources of mirrors, whose tags may move, the copies in mirrors,
//! which may get lost, and tags that the inventory or mirror policies of nodes compare. What is found goes into the
//! ledgers of the objects, to the mirrors, and to admission, which then knows without asking. Registries are
//! independent of each other: each has at most one look under way, and every look ends.

mod controller;
mod metrics;
mod news;
mod object;
mod prober;
mod status;
mod write_urgency;

use std::fmt;
use std::sync::Arc;

use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::availability::MirrorLooks;
use fairlead_plan::credentials::Principal;
use fairlead_plan::exclusions::Exclusions;
use tokio::sync::{mpsc, watch};

pub use controller::AvailabilityWatch;
pub use metrics::Metrics;

use prober::Prober;

use crate::context::Context;

/// What a look at an image found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub reference: Reference,
    /// With whose credentials.
    pub principal: Principal,
    pub verdict: Verdict,
}

/// What the watch works with.
pub struct AvailabilitySetup {
    context: Arc<Context>,
    prober: Arc<Prober>,
    exclusions: Arc<Exclusions>,
    mirrors: watch::Receiver<Arc<MirrorLooks>>,
    accounts: watch::Receiver<Arc<MirrorLooks>>,
    policies: watch::Receiver<Arc<MirrorLooks>>,
    metrics: Metrics,
}

impl fmt::Debug for AvailabilitySetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AvailabilitySetup").field("prober", &self.prober).finish_non_exhaustive()
    }
}

impl AvailabilitySetup {
    /// `mirrors` says what mirrors want looked at, `seen` takes what was found of it.
    pub fn new(
        context: Arc<Context>,
        mirrors: watch::Receiver<Arc<MirrorLooks>>,
        seen: mpsc::Sender<Seen>,
        metrics: Metrics,
    ) -> Self {
        let prober = Arc::new(Prober::new(context.clone(), seen));
        let exclusions = Arc::new(context.config.exclusions());
        let [accounts, policies] = [(), ()].map(|()| watch::channel(Arc::default()).1);
        Self { context, prober, exclusions, mirrors, accounts, policies, metrics }
    }

    /// The same with what the inventory wants looked at; `seen` takes what was found of any image.
    #[must_use]
    pub fn with_accounts(
        mut self,
        wishes: watch::Receiver<Arc<MirrorLooks>>,
        seen: mpsc::Sender<Seen>,
    ) -> Self {
        self.prober = Arc::new(Prober::clone(&self.prober).accounting(seen));
        self.accounts = wishes;
        self
    }

    /// The same with tags that mirror policies of nodes want compared.
    #[must_use]
    pub fn with_policies(
        mut self,
        wishes: watch::Receiver<Arc<MirrorLooks>>,
        seen: mpsc::Sender<Seen>,
    ) -> Self {
        self.prober = Arc::new(Prober::clone(&self.prober).telling(seen));
        self.policies = wishes;
        self
    }
}
