//! Keeps the inventory of images, on the lease holder: compares what kubelets report with what is expected, has the
//! watch resolve what is not resolved yet, reads what is behind digests, and writes down what kubelets do not report.
//!
//! One round goes through all Pods, beside the threads that serve requests, and keeps counts: rows are not stored. What
//! has to last is on the Pods themselves, in the record of admission and in `fairlead.dev/volume-digests`.

mod act;
mod tally;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::digest::Digest;
use fairlead_plan::availability::MirrorLooks;
use fairlead_plan::exclusions::Exclusions;
use fairlead_plan::inventory::{
    Drift, DriftedRevision, Resolutions, RevisionDrift, WriteAttempts, by_revision,
};
use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, mpsc, watch};
use tokio::time::Instant;

use self::act::{ReadResult, WriteResult, concerned, read, write};
pub(super) use self::tally::Tally;
use self::tally::{ContentWish, DigestWrite, Known, Unread};
use super::metrics::Metrics;
use crate::capabilities::availability::Seen;
use crate::capabilities::consistency::Consistency;
use crate::cluster::nodes::Watched;
use crate::cluster::state::{Bell, Changes, Key};
use crate::context::Context;
use crate::controller::events::Notice;
use crate::controller::rate_limit::{Pace, Rate};
use crate::controller::{Broken, Controller, Inflight};
use crate::platform::leader::Term;

/// Shortest time between two passes over all Pods: something about some Pod changes all the time.
const GATHER: Duration = Duration::from_secs(3);

/// Longest time between two passes: Pods that do not start, and tags that move, change nothing about a Pod.
const IDLE: Duration = Duration::from_mins(1);

/// Pods that are written to at once, and in a second.
const WRITES: usize = 4;
const RATE: Rate = Rate { per_second: 10, burst: 10 };

/// Manifests that are read at once, and how long one that cannot be read is left alone.
const READS: usize = 2;
const READ_AGAIN: Duration = Duration::from_mins(15);

/// Events whose objects are looked up at once.
const EVENTS: usize = 4;

/// What of pinned revisions has drifted; none while this replica does not lead.
#[derive(Debug, Default)]
pub struct DriftBoard {
    drifts: Mutex<Option<BTreeMap<DriftedRevision, Vec<RevisionDrift>>>>,
    changed: Bell,
}

impl DriftBoard {
    pub(super) fn of(&self, revision: &DriftedRevision) -> Option<Vec<RevisionDrift>> {
        self.drifts.lock().as_ref().map(|drifts| drifts.get(revision).cloned().unwrap_or_default())
    }

    pub(super) fn changes(&self) -> Changes {
        self.changed.listen()
    }

    fn publish(&self, drifts: Option<BTreeMap<DriftedRevision, Vec<RevisionDrift>>>) {
        let mut published = self.drifts.lock();
        if *published != drifts {
            *published = drifts;
            self.changed.ring();
        }
    }
}

/// What outlives terms.
pub struct InventorySetup {
    context: Arc<Context>,
    metrics: Metrics,
    exclusions: Exclusions,
    wishes: watch::Sender<Arc<MirrorLooks>>,
    seen: Arc<tokio::sync::Mutex<mpsc::Receiver<Seen>>>,
    known: Arc<Known>,
    consistency: Option<Arc<Consistency>>,
    board: Arc<DriftBoard>,
}

impl fmt::Debug for InventorySetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InventorySetup").finish_non_exhaustive()
    }
}

impl InventorySetup {
    /// `wishes` says what is to be looked at within the watch's budget, `seen` brings what was found.
    pub fn new(
        context: Arc<Context>,
        metrics: Metrics,
        wishes: watch::Sender<Arc<MirrorLooks>>,
        seen: mpsc::Receiver<Seen>,
    ) -> Self {
        let exclusions = context.config.exclusions();
        let seen = Arc::new(tokio::sync::Mutex::new(seen));
        let (known, board) = (Arc::default(), Arc::default());
        Self { context, metrics, exclusions, wishes, seen, known, consistency: None, board }
    }

    /// The same with what comparing the places of images finds, and with where drift of pinned revisions is shown.
    #[must_use]
    pub fn beside(self, consistency: Arc<Consistency>, board: Arc<DriftBoard>) -> Self {
        Self { consistency: Some(consistency), board, ..self }
    }
}

/// The controller.
pub struct Inventory {
    setup: Arc<InventorySetup>,
    term: Term,
    seen: OwnedMutexGuard<mpsc::Receiver<Seen>>,
    known: Arc<Known>,
    /// Set while digests differ and platforms tell whether they name the same.
    nodes: Option<Watched>,
    gather: bool,
    gathered: Instant,
    to_read: Vec<ContentWish>,
    reading: Inflight<Digest, ReadResult>,
    to_write: Vec<DigestWrite>,
    writing: Inflight<Arc<str>, WriteResult>,
    attempts: WriteAttempts,
    /// When a Pod may be told again what it was told before.
    retry: Option<Instant>,
    pace: Arc<tokio::sync::Mutex<Pace>>,
    telling: Inflight<String, ()>,
    /// Drift that was told and is still there.
    told: HashSet<String>,
}

impl fmt::Debug for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inventory").finish_non_exhaustive()
    }
}

impl Controller for Inventory {
    const NAME: &'static str = "inventory";
    type Setup = InventorySetup;

    fn waits_for(setup: &InventorySetup) -> Option<String> {
        setup.context.awaits_routing()
    }

    fn changes(setup: &InventorySetup) -> Vec<Changes> {
        let resources = &setup.context.resources;
        vec![resources.pods.changes(), resources.nodes.changes()]
    }

    async fn begin(setup: &Arc<InventorySetup>, term: &Term) -> Result<Self, Broken> {
        let seen = Arc::clone(&setup.seen).lock_owned().await;
        // What tags name may have changed while another replica led.
        *setup.known.resolutions.lock() = Resolutions::beginning(setup.context.clock.now());
        let now = Instant::now();
        Ok(Self {
            setup: Arc::clone(setup),
            term: term.clone(),
            seen,
            known: Arc::clone(&setup.known),
            nodes: None,
            gather: true,
            gathered: now.checked_sub(GATHER).unwrap_or(now),
            to_read: Vec::new(),
            reading: Inflight::new(READS),
            to_write: Vec::new(),
            writing: Inflight::new(WRITES),
            attempts: WriteAttempts::default(),
            retry: None,
            pace: Arc::new(tokio::sync::Mutex::new(Pace::new(RATE))),
            telling: Inflight::new(EVENTS),
            told: HashSet::new(),
        })
    }

    async fn round(&mut self, _term: &Term) -> Result<Instant, Broken> {
        let now = Instant::now();
        let retries = self.retry.is_some_and(|retry| now >= retry);
        if now >= self.gathered + IDLE || (self.gather || retries) && now >= self.gathered + GATHER {
            (self.gather, self.gathered, self.retry) = (false, now, None);
            self.observe().await?;
        }
        self.start();
        let wait = if self.gather { GATHER } else { IDLE };
        let next = self.gathered + wait;
        Ok(self.retry.map_or(next, |retry| next.min(retry.max(self.gathered + GATHER))))
    }

    fn changed(&mut self) {
        self.gather = true;
    }

    async fn progress(&mut self) -> bool {
        tokio::select! {
            Some(seen) = self.seen.recv() => self.heed(seen),
            (digest, result) = self.reading.next() => self.took(digest, result.unwrap_or(ReadResult::Failed)),
            (_, written) = self.writing.next() => {
                self.setup.metrics.wrote(written.unwrap_or(WriteResult::Failed).name());
            }
            _ = self.telling.next() => {}
        }
        true
    }

    fn end(setup: &InventorySetup) {
        setup.metrics.rest();
        setup.board.publish(None);
        setup.wishes.send_replace(Arc::default());
    }
}

impl Inventory {
    /// Goes through all Pods, and takes up what is to be done about them.
    async fn observe(&mut self) -> Result<(), Broken> {
        let (setup, known) = (Arc::clone(&self.setup), Arc::clone(&self.known));
        let now = setup.context.clock.now();
        let gathering = tokio::task::spawn_blocking(move || tally::gather(&setup, &known, now));
        let mut tally = gathering.await.map_err(|error| format!("the inventory was not taken: {error}"))?;
        self.attempts.keep(&tally.present);
        let resources = &self.setup.context.resources;
        let compares = tally.compares_platforms || !tally.reads.is_empty();
        self.nodes = self.nodes.take().filter(|_| compares);
        if compares && self.nodes.is_none() {
            self.nodes = Some(resources.nodes.keep_watched());
        }
        self.to_read = std::mem::take(&mut tally.reads);
        self.to_write = std::mem::take(&mut tally.writes);
        self.tell(&tally.drifts);
        self.setup.metrics.show(&mut tally);
        let wishes = MirrorLooks::new(std::mem::take(&mut tally.looks));
        self.setup.wishes.send_if_modified(|published| {
            let changed = **published != wishes;
            if changed {
                *published = Arc::new(wishes);
            }
            changed
        });
        Ok(())
    }

    /// Starts what is to be read and written, as far as there is room.
    fn start(&mut self) {
        while !self.reading.is_full()
            && let Some(wish) = self.to_read.pop()
        {
            let digest = wish.digest;
            if !self.reading.contains(&digest) && self.known.contents.lock().get(&digest).is_none() {
                let context = Arc::clone(&self.setup.context);
                self.reading.start(digest, async move { read(&context, wish).await });
            }
        }
        let now = self.setup.context.clock.now().as_second();
        while !self.writing.is_full()
            && let Some(wish) = self.to_write.pop()
        {
            let uid = Arc::clone(&wish.pod.uid);
            if self.writing.contains(&uid) {
                continue;
            }
            if let Some(next) = self.attempts.begin(&uid, wish.text.as_deref(), now) {
                let pause = Duration::from_secs(next.abs_diff(now));
                let retry = Instant::now() + pause;
                self.retry = Some(self.retry.map_or(retry, |known| known.min(retry)));
            } else {
                let (context, term, pace) =
                    (Arc::clone(&self.setup.context), self.term.clone(), Arc::clone(&self.pace));
                self.writing.start(uid, async move { write(&context, &term, &pace, wish).await });
            }
        }
    }

    /// Takes up what the watch has found.
    fn heed(&mut self, seen: Seen) {
        let Seen { reference, principal, verdict } = seen;
        let now = self.setup.context.clock.now();
        self.gather |= self.known.resolutions.lock().saw(&principal, &reference, &verdict, now);
    }

    fn took(&mut self, digest: Digest, result: ReadResult) {
        self.setup.metrics.read(if matches!(result, ReadResult::Content(_)) { "read" } else { "failed" });
        self.gather = true;
        let mut contents = self.known.contents.lock();
        let no_room = match result {
            ReadResult::Content(content) => {
                if contents.learn(digest, content) {
                    self.known.unreadable.lock().remove(&digest);
                    return;
                }
                true
            }
            ReadResult::Absent => {
                contents.miss(digest);
                false
            }
            ReadResult::Failed => false,
        };
        let unread = Unread { again: Instant::now() + READ_AGAIN, no_room };
        self.known.unreadable.lock().insert(digest, unread);
    }

    /// Reports drift on the workloads of Pods, or on Pods without one, and to the pins of their revisions.
    fn tell(&mut self, drifts: &[Drift]) {
        let context = &self.setup.context;
        let pod_of = |namespace: &str, pod: &str| {
            context.resources.pods.get(&Key { namespace: namespace.into(), name: pod.into() })
        };
        self.setup.board.publish(Some(by_revision(drifts)));
        let mut told = HashSet::with_capacity(drifts.len());
        for drift in drifts {
            let Drift { kind, namespace, workload_kind, workload, image_of, image, .. } = drift;
            let key = format!("{image_of} {image} {}", drift.digests.join(" "));
            let news = format!("{namespace} {workload_kind}/{workload} {} {key}", kind.reason());
            if !self.told.contains(&news) {
                let Some(pod) = pod_of(namespace, &drift.pod) else { continue };
                if self.telling.is_full() {
                    self.gather = true;
                    continue;
                }
                let message = drift.message.clone();
                tracing::info!(namespace, workload_kind, workload, drift = message, "images have drifted");
                let (context, reason) = (Arc::clone(context), kind.reason());
                self.telling.start(news.clone(), async move {
                    let about = concerned(&context, &pod).await;
                    context.events.tell(Notice { about, warning: true, reason, message, key });
                });
            }
            told.insert(news);
        }
        self.told = told;
    }
}
