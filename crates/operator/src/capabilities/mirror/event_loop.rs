//! One term's work on mirrors: what is known, what is under way, what comes next.

mod finalizers;
mod orders;
mod outcomes;
mod suspension;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::reference::{Host, ImageKey};
use fairlead_plan::access;
use fairlead_plan::availability::MirrorLooks;
use fairlead_plan::copy_queue::{Ended, Job, Key, Queue};
use fairlead_plan::ledger::{Foreign, Ledger, Owner, ShelfId, foreign_write};
use fairlead_plan::mirroring::{self, Finding, Jobs, Registry, Sighting, Task, Work};
use fairlead_plan::routing::Index;
use fairlead_plan::tenant::Tenant;
use jiff::Timestamp;
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use self::outcomes::Audience;
use super::events;
use super::executor::{Publishing, Trouble};
use super::object_state::Desk;
use super::objects::Objects;
use super::proofs::{self, Opened, Proofs};
use super::reconcile::{Look, Looked};
use super::usage_lists::UsageLists;
use super::write::{self, Told, Written};
use super::{Inbox, MirrorSetup, PUBLISH};
use crate::cluster::ledgers::{LedgerObject, WriteError};
use crate::cluster::state::Changes;
use crate::context::Context;
use crate::controller::status::StatusWriter;
use crate::controller::{Broken, Controller, Inflight};
use crate::platform::api_error::Class;
use crate::platform::leader::Term;

/// The shortest time between two looks at everything, and how many times longer than itself a look has to wait: so that
/// the largest cluster spends a tenth of a processor on it.
const SHORTEST_LOOK: Duration = Duration::from_millis(200);
const LOOK_SHARE: u32 = 10;

/// Everything is looked at again after this time whatever happens: Secrets may have changed, registries come back.
const LONGEST_LOOK: Duration = Duration::from_secs(30);

/// How often it is looked whether registries that tasks wait for are back.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A copy that was found in its place is not looked for again on the word of a probe.
const VERIFIED_FOR: Duration = Duration::from_mins(5);
const MOST_VERIFIED: usize = 10_000;
/// Contested places that are told of in one term.
const MOST_TOLD: usize = 1000;

/// Requests to the API server at once.
const WRITES_AT_ONCE: usize = 4;

/// After this many failures a copy is news.
const FAILURES_TO_TELL: u32 = 2;

/// A task under way.
struct Running {
    /// The same thing may be begun again before the end of a cancelled one is heard of.
    number: u64,
    job: AbortHandle,
    task: Task,
    publishing: Publishing,
    /// The ledger knows what it is writing.
    noted: bool,
}

/// For how long a registry is left alone, for us and for people.
struct Pause {
    until: Instant,
    until_clock: Timestamp,
}

impl Pause {
    fn of(length: Duration) -> Self {
        let seconds = i64::try_from(length.as_secs()).unwrap_or(i64::MAX);
        let now = Timestamp::now();
        let end = Timestamp::from_second(now.as_second().saturating_add(seconds)).unwrap_or(now);
        Self { until: Instant::now() + length, until_clock: end }
    }
}

/// The controller.
pub struct Mirrors {
    parts: Arc<MirrorSetup>,
    term: Term,
    inbox: OwnedMutexGuard<Inbox>,
    /// Word of Secrets that policies name.
    secrets: Changes,
    origin: Instant,
    desks: BTreeMap<Arc<str>, Desk>,
    /// Ledgers that were stored before this term and whose objects were not seen yet.
    shelved: HashMap<Owner, Ledger>,
    index: Arc<Index>,
    queue: Queue<Task>,
    running: HashMap<Key, Running>,
    /// Tasks that were cancelled and may not have noticed yet.
    cancelled: Vec<(Key, Running)>,
    /// Tasks that were begun.
    begun: u64,
    /// With the number that they were begun with.
    jobs: Inflight<(Key, u64), Result<Finding, Trouble>>,
    writes: Inflight<Arc<str>, Written>,
    statuses: StatusWriter,
    looks_published: Option<Instant>,
    lists: UsageLists,
    proofs: Proofs,
    /// Registries that want to be left alone, and until when.
    paused: HashMap<Arc<str>, Pause>,
    /// Copies that were found in their place on somebody's word that they were not.
    verified: HashMap<ImageKey, Instant>,
    /// Contested places that were told of, and what was said: it is said again once it has changed.
    told: HashSet<(ImageKey, Box<str>)>,
    /// Objects whose end was told of.
    parted: HashSet<Arc<str>>,
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

impl std::fmt::Debug for Mirrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirrors").field("term", &self.term).finish_non_exhaustive()
    }
}

impl Controller for Mirrors {
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
        let shelved = setup.read_ledgers().await?;
        let cluster = setup.identify_cluster().await?;
        let inbox = setup.inbox.clone().lock_owned().await;
        let now = Instant::now();
        Ok(Self {
            parts: setup.clone(),
            term: term.clone(),
            inbox,
            secrets,
            origin: now,
            desks: BTreeMap::new(),
            shelved,
            index: setup.context.policies.current(),
            queue: Queue::new(|one, other| one.work == other.work),
            running: HashMap::new(),
            cancelled: Vec::new(),
            begun: 0,
            jobs: Inflight::new(usize::MAX),
            writes: Inflight::new(WRITES_AT_ONCE),
            statuses: StatusWriter::new(setup.context.client.clone(), write::FIELD_MANAGER),
            looks_published: None,
            lists: setup.usage_lists(cluster),
            proofs: setup.proofs(),
            paused: HashMap::new(),
            verified: HashMap::new(),
            told: HashSet::new(),
            parted: HashSet::new(),
            published: setup.carrier.published(),
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
            read = self.lists.progress(&self.parts.context.clock), if self.lists.is_busy() => {
                self.look_wanted |= read;
                self.desks.values_mut().for_each(|desk| desk.turn.touch());
            }
            Some(opened) = self.proofs.progress(), if self.proofs.is_busy() => self.proven(&opened),
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

impl Mirrors {
    /// A Secret that a policy names has appeared, gone or changed: whatever failed for want of it is tried again.
    fn secrets_changed(&mut self) {
        let named =
            |desk: &&mut Desk| desk.object.policy.as_ref().is_some_and(|policy| policy.secrets().count() > 0);
        for desk in self.desks.values_mut().filter(named) {
            desk.turn.touch();
            let object = desk.planned();
            for task in mirroring::startable(&object, desk.farewell.as_ref()) {
                self.queue.hurry(&mirroring::job_key(&object, &task));
            }
        }
    }

    /// When there is something to do that only time brings.
    fn wake(&self) -> Instant {
        let now = Instant::now();
        let mut wake = if self.look_wanted { self.next_look } else { self.next_look + LONGEST_LOOK };
        let due = self.queue.next_due(self.elapsed()).map(|due| self.origin + due);
        let writes = self.desks.values().filter_map(|desk| desk.turn.next()).filter(|next| *next > now);
        let wall_clock = self.parts.context.clock.now();
        let retention = self.desks.values().filter_map(|desk| desk.next).map(|next| {
            now + Duration::try_from(next.duration_since(wall_clock)).unwrap_or_default().min(LONGEST_LOOK)
        });
        let lists = self.lists.next(wall_clock).map(|next| {
            now + Duration::try_from(next.duration_since(wall_clock)).unwrap_or(ASK_AGAIN).max(ASK_AGAIN)
        });
        let pauses = self.paused.values().map(|pause| pause.until).chain(lists).chain(self.proofs.next());
        // Nobody tells when a registry is back.
        let waiting = (self.queue.waiting() > 0).then(|| now + ASK_AGAIN);
        for moment in waiting.into_iter().chain(due).chain(writes).chain(retention).chain(pauses) {
            wake = wake.min(moment);
        }
        // Whatever is due and could not be begun is not asked for in a circle.
        wake.max(now + Duration::from_millis(20))
    }

    /// Plans and begins whatever can be.
    async fn go_on(&mut self) -> Result<(), Broken> {
        self.read_clock();
        let (now, wall_clock) = (Instant::now(), self.parts.context.clock.now());
        let retention = self.desks.values().any(|desk| desk.next.is_some_and(|next| next <= wall_clock));
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
            self.lists.begin(self.parts.context.clock.now());
            self.proofs.begin();
        }
        self.begin_jobs();
        self.begin_writes();
        let oldest = self.queue.oldest(self.elapsed());
        self.parts.metrics.queue(self.queue.waiting(), self.queue.running(), oldest);
        Ok(())
    }

    fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    async fn look(&mut self) -> Result<(), Broken> {
        let begun = Instant::now();
        self.look_wanted = false;
        self.note_cancelled();
        self.index = self.parts.context.policies.current();
        self.notice_foreign_writes();
        let mut objects = Objects::gather(&self.parts.context.resources, &self.index);
        let stuck = std::mem::take(&mut objects.stuck);
        // Most clusters that mirror nothing have Pods all the same.
        let pods =
            if objects.readable.is_empty() { Vec::new() } else { self.parts.context.resources.pods.all() };
        let look = Look {
            objects,
            index: Arc::clone(&self.index),
            pods,
            ignored: self.parts.ignored.clone(),
            manner: Arc::clone(&self.parts.manner),
            foreign: self.lists.foreign(),
            now: self.parts.context.clock.now(),
            held_back: self.wrong_clock.clone(),
            proof_lifetime: self.parts.context.config.routing.proof_lifetime(),
        };
        let (desks, mut shelved) = (std::mem::take(&mut self.desks), std::mem::take(&mut self.shelved));
        let looking = tokio::task::spawn_blocking(move || {
            let looked = look.run(desks, &mut shelved);
            (looked, shelved)
        });
        match looking.await {
            Ok((Looked { desks, gone, states, shared }, shelved)) => {
                (self.desks, self.shelved) = (desks, shelved);
                self.lists.update(shared, self.parts.context.clock.now());
                for desk in self.desks.values().filter(|desk| desk.lists_wanted) {
                    let targets = desk.object.policy.iter().flat_map(|policy| policy.targets());
                    self.lists.want(targets.map(|target| target.place));
                }
                for desk in self.desks.values_mut() {
                    desk.turn.touch();
                    if desk.lists_wanted {
                        let targets = desk.object.policy.iter().flat_map(|policy| policy.targets());
                        let unread = self.lists.unread(targets.map(|target| target.place));
                        desk.failing = unread.or(desk.failing.take());
                    }
                }
                for uid in gone {
                    let running = self.queue.forget(&uid);
                    self.cancel(running);
                }
                self.parts.metrics.count(&states);
                self.want_proofs();
                self.tell_refusals();
            }
            // The ledgers in memory are gone with the plan; those that are stored count.
            Err(error) => return Err(format!("mirrors could not be planned, which is a bug: {error}").into()),
        }
        self.resync = true;
        self.mind_finalizers().await;
        self.release(&stuck).await;
        if self.looks_published.is_none_or(|at| at.elapsed() >= PUBLISH) {
            self.looks_published = Some(Instant::now());
            let looks = MirrorLooks::of_objects(self.desks.values().map(Desk::planned), &self.index);
            self.parts.looks.send_replace(Arc::new(looks));
        }
        self.next_look = Instant::now() + SHORTEST_LOOK.max(begun.elapsed() * LOOK_SHARE);
        Ok(())
    }

    /// Has originals opened on behalf of namespaces that have not proven their access.
    fn want_proofs(&mut self) {
        let index = &self.index;
        let wanted = self.desks.iter().flat_map(|(uid, desk)| {
            desk.to_prove.iter().map(move |attempt| proofs::Order {
                owner: Arc::clone(uid),
                attempt: attempt.clone(),
                holders: desk.planned().holders(&attempt.source),
                cause: index.cause_of(&attempt.source),
            })
        });
        self.proofs.update(wanted);
    }

    /// Namespaces have opened an original.
    fn proven(&mut self, opened: &Opened) {
        let now = self.parts.context.clock.now();
        let Some(desk) = self.desks.get_mut(&opened.owner) else { return };
        for namespace in &opened.namespaces {
            desk.ledger.edit(&opened.source, |entry| {
                entry.access = access::proven(&entry.access, namespace, now);
            });
        }
        desk.turn.touch();
    }

    fn tell_refusals(&mut self) {
        let mut told = HashSet::new();
        for desk in self.desks.values() {
            for refusal in &desk.refused {
                let news = (refusal.destination.key(), refusal.why.clone());
                if told.len() < MOST_TOLD && !self.told.contains(&news) {
                    self.parts.context.events.tell(events::refused(&desk.object.owner, refusal));
                }
                if told.len() < MOST_TOLD {
                    told.insert(news);
                }
            }
        }
        self.told = told;
    }

    /// Somebody else has written or deleted a ledger: ours is written again.
    fn notice_foreign_writes(&mut self) {
        let mut found: HashMap<Arc<str>, HashMap<ShelfId, u64>> = HashMap::new();
        for LedgerObject { key, version, owner } in self.parts.context.claims.objects() {
            let Some(desk) = self.desks.get(&owner.uid).filter(|desk| desk.object.owner == *owner) else {
                continue;
            };
            if let (Some((shelf, _)), Ok(version)) = (desk.ledger.by_object(&key.name), version.parse()) {
                found.entry(Arc::clone(&owner.uid)).or_default().insert(shelf, version);
            }
        }
        for (uid, desk) in self.desks.iter_mut().filter(|(_, desk)| desk.turn.is_free()) {
            let found = found.remove(uid).unwrap_or_default();
            let shelves: Vec<_> = desk.ledger.shelves().collect();
            for shelf in shelves {
                let written = desk.ledger.version(shelf).and_then(|version| version.parse().ok());
                let (seen, unseen) = (desk.witnessed.contains(&shelf), desk.unseen.get(&shelf));
                let unseen_for = unseen.map(Instant::elapsed);
                match foreign_write(written, found.get(&shelf).copied(), seen, unseen_for) {
                    Foreign::Changed(version) => desk.ledger.lost(shelf, Some(version.to_string())),
                    Foreign::Nothing => {
                        desk.unseen.remove(&shelf);
                        desk.witnessed.insert(shelf);
                    }
                    Foreign::Deleted => {
                        desk.witnessed.remove(&shelf);
                        desk.ledger.lost(shelf, None);
                    }
                    Foreign::Unknown => self.look_wanted |= unseen.is_some() && !found.contains_key(&shelf),
                }
            }
        }
    }

    /// Makes the queue hold what the ledgers call for.
    fn sync(&mut self) {
        let now = self.elapsed();
        let mut hosts: HashMap<Host, Registry> = HashMap::new();
        let (client, paused) = (&self.parts.context.registries, &self.paused);
        let mut registry = |host: Host| {
            let look = |host: &Host| Registry {
                host: host.key().to_shared(),
                trouble: trouble_of(client, paused, host),
            };
            hosts.entry(host).or_insert_with_key(look).clone()
        };
        let held_back = self.wrong_clock.is_some();
        let mut to_cancel = Vec::new();
        for (uid, desk) in &mut self.desks {
            let (object, farewell) = (desk.planned(), desk.farewell.as_ref());
            let Jobs { jobs, waiting } =
                mirroring::jobs(&object, farewell, held_back, desk.lists_wanted, &mut registry);
            desk.waiting = waiting;
            to_cancel.extend(self.queue.sync(&Tenant::from(&desk.object.owner), uid, jobs, now));
        }
        self.cancel(to_cancel);
    }

    fn cancel(&mut self, keys: Vec<Key>) {
        for key in keys {
            if let Some(running) = self.running.remove(&key) {
                running.job.abort();
                self.cancelled.push((key.clone(), running));
                self.look_wanted = true;
            }
            self.queue.ended(&key, Ended::Cancelled, self.elapsed(), 0.0);
        }
    }

    fn begin_jobs(&mut self) {
        if !self.term.holds() {
            return;
        }
        let limits = self.parts.limits;
        let (client, paused) = (&self.parts.context.registries, &self.paused);
        let closed = |host: &str| {
            paused.contains_key(host) || Host::parse(host).is_ok_and(|host| client.is_down(&host).is_some())
        };
        let begun = self.queue.start(self.elapsed(), &limits, &closed);
        for Job { key, what: task, .. } in begun {
            if task.work == Work::Delete
                && !self.lists.permits(&task.destination, self.parts.context.clock.now())
            {
                // The lists are read again, and the deletion is planned anew.
                self.queue.ended(&key, Ended::Cancelled, self.elapsed(), 0.0);
                self.look_wanted = true;
                continue;
            }
            let Some(order) = self.order(&key, &task) else {
                self.queue.ended(&key, Ended::Done, self.elapsed(), 0.0);
                continue;
            };
            self.begun += 1;
            let (carrier, number) = (self.parts.carrier.clone(), self.begun);
            let publishing = order.publishing.clone();
            let job = self.jobs.start((key.clone(), number), carrier.carry_out(order));
            let running = Running { number, job, task, publishing, noted: false };
            self.running.insert(key, running);
        }
    }

    fn begin_writes(&mut self) {
        let (now, wall_clock) = (Instant::now(), self.parts.context.clock.now());
        for (uid, desk) in &mut self.desks {
            if self.writes.is_full() || !self.term.holds() {
                return;
            }
            let secrets = match &desk.object.policy {
                Some(policy) => self.parts.context.secrets.problems().of(policy.id()),
                None => continue,
            };
            let places = desk.object.policy.iter().flat_map(|policy| policy.targets());
            let told = Told {
                secret_problems: &secrets,
                copies_pull_secrets: self.parts.context.config.routing.pull_secrets.copy,
                usage_lists: self.lists.of_places(places.map(|target| target.place), wall_clock),
            };
            let shelves = &self.parts.context.shelves;
            let write = write::next(desk, &told, shelves, &mut self.statuses, now, wall_clock);
            if let Some(write) = write {
                self.writes.start(Arc::clone(uid), write);
            }
        }
    }

    fn written(&mut self, uid: &Arc<str>, written: Option<Written>) {
        let Some(desk) = self.desks.get_mut(uid) else { return };
        let Some(written) = written else { return desk.turn.done(false) };
        let what = written.what();
        let failure = match written {
            Written::Ledger { shelf, ticket, result } => match result {
                Ok(stored) => {
                    desk.witnessed.remove(&shelf);
                    desk.unseen.insert(shelf, Instant::now());
                    desk.ledger.written(shelf, ticket, stored.version);
                    self.resync = true;
                    None
                }
                Err(WriteError::Conflict { version }) => {
                    desk.ledger.lost(shelf, version);
                    None
                }
                Err(WriteError::Gone) => {
                    desk.ledger.lost(shelf, None);
                    None
                }
                Err(WriteError::Failed(failure)) => Some(failure),
            },
            Written::Status { draft, result } => {
                let failure = result.err();
                self.statuses.note(&draft, failure.as_ref(), Instant::now());
                failure.filter(|failure| !matches!(failure.class, Class::Absent | Class::Conflict))
            }
        };
        self.parts.metrics.wrote(what, failure.is_none());
        desk.turn.done(failure.is_none());
        if let Some(failure) = failure.filter(|_| what == "ledger") {
            tracing::warn!(object = %desk.object.owner, error = %failure, "cannot write a ledger; trying again");
        }
    }
}

/// Why nothing is asked of a registry now.
fn trouble_of(
    client: &fairlead_registry::Client,
    paused: &HashMap<Arc<str>, Pause>,
    host: &Host,
) -> Option<String> {
    if let Some(down) = client.is_down(host) {
        return Some(format!("registry {host} is down: {}", down.reason()));
    }
    let Pause { until_clock, .. } = paused.get(host.key().as_str())?;
    Some(format!("registry {host} has no quota left until {until_clock}"))
}
