//! Copies images in use to their mirrors, keeps the copies right and removes unused ones, on the lease
//! holder alone.
//!
//! `fairlead_plan::mirroring` decides what there should be, `fairlead_plan::copy_queue` what is done next. One task
//! holds all ledgers and plans; copies run beside it. Everything is compared anew with what is there, so nothing
//! depends on having seen a change happen, and the next lease holder goes on from the stored ledgers.

mod credentials;
mod event_loop;
mod events;
mod executor;
mod metrics;
mod object_state;
mod objects;
mod proofs;
mod reconcile;
mod status;
mod usage_lists;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::fairlead::{ImageLedger, LedgerManner};
use fairlead_domain::reference::Tag;
use fairlead_plan::availability::MirrorLooks;
use fairlead_plan::copy_queue::Limits;
use fairlead_plan::exclusions::Exclusions;
use fairlead_plan::ledger::{Ledger, Owner, OwnerKind, StoredShard};
use tokio::sync::{Mutex, mpsc, watch};

use self::credentials::Credentials;
pub use self::event_loop::MirrorController;
use self::executor::Executor;
pub use self::metrics::Metrics;
use self::proofs::Proofs;
use self::usage_lists::UsageLists;
use crate::capabilities::availability::Seen;
use crate::cluster::ledgers::Missed;
use crate::context::Context;
use crate::controller::Broken;
use crate::platform::config;

/// The list that the availability watch gets changes this often at most.
const PUBLISH: Duration = Duration::from_secs(10);

/// What mirroring works with.
pub struct MirrorSetup {
    context: Arc<Context>,
    inbox: Arc<Mutex<Inbox>>,
    exclusions: Exclusions,
    manner: Arc<LedgerManner>,
    executor: Executor,
    credentials: Credentials,
    limits: Limits,
    /// Where the watch of images learns what to look at.
    looks: watch::Sender<Arc<MirrorLooks>>,
    metrics: Metrics,
}

/// What others have found.
#[derive(Debug)]
pub struct Inbox {
    /// Copies and sources that probes found to be other than the ledger says.
    pub missed: mpsc::Receiver<Missed>,
    /// What the watch of images found.
    pub seen: mpsc::Receiver<Seen>,
}

impl std::fmt::Debug for MirrorSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MirrorSetup").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl MirrorSetup {
    pub fn new(
        context: Arc<Context>,
        inbox: Inbox,
        looks: watch::Sender<Arc<MirrorLooks>>,
        metrics: Metrics,
    ) -> Self {
        let Context { config, registries, secrets, verdicts, .. } = &*context;
        let settings = &config.mirroring;
        let credentials = Credentials::new(secrets.clone(), config.monitoring.clone());
        let executor =
            Executor::new(registries.clone(), credentials.clone(), verdicts.clone(), settings, &metrics);
        let number = |number: u32| usize::try_from(number).unwrap_or(usize::MAX).max(1);
        let limits =
            Limits { workers: number(settings.workers), per_registry: number(settings.per_registry) };
        let manner = Arc::new(manner_of(settings));
        let (exclusions, inbox) = (config.exclusions(), Arc::new(Mutex::new(inbox)));
        Self { context, inbox, exclusions, manner, executor, credentials, limits, looks, metrics }
    }
}

/// How copies are made according to the configuration, in the same words whatever order it has.
fn manner_of(mirroring: &config::Mirroring) -> LedgerManner {
    let mut platforms: Vec<String> = mirroring.platforms.iter().flatten().map(ToString::to_string).collect();
    platforms.sort();
    platforms.dedup();
    LedgerManner { platforms, referrers: mirroring.referrers }
}

impl MirrorSetup {
    fn usage_lists(&self, cluster: Tag) -> UsageLists {
        let Context { config, registries, .. } = &*self.context;
        let max_age = config.mirroring.cleanup.foreign_list_max_age.as_ref();
        let max_age = max_age.map(fairlead_domain::duration::Duration::as_std);
        UsageLists::new(registries.clone(), self.credentials.clone(), cluster, max_age)
    }

    fn proofs(&self) -> Proofs {
        Proofs::new(self.context.registries.clone(), self.context.secrets.clone())
    }

    /// What earlier terms have left.
    async fn read_ledgers(&self) -> Result<HashMap<Owner, Ledger>, Broken> {
        let keep = |owner: Owner, ledger: ImageLedger| match owner.kind {
            OwnerKind::ClusterImageSetMirror | OwnerKind::ImageSetMirror => {
                Some((owner, StoredShard::from(ledger)))
            }
            OwnerKind::ClusterImageSetAvailability => None,
        };
        let objects = self.context.ledger_store.list(keep).await?;
        let mut by_owner: BTreeMap<Owner, Vec<StoredShard>> = BTreeMap::new();
        for (owner, shard) in objects {
            by_owner.entry(owner).or_default().push(shard);
        }
        let load = |(owner, objects): (Owner, _)| (owner.clone(), Ledger::load(owner, objects));
        Ok(by_owner.into_iter().map(load).collect())
    }
}
