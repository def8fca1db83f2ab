//! One term's work on mirrors: what is known, what is under way, what comes next.

mod finalizers;
mod orders;
mod outcomes;
mod planning;
mod queueing;
mod suspension;
mod writing;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::reference::ImageKey;
use fairlead_plan::copy_queue::{Key, Queue};
use fairlead_plan::ledger::{Ledger, Owner};
use fairlead_plan::mirroring::{Finding, Sighting, Task};
use fairlead_plan::routing::Index;
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::time::Instant;

use self::outcomes::Audience;
use self::queueing::{Pause, Running};
use super::executor::Trouble;
use super::object_state::MirrorState;
use super::proofs::Proofs;
use super::status;
use super::usage_lists::UsageLists;
use super::{Inbox, MirrorSetup};
use crate::cluster::identity;
use crate::cluster::state::Changes;
use crate::context::Context;
use crate::controller::ledger_writes::LedgerWrite;
use crate::controller::status::StatusWriter;
use crate::controller::{Broken, Controller, Inflight};
use crate::platform::leader::Term;

/// Everything is looked at again after this time whatever happens: Secrets may have changed, registries come back.
const LONGEST_LOOK: Duration = Duration::from_secs(30);

/// How often it is looked whether registries that tasks wait for are back.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Requests to the API server at once.
const WRITES_AT_ONCE: usize = 4;

/// The controller.
pub struct MirrorController {
    setup: Arc<MirrorSetup>,
    term: Term,
    inbox: OwnedMutexGuard<Inbox>,
    /// Word of Secrets that policies name.
    secrets: Changes,
    origin: Instant,
    mirrors: BTreeMap<Arc<str>, MirrorState>,
    /// Ledgers that were stored before this term and whose objects were not seen yet.
    unclaimed: HashMap<Owner, Ledger>,
    index: Arc<Index>,
    queue: Queue<Task>,
    running: HashMap<Key, Running>,
    /// Tasks that were cancelled and may not have noticed yet.
    cancelled: Vec<(Key, Running)>,
    /// Tasks that were begun.
    begun: u64,
    /// With the number that they were begun with.
    jobs: Inflight<(Key, u64), Result<Finding, Trouble>>,
    writes: Inflight<Arc<str>, LedgerWrite>,
    statuses: StatusWriter,
    looks_published: Option<Instant>,
    lists: UsageLists,
    proofs: Proofs,
    /// Registries that want to be left alone, and until when.
    paused: HashMap<Arc<str>, Pause>,
    /// Copies that were reported missing and found in their place.
    verified: HashMap<ImageKey, Instant>,
    /// Contested places that were told of, and what was said: it is said again once it has changed.
    told: HashSet<(ImageKey, Box<str>)>,
    /// Objects whose end was told of.
    reported_left: HashSet<Arc<str>>,
    published: Arc<Notify>,
    /// What was seen of images and not compared with the ledgers yet.
    sightings: HashMap<Audience, HashMap<ImageKey, Sighting>>,
    /// Why nothing is removed.
    wrong_clock: Option<String>,
    /// Tasks have to be compared with the queue.
    resync: bool,
    next_look: Instant,
    look_wanted: bool,
}

impl std::fmt::Debug for MirrorController {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MirrorController").field("term", &self.term).finish_non_exhaustive()
    }
}

impl Controller for MirrorController {
    const NAME: &'static str = "mirrors";
    const DEBOUNCE: Duration = Duration::from_millis(20);
    type Setup = MirrorSetup;

    fn waits_for(setup: &MirrorSetup) -> Option<String> {
        setup.waits_for()
    }

    fn changes(setup: &MirrorSetup) -> Vec<Changes> {
        let Context { resources, policies, claims, .. } = &*setup.context;
        vec![
            resources.cluster_image_set_mirrors.changes(),
            resources.image_set_mirrors.changes(),
            resources.pods.changes(),
            policies.changes(),
            claims.changes(),
        ]
    }

    /// Goes on from what is stored.
    async fn begin(setup: &Arc<MirrorSetup>, term: &Term) -> Result<Self, Broken> {
        let secrets = setup.context.secrets.problems().changes();
        let unclaimed = setup.read_ledgers().await?;
        let cluster = identity::of_cluster(&setup.context.client).await?;
        let inbox = setup.inbox.clone().lock_owned().await;
        let now = Instant::now();
        Ok(Self {
            setup: setup.clone(),
            term: term.clone(),
            inbox,
            secrets,
            origin: now,
            mirrors: BTreeMap::new(),
            unclaimed,
            index: setup.context.policies.current(),
            queue: Queue::new(|one, other| one.work == other.work),
            running: HashMap::new(),
            cancelled: Vec::new(),
            begun: 0,
            jobs: Inflight::new(usize::MAX),
            writes: Inflight::new(WRITES_AT_ONCE),
            statuses: StatusWriter::new(setup.context.client.clone(), status::FIELD_MANAGER),
            looks_published: None,
            lists: setup.usage_lists(cluster),
            proofs: setup.proofs(),
            paused: HashMap::new(),
            verified: HashMap::new(),
            told: HashSet::new(),
            reported_left: HashSet::new(),
            published: setup.executor.published(),
            sightings: HashMap::new(),
            wrong_clock: None,
            resync: false,
            next_look: now,
            look_wanted: true,
        })
    }

    async fn round(&mut self, _term: &Term) -> Result<Instant, Broken> {
        self.go_on().await?;
        Ok(self.wake())
    }

    fn changed(&mut self) {
        self.look_wanted = true;
    }

    async fn progress(&mut self) -> bool {
        let Inbox { missed, seen } = &mut *self.inbox;
        tokio::select! {
            ((key, number), done) = self.jobs.next() => self.ended(&key, number, done),
            (uid, written) = self.writes.next() => self.written(&uid, written),
            read = self.lists.progress(&self.setup.context.clock) => {
                self.look_wanted |= read;
                self.mirrors.values_mut().for_each(|mirror| mirror.writes.touch());
            }
            opened = self.proofs.progress() => self.proven(&opened),
            () = self.published.notified(), if !self.jobs.is_empty() => self.note_writes(),
            () = self.secrets.next() => self.secrets_changed(),
            Some(missed) = missed.recv() => self.missed(missed),
            Some(seen) = seen.recv() => self.seen(seen),
        }
        true
    }

    fn end(setup: &MirrorSetup) {
        setup.metrics.rest();
    }
}

impl MirrorController {
    /// When there is something to do that only time brings.
    fn wake(&self) -> Instant {
        let now = Instant::now();
        let mut wake = if self.look_wanted { self.next_look } else { self.next_look + LONGEST_LOOK };
        let due = self.queue.next_due(self.elapsed()).map(|due| self.origin + due);
        let writes =
            self.mirrors.values().filter_map(|mirror| mirror.writes.next()).filter(|next| *next > now);
        let wall_clock = self.setup.context.clock.now();
        let retention = self.mirrors.values().filter_map(|mirror| mirror.next).map(|next| {
            now + Duration::try_from(next.duration_since(wall_clock)).unwrap_or_default().min(LONGEST_LOOK)
        });
        let lists = self.lists.next(wall_clock).map(|next| {
            now + Duration::try_from(next.duration_since(wall_clock)).unwrap_or(ASK_AGAIN).max(ASK_AGAIN)
        });
        let pauses = self.paused.values().map(|pause| pause.until).chain(lists).chain(self.proofs.next());
        // Nothing wakes the controller when a registry is back.
        let waiting = (self.queue.waiting() > 0).then(|| now + ASK_AGAIN);
        for moment in waiting.into_iter().chain(due).chain(writes).chain(retention).chain(pauses) {
            wake = wake.min(moment);
        }
        // Work that is due and cannot begin must not cause a busy loop.
        wake.max(now + Duration::from_millis(20))
    }

    /// Plans and begins whatever can be.
    async fn go_on(&mut self) -> Result<(), Broken> {
        self.read_clock();
        let (now, wall_clock) = (Instant::now(), self.setup.context.clock.now());
        let retention =
            self.mirrors.values().any(|mirror| mirror.next.is_some_and(|next| next <= wall_clock));
        let due = self.look_wanted || retention || now >= self.next_look + LONGEST_LOOK;
        if due && now >= self.next_look {
            self.look().await?;
        }
        self.paused.retain(|_, pause| pause.until > now);
        if !self.sightings.is_empty() {
            self.heed_sightings();
        }
        if self.resync {
            self.resync = false;
            self.sync();
        }
        if self.term.holds() {
            self.lists.begin(self.setup.context.clock.now());
            self.proofs.begin();
        }
        self.begin_jobs();
        self.begin_writes();
        let oldest = self.queue.oldest(self.elapsed());
        self.setup.metrics.queue(self.queue.waiting(), self.queue.running(), oldest);
        Ok(())
    }

    fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }
}
