//! Looks at images in their registries, on the lease holder, before an outage needs them.
//!
//! Three kinds of images are looked at, each at the pace that the configuration sets for its registry: those that
//! `ClusterImageSetAvailability` objects watch, the sources of mirrors, whose tags may move, and the copies in mirrors, which
//! may get lost. What is found goes into the ledgers of the objects, to the mirrors, and to admission, which then knows
//! without asking. Registries are independent of each other: each has at most one look under way, and every look ends.

mod metrics;
mod news;
mod object;
mod prober;
mod status;
mod work;
mod write_schedule;

use std::fmt;
use std::sync::Arc;

use fairlead_domain::cause::Cause;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::credentials::Principal;
use fairlead_plan::routing::SecretName;
use fairlead_plan::usage::Holder;
use fairlead_registry::Client as Registries;
use jiff::Timestamp;
use kube::Client;
use tokio::sync::{mpsc, watch};

pub use metrics::Metrics;

use prober::Looker;
use work::Work;

use crate::cluster::ledgers::Shelves;
use crate::cluster::policies::Policies;
use crate::cluster::usage::Ignored;
use crate::cluster::watch::{Board, Resources};
use crate::controller::events::Teller;
use crate::platform::clock::Clock;
use crate::platform::config::Config;
use crate::platform::leader::{Leader, Term};
use crate::registries::secrets::Secrets;
use crate::registries::verdicts::Verdicts;

/// One image that a mirror wants looked at: a source or a copy.
#[derive(Debug, Clone)]
pub struct MirrorLook {
    pub reference: Reference,
    /// When it was last looked at, or copied.
    pub last: Timestamp,
    /// Whose pull secrets open it.
    pub holders: Arc<[Holder]>,
    /// Shared by all images that are looked at in the same way.
    pub access: Arc<LookAccess>,
}

/// Whose request a look is, and what it may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookAccess {
    /// What the look finds is used for this principal only.
    pub principal: Principal,
    /// The mirror's own Secret, for its copies; it is tried first.
    pub secret: Option<SecretName>,
    /// Who chose the host.
    pub cause: Cause,
}

/// Everything that mirrors want looked at.
#[derive(Debug, Default)]
pub struct MirrorLooks {
    /// In order of references and principals, each once.
    list: Vec<MirrorLook>,
}

impl MirrorLooks {
    /// Of an image that is named twice on behalf of one principal the first counts, and what an administrator answers for
    /// before all.
    pub fn new(mut list: Vec<MirrorLook>) -> Self {
        list.sort_by(|one, other| {
            let [by, others] =
                [one, other].map(|look| (&look.reference, &look.access.principal, look.access.cause));
            by.cmp(&others)
        });
        list.dedup_by(|one, other| {
            one.reference == other.reference && one.access.principal == other.access.principal
        });
        Self { list }
    }

    pub fn iter(&self) -> impl Iterator<Item = &MirrorLook> {
        self.list.iter()
    }

    /// Those of one image.
    pub fn of(&self, reference: &Reference) -> impl Iterator<Item = &MirrorLook> {
        let first = self.list.partition_point(|look| look.reference < *reference);
        self.list.iter().skip(first).take_while(move |look| look.reference == *reference)
    }
}

/// What a look at an image of a mirror found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub reference: Reference,
    /// With whose credentials.
    pub principal: Principal,
    pub verdict: Verdict,
}

/// What the watch works with.
#[derive(Debug)]
pub struct Parts {
    pub resources: Resources,
    pub board: Arc<Board>,
    pub verdicts: Verdicts,
    pub secrets: Secrets,
    pub policies: Policies,
    pub shelves: Shelves,
    pub registries: Registries,
    pub mirrors: watch::Receiver<Arc<MirrorLooks>>,
    pub seen: mpsc::Sender<Seen>,
    pub teller: Teller,
    /// The API server's clock.
    pub clock: Clock,
    pub metrics: Metrics,
}

/// The watch.
pub struct Controller {
    client: Client,
    resources: Resources,
    board: Arc<Board>,
    shelves: Shelves,
    looker: Arc<Looker>,
    policies: Policies,
    ignored: Arc<Ignored>,
    mirrors: watch::Receiver<Arc<MirrorLooks>>,
    teller: Teller,
    clock: Clock,
    metrics: Metrics,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").field("looker", &self.looker).finish_non_exhaustive()
    }
}

impl Controller {
    pub fn new(client: Client, config: &Config, parts: Parts) -> Self {
        let Parts {
            resources,
            board,
            verdicts,
            secrets,
            policies,
            shelves,
            registries,
            mirrors,
            seen,
            teller,
            clock,
            metrics,
        } = parts;
        let looker = Arc::new(Looker::new(config.monitoring.clone(), registries, verdicts, secrets, seen));
        let ignored = Arc::new(Ignored::from(config));
        Self { client, resources, board, shelves, looker, policies, ignored, mirrors, teller, clock, metrics }
    }

    /// Watches whenever this replica leads, until the election is over.
    pub async fn run(self, leader: Leader) {
        let this = &self;
        leader.while_leading(|term| async move { this.lead(&term).await }).await;
    }

    async fn lead(&self, term: &Term) {
        // Boxed, because the task would otherwise carry a large future along while another replica leads.
        term.token().run_until_cancelled(Box::pin(Work::new(self, term).run())).await;
        self.metrics.rest();
    }
}
