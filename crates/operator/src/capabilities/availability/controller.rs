//! One term of the watch: observes what is in use, has images looked at, and writes down what was found.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::availability::{self, Looked, Looks, MirrorLooks, Question, RegistryAnswer};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use super::AvailabilitySetup;
use super::object::{Objects, Rule, WatchedSet};
use super::status::FIELD_MANAGER;
use super::write_urgency;
use crate::cluster::state::Changes;
use crate::cluster::usage;
use crate::context::Context;
use crate::controller::ledger_writes::LedgerWrite;
use crate::controller::status::StatusWriter;
use crate::controller::{Broken, Controller, Inflight, LONGEST_SLEEP, wake_at};
use crate::platform::leader::Term;

/// Shortest time between two passes over all Pods: something about some Pod changes all the time.
const GATHER: Duration = Duration::from_secs(3);

/// Shortest time between two updates of what mirrors want looked at.
const TAKE_UP: Duration = Duration::from_secs(5);

/// Shortest time between two counts for the metrics page.
const COUNT: Duration = Duration::from_secs(1);

/// Looks at once. Registries are independent of each other, but Pods can name any number of them.
const AT_ONCE: usize = 128;

/// The controller.
#[derive(Debug)]
pub struct AvailabilityWatch {
    setup: Arc<AvailabilitySetup>,
    published: watch::Receiver<Arc<MirrorLooks>>,
    accounts: watch::Receiver<Arc<MirrorLooks>>,
    policies: watch::Receiver<Arc<MirrorLooks>>,
    /// What mirrors, the inventory and mirror policies of nodes want looked at.
    mirrors: Arc<MirrorLooks>,
    objects: Objects,
    looks: Looks,
    /// Images whose turn has come.
    due: VecDeque<Reference>,
    looking: Inflight<Reference, Looked>,
    /// How often images were looked at on behalf of some, or with the logins of some, who might be told otherwise.
    rounds: HashMap<Reference, u32>,
    /// By UID.
    writing: Inflight<Arc<str>, LedgerWrite>,
    statuses: StatusWriter,
    schedule: Schedule,
}

/// What has to be done again, and when each was last done.
#[derive(Debug)]
struct Schedule {
    gather: bool,
    gathered: Instant,
    take_up: bool,
    taken_up: Instant,
    count: bool,
    counted: Instant,
    /// When the next registry may be asked.
    next_look: Option<Timestamp>,
}

impl Controller for AvailabilityWatch {
    const NAME: &'static str = "watch of images";
    type Setup = AvailabilitySetup;

    /// What was not listed yet must not look like what is gone.
    fn waits_for(setup: &AvailabilitySetup) -> Option<String> {
        setup.context.board.awaits_pods_and(&["ClusterImageSetAvailability"])
    }

    fn changes(setup: &AvailabilitySetup) -> Vec<Changes> {
        let resources = &setup.context.resources;
        vec![resources.pods.changes(), resources.cluster_image_set_availabilities.changes()]
    }

    async fn begin(setup: &Arc<AvailabilitySetup>, _term: &Term) -> Result<Self, Broken> {
        let ledgers = setup.context.ledger_store.list(Objects::keep).await?;
        let long_ago = Instant::now().checked_sub(LONGEST_SLEEP).unwrap_or_else(Instant::now);
        let mut published = setup.mirrors.clone();
        let (mut accounts, mut policies) = (setup.accounts.clone(), setup.policies.clone());
        // What was published before this term is taken up as well.
        for wishes in [&mut published, &mut accounts, &mut policies] {
            wishes.mark_changed();
        }
        Ok(Self {
            setup: setup.clone(),
            published,
            accounts,
            policies,
            mirrors: Arc::default(),
            objects: Objects::from(ledgers),
            looks: Looks::default(),
            due: VecDeque::new(),
            looking: Inflight::new(AT_ONCE),
            rounds: HashMap::new(),
            writing: Inflight::new(usize::MAX),
            statuses: StatusWriter::new(setup.context.client.clone(), FIELD_MANAGER),
            schedule: Schedule {
                gather: true,
                gathered: long_ago,
                take_up: false,
                taken_up: long_ago,
                count: true,
                counted: long_ago,
                next_look: None,
            },
        })
    }

    async fn round(&mut self, term: &Term) -> Result<Instant, Broken> {
        self.observe().await;
        self.look();
        self.write(term);
        self.tell();
        self.count();
        Ok(self.until())
    }

    fn changed(&mut self) {
        self.schedule.gather = true;
    }

    async fn progress(&mut self) -> bool {
        tokio::select! {
            Ok(()) = self.published.changed() => self.schedule.take_up = true,
            Ok(()) = self.accounts.changed() => self.schedule.take_up = true,
            Ok(()) = self.policies.changed() => self.schedule.take_up = true,
            (image, looked) = self.looking.next() => self.heed(&image, looked),
            (uid, written) = self.writing.next() => self.finish(&uid, written),
        }
        true
    }

    fn end(setup: &AvailabilitySetup) {
        setup.metrics.rest();
    }
}

impl AvailabilityWatch {
    /// Brings the ledgers in line with objects and Pods, and the looks with the ledgers and mirrors.
    async fn observe(&mut self) {
        let now = Instant::now();
        let mut images_changed = false;
        let clock = self.setup.context.clock.now();
        let expired = |object: &WatchedSet| object.expires().is_some_and(|expires| expires <= clock);
        self.schedule.gather |= self.objects.all.values().any(expired);
        if self.schedule.gather && now >= self.schedule.gathered + GATHER {
            (self.schedule.gather, self.schedule.gathered) = (false, now);
            images_changed |= self.gather().await;
        }
        if self.schedule.take_up && now >= self.schedule.taken_up + TAKE_UP {
            (self.schedule.take_up, self.schedule.taken_up) = (false, now);
            let mirrors = self.published.borrow_and_update().clone();
            let mirrors = mirrors.and(&self.accounts.borrow_and_update());
            self.mirrors = mirrors.and(&self.policies.borrow_and_update());
            images_changed = true;
        }
        if images_changed {
            let mirrors = self.mirrors.iter().map(|look| (look.reference.clone(), Some(look.last)));
            let watched = self.objects.all.values().flat_map(WatchedSet::tracked);
            self.looks.sync(watched.chain(mirrors));
            let (objects, mirrors) = (&self.objects.all, &self.mirrors);
            let is_tracked = |image: &Reference| {
                objects.values().any(|object| object.ledger.get(image).is_some())
                    || mirrors.of(image).next().is_some()
            };
            self.rounds.retain(|image, _| is_tracked(image));
        }
    }

    /// Tells whether other images are watched now.
    async fn gather(&mut self) -> bool {
        let resources = &self.setup.context.resources;
        let before = self.objects.all.len();
        self.objects.sync(&resources.cluster_image_set_availabilities.snapshot());
        let rules = self.objects.all.iter().filter_map(|(name, object)| match &object.rule {
            Rule::Watched(watched) => Some((name.clone(), watched.clone())),
            Rule::Refused(_) => None,
        });
        let (names, rules): (Vec<_>, Vec<_>) = rules.unzip();
        if !rules.is_empty() {
            let (pods, exclusions) = (resources.pods.clone(), self.setup.exclusions.clone());
            // Beside the threads that serve requests: there may be many Pods.
            let gathering = tokio::task::spawn_blocking(move || {
                let selections: Vec<_> = rules.iter().map(|watched| watched.selection()).collect();
                usage::gather(&pods.all(), &exclusions, &selections)
            });
            let gathered = match gathering.await {
                Ok(gathered) => gathered,
                Err(error) => {
                    tracing::error!(%error, "images in use could not be gathered; this is a bug");
                    return false;
                }
            };
            let now = self.setup.context.clock.now();
            for (name, used) in names.iter().zip(gathered) {
                if let Some(object) = self.objects.all.get_mut(name) {
                    object.track(used, now);
                }
            }
        }
        self.schedule.count = true;
        let mut changed = self.objects.all.len() != before;
        for object in self.objects.all.values_mut() {
            changed |= object.images();
        }
        changed
    }

    /// Starts the looks that are due.
    fn look(&mut self) {
        let prober = &self.setup.prober;
        let (due, next_look) = self.looks.next(&|host| prober.pace(host), self.setup.context.clock.now());
        self.schedule.next_look = next_look;
        self.due.extend(due);
        while !self.looking.is_full()
            && let Some(image) = self.due.pop_front()
        {
            let (question, prober) = (self.question(&image), self.setup.prober.clone());
            self.looking.start(image, async move { prober.look(&question).await });
        }
    }

    fn question(&self, image: &Reference) -> Question {
        let cause = self.setup.context.policies.current().cause_of(image);
        let watching = self.objects.all.values().filter(|object| object.ledger.get(image).is_some());
        let holders = watching.map(|object| object.holders(image));
        let round = self.rounds.get(image).copied().unwrap_or_default();
        availability::question(image, cause, holders, &self.mirrors, round)
    }

    /// Takes note of what a look found.
    fn heed(&mut self, image: &Reference, looked: Option<Looked>) {
        let looked = looked.unwrap_or_else(|| {
            Looked::new(Verdict::Unknown { reason: "the look failed inside Fairlead".into() }, None)
        });
        self.schedule.count = true;
        let now = self.setup.context.clock.now();
        if looked.complete {
            self.rounds.remove(image);
        } else {
            let round = self.rounds.entry(image.clone()).or_default();
            *round = round.wrapping_add(1);
        }
        self.looks.looked(image, RegistryAnswer::from(&looked.verdict), now, fastrand::f64());
        let mut holders = self.objects.all.values().flat_map(|object| object.holders(image));
        let namespace = holders.next().map_or("", |holder| &*holder.namespace);
        self.setup.metrics.looked(image.host().as_str(), namespace, looked.verdict.kind());
        tracing::debug!(%image, verdict = %looked.verdict, "looked at an image");
        for object in self.objects.all.values_mut() {
            object.note(image, &looked, now);
        }
    }

    /// Tells the news that is written down.
    fn tell(&mut self) {
        let AvailabilitySetup { context, exclusions, .. } = &*self.setup;
        let Context { events, resources, .. } = &**context;
        for object in self.objects.all.values_mut() {
            for news in object.take_news() {
                news.tell_on_object(events);
                let Rule::Watched(watched) = &object.rule else { continue };
                let (events, watched) = (events.clone(), watched.clone());
                let (pods, exclusions) = (resources.pods.clone(), exclusions.clone());
                // Not waited for: events are no state.
                drop(tokio::task::spawn_blocking(move || {
                    news.tell_in_namespaces(&events, &pods, &watched, &exclusions);
                }));
            }
        }
    }

    fn write(&mut self, term: &Term) {
        let store = &self.setup.context.ledger_store;
        for object in self.objects.all.values_mut() {
            if let Some(writing) = write_urgency::next(object, store, &mut self.statuses, term) {
                self.writing.start(object.owner.uid.clone(), writing);
            }
        }
    }

    fn finish(&mut self, uid: &str, written: Option<LedgerWrite>) {
        if let Some(object) = self.objects.all.values_mut().find(|object| *object.owner.uid == *uid) {
            write_urgency::finish(object, written, &mut self.statuses);
        }
    }

    /// Tells the metrics page.
    fn count(&mut self) {
        if !self.schedule.count || Instant::now() < self.schedule.counted + COUNT {
            return;
        }
        (self.schedule.count, self.schedule.counted) = (false, Instant::now());
        let metrics = &self.setup.metrics;
        let objects = &mut self.objects.all;
        metrics.keep(|name| objects.contains_key(name));
        self.statuses.keep(|uid| objects.values().any(|object| &*object.owner.uid == uid));
        for (name, object) in objects.iter_mut().filter(|(_, object)| object.uncounted) {
            let holder = |image: &Reference| object.holders(image).first();
            metrics.show(name, &object.ledger, |image| holder(image).map_or("", |holder| &*holder.namespace));
            object.uncounted = false;
        }
        let laps = self.looks.hosts().filter_map(|host| Some((host.clone(), self.looks.lap(host)?)));
        metrics.laps(laps);
    }

    /// When there is something to do again, if nothing happens before.
    fn until(&self) -> Instant {
        let (now, clock) = (Instant::now(), self.setup.context.clock.now());
        let wait = |at: Timestamp| wake_at(Some(at), clock, now);
        let schedule = &self.schedule;
        let mut until = now + LONGEST_SLEEP;
        let mut at_the_latest = |moment: Instant| until = until.min(moment);
        if schedule.gather {
            at_the_latest(schedule.gathered + GATHER);
        }
        if schedule.take_up {
            at_the_latest(schedule.taken_up + TAKE_UP);
        }
        if schedule.count {
            at_the_latest(schedule.counted + COUNT);
        }
        if let Some(next) = schedule.next_look {
            at_the_latest(wait(next));
        }
        for object in self.objects.all.values() {
            let again = self.statuses.waits_until(&object.owner.uid);
            if let Some(due) = object.writes.due(!object.ledger.dirty().is_empty(), again) {
                at_the_latest(due);
            }
            // One that is over is a reason to gather, and that is waited for already.
            if let Some(expires) = object.expires().filter(|expires| *expires > clock) {
                at_the_latest(wait(expires));
            }
        }
        until
    }
}
