//! One image on all nodes: who should hold it, who does, who is next, and who failed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::drop::{CachedImage, CachedImagePhase, PullPolicy};
use fairlead_domain::{
    digest::Digest,
    reference::{HostKey, Reference},
};
use jiff::Timestamp;
use twox_hash::XxHash64;

use super::eviction::{Evictions, LIST_DELAY, is_evicted};
use super::memory::{Memory, Outcome, Row};
use super::pacing::{Pace, Progress};
use super::pod_state::Failure;
use super::record::Pull;
use super::round::UNSEEN;
use super::snapshot::Routed;
use super::targets::{Skip, Targets};
use super::time::{after, earliest};
use crate::ledger::whole_seconds;
use crate::node::Node;

/// How often a list that lacks an image is looked at again.
const LIST_INTERVAL: Duration = Duration::from_mins(1);
/// A pull that is the first for so long is of what Pods would be given now, and so is one that is due again.
const ROUTE_AGE: Duration = Duration::from_mins(5);
/// And so is any other, if what was decided is that old: nodes may join, or a rollout go on, for days.
const LONGEST_ROUTE_AGE: Duration = Duration::from_hours(1);
/// How often it is looked whether an image has got a variant for nodes that were left out.
const PLATFORM_AGE: Duration = Duration::from_hours(1);
/// A kubelet that has said nothing about a Pod for so long is gone, or hangs, if others do answer: they take a second
/// or two.
const SILENCE: Duration = Duration::from_secs(15);

/// A node with the time of its last report.
#[derive(Debug, Clone)]
pub(super) struct KnownNode {
    pub(super) node: Arc<Node>,
    pub(super) reported_at: Timestamp,
    /// Pods are held back from it until its images are there.
    pub(super) gated: bool,
}

/// The order in which nodes get an image: those that Pods wait for, then those without it, then those that failed or
/// have an older one. Images go through the nodes in different orders, so that they rarely meet on one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Pods do not wait for it.
    open: bool,
    /// It failed, or has an older one.
    again: bool,
    hash: u64,
    pub(super) node: Arc<str>,
}

impl Rank {
    /// The node lacks the image, and has not failed to pull it.
    pub(super) fn is_fresh(&self) -> bool {
        !self.again
    }
}

/// How one node stands to the image. There are as many as nodes times images, and few nodes are skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stance {
    Skipped(Box<Skip>),
    Target { holds: bool, failing: bool, need: Need },
}

/// What a node needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Nothing,
    /// A pull, as soon as there is a slot. See [`Rank`].
    Pull {
        open: bool,
        again: bool,
    },
    /// A pull, after a pause.
    Later,
    /// The end of the pull that is under way.
    Pulling,
}

/// A Pod that pulls the image onto a node.
#[derive(Debug, Clone)]
pub(super) struct Attached {
    pub(super) pod: Arc<str>,
    pub(super) attempt: u32,
    pub(super) reference: Arc<str>,
    pub(super) created: Timestamp,
    /// The watch has shown it.
    pub(super) seen: bool,
    /// The kubelet has said something about it.
    pub(super) acknowledged: bool,
    /// Since when it has been waiting for the kubelet's next try, and why.
    pub(super) stuck: Option<(Timestamp, Failure)>,
}

impl Attached {
    /// When it stops taking a slot unless its kubelet says something about it, and if others speak. No kubelet knows of
    /// a Pod that the API server may not have.
    pub(super) fn silent_at(&self) -> Option<Timestamp> {
        (self.seen && !self.acknowledged).then(|| after(self.created, SILENCE))
    }
}

/// Why Pods of the image could not be created.
#[derive(Debug, Clone)]
pub(super) struct Refused {
    pub(super) reason: Arc<str>,
    pub(super) message: Arc<str>,
    pub(super) times: u32,
    pub(super) until: Timestamp,
}

/// By what it is told whether kubelets are silent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub(super) now: Timestamp,
    /// When the latest of all Pods was created of which a kubelet has said something.
    pub(super) acknowledged: Option<Timestamp>,
}

impl Clock {
    /// Whether a kubelet that has said nothing about a Pod of this age is taken for silent: others speak.
    pub(super) fn is_silent(self, created: Timestamp) -> bool {
        let passed_over = self.acknowledged.is_some_and(|latest| created <= latest);
        passed_over && after(created, SILENCE) <= self.now
    }
}

/// Sums over all nodes.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) targeted: usize,
    pub(super) pulling: usize,
    /// Names of the nodes that hold the image.
    pub(super) ready: BTreeSet<Arc<str>>,
    /// UIDs of the targets whose last pull failed, by name.
    pub(super) failing: BTreeMap<Arc<str>, Arc<str>>,
    pub(super) skipped: BTreeMap<Skip, usize>,
    /// Nodes that hold the image and are to pull it again now.
    due: usize,
}

#[derive(Debug)]
pub(super) struct Image {
    pub(super) object: Arc<CachedImage>,
    pub(super) name: Arc<str>,
    pub(super) uid: Arc<str>,
    pub(super) policy: Option<Arc<PullPolicy>>,
    pub(super) policy_name: Option<Arc<str>>,
    pub(super) pace: Pace,
    /// None: not decided yet.
    pub(super) routed: Option<Routed>,
    /// When it was last asked for another decision.
    pub(super) route_asked: Option<Timestamp>,
    pub(super) memory: Memory,
    evictions: Evictions,
    stances: HashMap<Arc<str>, Stance>,
    pub(super) waiting: BTreeSet<Rank>,
    /// By UID of the node.
    pub(super) pods: HashMap<Arc<str>, Attached>,
    pub(super) tally: Tally,
    /// Of the present reference: when it was last pulled, and which digest it had last.
    pub(super) latest_pull: Option<(Timestamp, Option<Digest>)>,
    /// Failures since the last success, on whatever node, that have to do with the image or its registry.
    common_failures: u32,
    pub(super) last_failure: Option<Timestamp>,
    pub(super) refused: Option<Refused>,
    /// It was there when this lease holder first planned.
    pub(super) inherited: bool,
    /// When it came, or it was last found that something about it is another.
    pub(super) renewed: Timestamp,
    /// When it last got a slot, counted in slots.
    pub(super) served: u64,
    /// Its status may be another.
    pub(super) touched: bool,
    /// When it, its policy or its pull secrets were last edited: what failed before may succeed now.
    edited: Option<Timestamp>,
    /// When its status was last written, and with which phase.
    pub(super) reported: Option<(Timestamp, CachedImagePhase)>,
    /// The registry that it is pulled from.
    pub(super) host: Option<HostKey>,
    /// Why that registry gets no new pulls, if it gets none.
    pub(super) held_back: Option<Arc<str>>,
}

impl Image {
    pub(super) fn new(object: Arc<CachedImage>, memory: Memory, now: Timestamp) -> Self {
        let text = |field: Option<&String>| Arc::<str>::from(field.map_or("", String::as_str));
        Self {
            name: text(object.metadata.name.as_ref()),
            uid: text(object.metadata.uid.as_ref()),
            latest_pull: None,
            last_failure: memory.iter().filter_map(|(_, row)| row.failed_at()).max(),
            object,
            policy: None,
            policy_name: None,
            pace: Pace::new(None),
            routed: None,
            route_asked: None,
            memory,
            evictions: Evictions::default(),
            stances: HashMap::new(),
            waiting: BTreeSet::new(),
            pods: HashMap::new(),
            tally: Tally::default(),
            common_failures: 0,
            refused: None,
            inherited: false,
            renewed: now,
            served: 0,
            touched: true,
            edited: None,
            reported: None,
            host: None,
            held_back: None,
        }
    }

    pub(super) fn reference(&self) -> Option<&Reference> {
        self.routed.as_ref()?.reference.as_ref().ok()
    }

    /// Whether what was pulled as this reference counts.
    pub(super) fn accepts(&self, reference: &str) -> bool {
        self.routed.as_ref().is_some_and(|routed| routed.accepts(reference).is_some())
    }

    /// The place that a row is about, if the row counts. What failed elsewhere may succeed where Pods are sent now, but
    /// what a node got before that is there still.
    fn place(&self, row: &Row) -> Option<&Reference> {
        let place = self.routed.as_ref()?.accepts(&row.reference)?;
        let counts = row.failures() == 0 || row.pulled_at.is_some() || Some(place) == self.reference();
        counts.then_some(place)
    }

    pub(super) fn stance(&self, node: &str) -> Option<&Stance> {
        self.stances.get(node)
    }

    /// The most failures in a row that a node has had.
    pub(super) fn most_failures(&self) -> u32 {
        let rows = self.tally.failing.values().filter_map(|uid| self.memory.get(uid));
        rows.map(Row::failures).max().unwrap_or(0)
    }

    /// Whether the Pod on a node takes a slot. One on a node that is not ready, or whose kubelet is silent, may never
    /// end. Where all kubelets are silent the limits hold: each of them may begin to pull any time.
    pub(super) fn is_active(&self, node: &str, pod: &Attached, clock: Clock) -> bool {
        let silent = pod.seen && !pod.acknowledged && clock.is_silent(pod.created);
        // Usually all nodes are ready, and this is asked for every Pod in every round.
        let dead = self.tally.skipped.contains_key(&Skip::NotReady)
            && matches!(self.stances.get(node), Some(Stance::Skipped(skip)) if **skip == Skip::NotReady);
        pod.stuck.is_none() && !dead && !silent
    }

    pub(super) fn progress(&self, clock: Clock) -> Progress {
        Progress {
            active: self.pods.iter().filter(|(node, pod)| self.is_active(node, pod, clock)).count(),
            last_start: self.memory.last_start(),
            image_failures: self.common_failures,
            last_failure: self.last_failure,
            is_held: !self.tally.ready.is_empty(),
            fresh: self.common_failures > 0 && self.waiting.iter().any(Rank::is_fresh),
        }
    }

    /// Whether the reference was decided on too long ago to be pulled now. During a rollout it stays for a while,
    /// whatever registries say meanwhile, unless pulls fail.
    pub(super) fn is_outdated(&self, now: Timestamp) -> bool {
        let Some(planned_at) = self.routed.as_ref().map(|routed| routed.planned_at) else { return false };
        let failed_since = self.common_failures > 0 && self.last_failure > Some(planned_at);
        let last_use = self.memory.last_start().filter(|_| self.tally.due == 0);
        failed_since
            || after(planned_at.max(last_use.unwrap_or(planned_at)), ROUTE_AGE) <= now
            || after(planned_at, LONGEST_ROUTE_AGE) <= now
    }

    /// When to look whether the image has got a variant for nodes that it has none for. A digest never gets one.
    pub(super) fn platforms_due(&self) -> Option<Timestamp> {
        let lacks = self.tally.skipped.keys().any(|skip| matches!(skip, Skip::Platform { .. }));
        let moves = self.reference().is_some_and(|reference| reference.digest().is_none());
        let planned_at = self.routed.as_ref().filter(|_| lacks && moves)?.planned_at;
        Some(after(planned_at, PLATFORM_AGE))
    }

    /// Notes that another decision is asked for. `false`: that was done a moment ago.
    pub(super) fn ask_for_route(&mut self, now: Timestamp) -> bool {
        let asks = self.route_asked.is_none_or(|asked| after(asked, UNSEEN) <= now);
        if asks {
            self.route_asked = Some(now);
        }
        asks
    }

    /// Whether no pull is under way or waits for a slot.
    pub(super) fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.pods.is_empty()
    }

    /// Number of the next Pod on a node.
    pub(super) fn next_attempt(&self, node: &str) -> u32 {
        self.memory.get(node).map_or(0, |row| row.attempt).saturating_add(1)
    }

    /// Looks at a node. Returns when that has to be done again although nothing happens.
    pub(super) fn look(&mut self, known: &KnownNode, now: Timestamp) -> Option<Timestamp> {
        let node = &known.node;
        if self.reference().is_none() {
            self.forget_stance(&node.uid, &node.name);
            return None;
        }
        let unlisted = self.memory.get(&node.uid).filter(|row| row.unlisted);
        if unlisted.and_then(|row| self.place(row)).is_some_and(|place| node.lists_image(place)) {
            self.memory.listed(&node.uid);
        }
        let (stance, again) = self.judge(known, now);
        self.set(node, stance);
        again
    }

    fn judge(&self, known: &KnownNode, now: Timestamp) -> (Stance, Option<Timestamp>) {
        let node = &known.node;
        let platforms = self.routed.as_ref().map_or(&[][..], |routed| &routed.platforms);
        let policy = self.policy.as_ref().map(|policy| &policy.spec);
        if let Some(skip) = Targets::new(&self.object.spec, policy, platforms).skip(node) {
            return (Stance::Skipped(Box::new(skip)), None);
        }
        let found = self.memory.get(&node.uid).and_then(|row| Some((row, self.place(row)?)));
        let evicted = found.is_some_and(|(row, place)| is_evicted(row, known, place));
        let row = found.map(|(row, _)| row);
        let holds = !evicted && row.is_some_and(|row| row.pulled_at.is_some());
        let failing = row.is_some_and(|row| row.failures() > 0);
        let pull = |again: bool| Need::Pull { open: !known.gated, again };
        let (need, again) = match row {
            _ if self.pods.contains_key(&node.uid) => (Need::Pulling, None),
            Some(row) if failing => {
                let failed_at = row.failed_at().filter(|at| self.edited.is_none_or(|edited| edited < *at));
                let until = failed_at.map(|at| self.pace.retry_at(at, row.failures()));
                match until.filter(|until| *until > now) {
                    Some(until) => (Need::Later, Some(until)),
                    None => (pull(true), None),
                }
            }
            Some(Row { pulled_at: Some(pulled_at), unlisted, .. }) if holds => {
                let due = self.pace.repull.map(|interval| after(*pulled_at, interval));
                let listed = found.is_some_and(|(_, place)| node.lists_image(place));
                let unlisted = !unlisted && node.lists_all_images() && !listed;
                let list = unlisted.then(|| after(*pulled_at, LIST_DELAY).max(after(now, LIST_INTERVAL)));
                match due {
                    Some(due) if due <= now => (pull(true), None),
                    due => (Need::Nothing, earliest(due, list)),
                }
            }
            row => {
                let pulled_at = row.filter(|_| evicted).and_then(|row| row.pulled_at);
                match pulled_at.map(|at| self.evictions.pull_at(&node.uid, at)).filter(|until| *until > now) {
                    Some(until) => (Need::Later, Some(until)),
                    None => (pull(false), None),
                }
            }
        };
        (Stance::Target { holds, failing, need }, again)
    }

    fn rank(&self, node: &Arc<str>, open: bool, again: bool) -> Rank {
        let mut hasher = XxHash64::default();
        hasher.write(self.uid.as_bytes());
        hasher.write(node.as_bytes());
        Rank { open, again, hash: hasher.finish(), node: Arc::clone(node) }
    }

    fn set(&mut self, node: &Node, stance: Stance) {
        if self.stances.get(&node.uid) == Some(&stance) {
            return;
        }
        self.forget_stance(&node.uid, &node.name);
        match &stance {
            Stance::Skipped(skip) => *self.tally.skipped.entry((**skip).clone()).or_default() += 1,
            Stance::Target { holds, failing, need } => {
                self.tally.targeted += 1;
                if *holds {
                    self.tally.ready.insert(Arc::clone(&node.name));
                }
                if *failing {
                    self.tally.failing.insert(Arc::clone(&node.name), Arc::clone(&node.uid));
                }
                match need {
                    Need::Pull { open, again } => {
                        self.waiting.insert(self.rank(&node.uid, *open, *again));
                        self.tally.due += usize::from(*holds && !failing);
                    }
                    Need::Pulling => self.tally.pulling += 1,
                    Need::Nothing | Need::Later => {}
                }
            }
        }
        self.stances.insert(Arc::clone(&node.uid), stance);
        self.touched = true;
    }

    fn forget_stance(&mut self, uid: &str, name: &str) {
        let Some((uid, stance)) = self.stances.remove_entry(uid) else { return };
        match stance {
            Stance::Skipped(skip) => {
                if let Some(count) = self.tally.skipped.get_mut(&skip) {
                    *count -= 1;
                    if *count == 0 {
                        self.tally.skipped.remove(&skip);
                    }
                }
            }
            Stance::Target { holds, failing, need } => {
                self.tally.targeted -= 1;
                if holds {
                    self.tally.ready.remove(name);
                }
                if failing {
                    self.tally.failing.remove(name);
                }
                match need {
                    Need::Pull { open, again } => {
                        self.waiting.remove(&self.rank(&uid, open, again));
                        self.tally.due -= usize::from(holds && !failing);
                    }
                    Need::Pulling => self.tally.pulling -= 1,
                    Need::Nothing | Need::Later => {}
                }
            }
        }
        self.touched = true;
    }

    /// The node is gone for good. Returns the Pod that was pulling onto it.
    pub(super) fn forget(&mut self, node: &Node) -> Option<Attached> {
        self.forget_stance(&node.uid, &node.name);
        self.memory.forget(&node.uid);
        self.evictions.forget(&node.uid);
        self.pods.remove(&node.uid)
    }

    /// A pull ended. `false`: that is known already.
    pub(super) fn conclude(
        &mut self,
        known: &KnownNode,
        pull: &Pull,
        result: Result<Option<Digest>, &Failure>,
        at: Timestamp,
    ) -> bool {
        let node = &known.node;
        if self.pods.get(&node.uid).is_some_and(|pod| pod.attempt == pull.attempt) {
            self.pods.remove(&node.uid);
        }
        let row = self.memory.get(&node.uid);
        if row.is_some_and(|row| row.attempt >= pull.attempt) {
            return false;
        }
        // A failure takes nothing away that the node has from another place.
        let held = |row: &Row| result.is_err() && row.pulled_at.is_some() && self.accepts(&row.reference);
        let kept = row.filter(|row| row.reference == pull.reference || held(row));
        let placed = kept.and_then(|row| Some((row, self.place(row)?)));
        let evicted = placed.is_some_and(|(row, place)| is_evicted(row, known, place));
        // Only a pull that succeeds brings back what was removed.
        let restored = evicted && result.is_ok();
        let unlisted = restored || placed.is_some_and(|(row, _)| row.unlisted);
        if restored {
            self.evictions.note(&node.uid, row.and_then(|row| row.pulled_at), at);
        }
        let reference = kept.map_or_else(|| Arc::clone(&pull.reference), |row| Arc::clone(&row.reference));
        let outcome = Outcome { attempt: pull.attempt, reference: &reference, result, at, unlisted };
        self.memory.record(&node.uid, &node.name, &outcome);
        match result {
            Ok(digest) => {
                // Some runtimes do not say which it was.
                self.latest_pull = Some((at, digest.or_else(|| self.latest_pull?.1)));
                self.common_failures = 0;
            }
            Err(failure) => {
                self.last_failure = Some(at);
                let counts = failure.of_image
                    && self.reference().is_some_and(|chosen| *chosen.as_str() == *pull.reference);
                self.common_failures = self.common_failures.saturating_add(counts.into());
            }
        }
        self.touched = true;
        true
    }

    /// The image, its policy or its reference is another: failures so far do not count against it.
    pub(super) fn renew(&mut self, policy: Option<Arc<PullPolicy>>, routed: Option<Routed>, now: Timestamp) {
        self.pace = Pace::new(policy.as_ref().map(|policy| &policy.spec));
        self.policy_name = policy.as_ref().and_then(|policy| policy.metadata.name.as_deref()).map(Into::into);
        self.policy = policy;
        self.routed = routed;
        self.route_asked = None;
        self.host = self.reference().map(|reference| HostKey::of(reference.host().as_str()));
        self.latest_pull = self.stored_pull();
        self.common_failures = 0;
        self.refused = None;
        self.renewed = now;
        self.touched = true;
    }

    /// Something that may cure failures was edited.
    pub(super) fn note_edit(&mut self, now: Timestamp) {
        self.edited = Some(whole_seconds(now));
    }

    fn stored_pull(&self) -> Option<(Timestamp, Option<Digest>)> {
        let rows = || self.memory.iter().map(|(_, row)| row).filter(|row| self.accepts(&row.reference));
        let last = rows().filter_map(|row| row.pulled_at).max()?;
        let known = rows().filter_map(|row| Some((row.pulled_at?, **row.digest.as_ref()?)));
        Some((last, known.max_by_key(|(at, _)| *at).map(|(_, digest)| digest)))
    }
}
