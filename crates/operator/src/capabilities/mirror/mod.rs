//! Copies images in use to their mirrors, keeps the copies right and removes those that nobody uses, on the lease holder
//! alone.
//!
//! `fairlead_plan::mirroring` decides what there should be, `fairlead_plan::copy_queue` what is done next. One task holds
//! all ledgers and plans; copies run beside it. Everything is compared anew with what is there, so nothing depends on
//! having seen a change happen, and whoever takes over goes on from the stored ledgers.

mod credentials;
mod event_loop;
mod events;
mod executor;
mod metrics;
mod object_state;
mod objects;
mod proofs;
mod reconcile;
mod usage_lists;
mod write;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fairlead_api::fairlead::{CopyState, ImageLedger, LedgerManner};
use fairlead_domain::cause::Cause;
use fairlead_domain::reference::Tag;
use fairlead_plan::copy_queue::Limits;
use fairlead_plan::ledger::{Copy, Ledger, Owner, OwnerKind, StoredShelf};
use fairlead_plan::routing::{Index, SecretName};
use fairlead_registry::Client as Registries;
use jiff::SignedDuration;
use kube::Client;
use tokio::sync::{Mutex as AsyncMutex, mpsc, watch};
use tokio::time::Instant;

pub use self::metrics::Metrics;
use self::{
    credentials::Credentials, event_loop::Work, executor::Carrier, object_state::Desk, proofs::Proofs,
    usage_lists::UsageLists, write::Writer,
};
use crate::capabilities::availability::{LookAccess, MirrorLook, MirrorLooks, Seen};
use crate::cluster::ledgers::{Claims, Missed, Shelves};
use crate::cluster::policies::Policies;
use crate::cluster::usage::Ignored;
use crate::cluster::watch::{Board, Resources};
use crate::controller::backoff::Retry;
use crate::controller::events::{Errors, Teller};
use crate::platform::clock::Clock;
use crate::platform::config::{Config, Mirroring};
use crate::platform::leader::{Leader, Term};
use crate::registries::secrets::Secrets;
use crate::registries::verdicts::Verdicts;

/// How often the lists of the watches are asked for while they are not complete.
const WAIT: Duration = Duration::from_millis(100);

/// Lists take less than this; what takes longer is reported.
const PATIENCE: Duration = Duration::from_secs(10);

/// Before everything is begun anew.
const AFTER_A_CRASH: Duration = Duration::from_secs(10);

/// What the watch of images is told changes this often at most.
const PUBLISH: Duration = Duration::from_secs(10);

/// What mirroring needs of the rest of the operator.
#[derive(Debug)]
pub struct Surroundings {
    pub registries: Registries,
    pub resources: Resources,
    pub board: Arc<Board>,
    pub policies: Policies,
    pub secrets: Secrets,
    pub verdicts: Verdicts,
    pub claims: Claims,
    pub shelves: Shelves,
    pub teller: Teller,
    /// Where it is reported that the clock is wrong.
    pub errors: Errors,
    /// The API server's clock.
    pub clock: Clock,
    /// Copies and sources that probes found to be other than the ledger says.
    pub missed: mpsc::Receiver<Missed>,
    /// What the watch of images found.
    pub seen: mpsc::Receiver<Seen>,
    /// Where the watch of images learns what to look at.
    pub looks: watch::Sender<Arc<MirrorLooks>>,
}

/// The controller.
pub struct Controller {
    parts: Parts,
    inbox: AsyncMutex<Inbox>,
}

struct Inbox {
    missed: mpsc::Receiver<Missed>,
    seen: mpsc::Receiver<Seen>,
}

/// What all work shares.
struct Parts {
    client: Registries,
    resources: Resources,
    board: Arc<Board>,
    policies: Policies,
    secrets: Secrets,
    claims: Claims,
    shelves: Shelves,
    ignored: Ignored,
    manner: Arc<LedgerManner>,
    carrier: Carrier,
    writer: Writer,
    credentials: Credentials,
    foreign_list_max_age: Option<Duration>,
    proof_lifetime: SignedDuration,
    teller: Teller,
    errors: Errors,
    clock: Clock,
    limits: Limits,
    copies_pull_secrets: bool,
    looks: watch::Sender<Arc<MirrorLooks>>,
    published: Mutex<Option<Instant>>,
    metrics: Metrics,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller").field("limits", &self.parts.limits).finish_non_exhaustive()
    }
}

impl Controller {
    pub fn new(client: Client, around: Surroundings, config: &Config, metrics: Metrics) -> Self {
        let credentials = Credentials::new(around.secrets.clone(), config.monitoring.clone());
        let carrier = Carrier::new(
            around.registries.clone(),
            credentials.clone(),
            around.verdicts,
            &config.mirroring,
            &metrics,
        );
        let number = |number: u32| usize::try_from(number).unwrap_or(usize::MAX).max(1);
        let parts = Parts {
            client: around.registries,
            resources: around.resources,
            board: around.board,
            policies: around.policies,
            secrets: around.secrets,
            claims: around.claims,
            shelves: around.shelves.clone(),
            ignored: Ignored::from(config),
            manner: Arc::new(manner_of(&config.mirroring)),
            carrier,
            writer: Writer::new(client, around.shelves),
            credentials,
            foreign_list_max_age: config
                .mirroring
                .cleanup
                .foreign_list_max_age
                .as_ref()
                .map(fairlead_domain::duration::Duration::as_std),
            proof_lifetime: config.routing.proof_lifetime(),
            teller: around.teller,
            errors: around.errors,
            clock: around.clock,
            limits: Limits {
                workers: number(config.mirroring.workers),
                per_registry: number(config.mirroring.per_registry),
            },
            copies_pull_secrets: config.routing.pull_secrets.copy,
            looks: around.looks,
            published: Mutex::default(),
            metrics,
        };
        Self { parts, inbox: AsyncMutex::new(Inbox { missed: around.missed, seen: around.seen }) }
    }

    /// Works whenever this replica leads, until the election is over.
    pub async fn run(self, leader: Leader) {
        let this = &self;
        leader.while_leading(|term| async move { this.lead(&term).await }).await;
    }

    async fn lead(&self, term: &Term) {
        // Boxed, because the task would otherwise carry a large future along while another replica leads.
        term.token().run_until_cancelled(Box::pin(self.work(term))).await;
        self.parts.metrics.rest();
    }

    async fn work(&self, term: &Term) {
        let (begun, mut reported) = (Instant::now(), false);
        while !self.parts.sees_everything() {
            if begun.elapsed() > PATIENCE
                && let Some(why) = self.parts.waits_for().filter(|_| !reported)
            {
                reported = true;
                tracing::warn!(why, "mirroring waits; nothing is copied, removed or forgotten");
            }
            tokio::time::sleep(WAIT).await;
        }
        loop {
            self.work_from_stored(term).await;
            tokio::time::sleep(AFTER_A_CRASH).await;
        }
    }

    /// Goes on from what is stored. Ends only if planning crashes.
    async fn work_from_stored(&self, term: &Term) {
        let shelved = self.parts.read_ledgers().await;
        let cluster = self.parts.identify_cluster().await;
        let mut inbox = self.inbox.lock().await;
        let Inbox { missed, seen } = &mut *inbox;
        let mut work = Work::new(&self.parts, term, shelved, cluster);
        let resources = &self.parts.resources;
        let (mut pods, mut policies) = (resources.pods.changes(), self.parts.policies.changes());
        let mut cluster = resources.cluster_image_set_mirrors.changes();
        let mut own = resources.image_set_mirrors.changes();
        let mut ledgers = self.parts.claims.changes();
        let mut secrets = self.parts.secrets.problems().changes();
        while work.go_on().await.is_ok() {
            let wake = work.wake();
            tokio::select! {
                () = work.progress() => {}
                () = pods.next() => work.want_look(),
                () = policies.next() => work.want_look(),
                () = cluster.next() => work.want_look(),
                () = own.next() => work.want_look(),
                () = ledgers.next() => work.want_look(),
                () = secrets.next() => work.secrets_changed(),
                Some(missed) = missed.recv() => work.missed(missed),
                Some(seen) = seen.recv() => work.seen(seen),
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }
}

/// How copies are made according to the configuration, in the same words whatever order it has.
fn manner_of(mirroring: &Mirroring) -> LedgerManner {
    let mut platforms: Vec<String> = mirroring.platforms.iter().flatten().map(ToString::to_string).collect();
    platforms.sort();
    platforms.dedup();
    LedgerManner { platforms, referrers: mirroring.referrers }
}

impl Parts {
    fn sees_everything(&self) -> bool {
        self.waits_for().is_none() && self.claims.listed() && self.policies.is_up_to_date()
    }

    fn usage_lists(&self, cluster: Tag) -> UsageLists {
        UsageLists::new(self.client.clone(), self.credentials.clone(), cluster, self.foreign_list_max_age)
    }

    fn proofs(&self) -> Proofs {
        Proofs::new(self.client.clone(), self.secrets.clone())
    }

    /// What tells this cluster from others that share a mirror.
    async fn identify_cluster(&self) -> Tag {
        let mut backoff = Retry::default();
        loop {
            match self.writer.cluster_id().await {
                Ok(id) => return id,
                Err(error) => {
                    tracing::warn!(
                        error,
                        "cannot read the namespace kube-system, whose UID tells clusters apart"
                    );
                    tokio::time::sleep(backoff.failed()).await;
                }
            }
        }
    }

    /// What earlier terms have left.
    async fn read_ledgers(&self) -> HashMap<Owner, Ledger> {
        let mut backoff = Retry::default();
        let keep = |owner: Owner, ledger: ImageLedger| match owner.kind {
            OwnerKind::ClusterImageSetMirror | OwnerKind::ImageSetMirror => {
                Some((owner, StoredShelf::from(ledger)))
            }
            OwnerKind::ClusterImageSetAvailability => None,
        };
        let objects = loop {
            match self.shelves.list(keep).await {
                Ok(objects) => break objects,
                Err(failure) => {
                    tracing::warn!(error = %failure, "cannot read the ledgers of mirrors; trying again");
                    tokio::time::sleep(backoff.failed()).await;
                }
            }
        };
        let mut by_owner: BTreeMap<Owner, Vec<StoredShelf>> = BTreeMap::new();
        for (owner, shelf) in objects {
            by_owner.entry(owner).or_default().push(shelf);
        }
        let load = |(owner, objects): (Owner, _)| (owner.clone(), Ledger::load(owner, objects));
        by_owner.into_iter().map(load).collect()
    }

    /// Tells the watch of images what to look at: sources, which may move, and copies, which may go.
    fn publish_looks(&self, desks: &BTreeMap<Arc<str>, Desk>, index: &Index) {
        let now = Instant::now();
        {
            let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
            if published.is_some_and(|at| at + PUBLISH > now) {
                return;
            }
            *published = Some(now);
        }
        let rows = desks.values().map(|desk| desk.ledger.len()).sum::<usize>();
        let mut looks = Vec::with_capacity(rows * 2);
        for desk in desks.values().filter(|desk| desk.object.deleting.is_none()) {
            let mut known: Vec<Arc<LookAccess>> = Vec::new();
            let mut access = |secret: Option<SecretName>, cause: Cause| {
                let access = LookAccess { principal: desk.principal(), secret, cause };
                if let Some(known) = known.iter().find(|known| ***known == access) {
                    return Arc::clone(known);
                }
                let access = Arc::new(access);
                known.push(Arc::clone(&access));
                access
            };
            for (source, entry) in desk.entries() {
                let in_place = |copy: &&Copy| {
                    copy.state == CopyState::Mirrored && copy.kept.is_none() && desk.keeps(&copy.destination)
                };
                let mirrored: Vec<_> = entry.copies.iter().filter(in_place).collect();
                let Some(last) = mirrored.iter().map(|copy| copy.since).max() else { continue };
                // A digest names the same image for ever.
                if entry.unused_since.is_none() && source.digest().is_none() {
                    looks.push(MirrorLook {
                        reference: source.clone(),
                        last,
                        holders: desk.holders(source),
                        access: access(None, index.cause_of(source)),
                    });
                }
                looks.extend(mirrored.iter().map(|copy| MirrorLook {
                    reference: copy.destination.clone(),
                    last: copy.since,
                    holders: Arc::default(),
                    access: access(desk.pull_secret(&copy.destination), desk.principal().cause()),
                }));
            }
        }
        self.looks.send_replace(Arc::new(MirrorLooks::new(looks)));
    }
}
