//! Pull Pods in a round: what they came to, and when they are deleted.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::backoff::Backoff;
use fairlead_domain::digest::Digest;
use jiff::Timestamp;

use super::actions::{Action, Creation, Event, EventKind, Plan, Refusal};
use super::image::{Attached, Clock, Image, KnownNode, Refused};
use super::pod_state::{Failure, PullPod, PullState, pull_state};
use super::record::{Pull, Record};
use super::round::{Awaited, Deletion, SeenPod, UNSEEN, Warming};
use super::snapshot::Snapshot;
use super::time::{after, earliest, rounded_up};

/// How long a kubelet may try again by itself after a failure that may pass: it does so after ten seconds.
const STUCK_GRACE: Duration = Duration::from_secs(20);
/// How much later than the kubelet a pull is given up here: the kubelet may be gone.
const DEADLINE_GRACE: Duration = Duration::from_mins(1);
/// Pauses after Pods that were not created. They are not those of the policy, which are about pulls: an API server that
/// restarts is away for seconds.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));
/// After so many tries in a row that may have failed, images are held back and the status says so: a watch that is late
/// or an API server that restarts takes less.
const MOST_DOUBTS: u32 = 3;

impl Warming {
    pub(super) fn observe_pods(&mut self, snapshot: &Snapshot<'_>, plan: &mut Plan) {
        for pod in snapshot.pods {
            let awaited = self.awaited.remove(&pod.name);
            if let Some(awaited) = &awaited {
                self.accepted(&awaited.creation.order.record);
            }
            let seen = self.pods.get_mut(&pod.name);
            let deletion = seen.as_ref().map_or(Deletion::Nothing, |seen| seen.deletion);
            let own = awaited.is_some() || seen.as_ref().is_some_and(|seen| seen.own);
            if let Some(seen) = seen.filter(|seen| seen.pod == *pod && !seen.stale) {
                seen.round = self.round;
                continue;
            }
            let seen = SeenPod { pod: Arc::clone(pod), round: self.round, stale: false, own, deletion };
            self.pods.insert(Arc::clone(&pod.name), seen);
            // Its time is cut off. The start of a Pod that was asked for here is known.
            let started = if own { pod.created } else { rounded_up(pod.created) };
            self.observe_pod(pod, started, snapshot.now, plan);
        }
        let gone = self.pods.iter().filter(|(_, seen)| seen.round != self.round);
        let gone: Vec<_> = gone.map(|(name, seen)| (Arc::clone(name), seen.pod.record.clone())).collect();
        for (name, record) in gone {
            self.pods.remove(&name);
            self.finished.remove(&name);
            self.detach(&name, &record, snapshot.now);
        }
        self.repeat_creations(snapshot.now, plan);
    }

    /// Asks again for Pods that have not come although the API server has answered, or did not in time. It is the same
    /// Pod each time, also where images would share it with others by now: the first request may still succeed.
    fn repeat_creations(&mut self, now: Timestamp, plan: &mut Plan) {
        let images = &self.images;
        let is_wanted = |creation: &Creation| {
            let Creation { name, order } = creation;
            order.record.pulls.iter().any(|pull| {
                let image = images.get(&pull.uid);
                let attached = image.and_then(|image| image.pods.get(&order.record.node));
                attached.is_some_and(|attached| attached.pod == *name)
            })
        };
        self.awaited.retain(|_, Awaited { creation, answered, .. }| {
            // Answers do not make a round.
            let again = after(answered.unwrap_or(now), UNSEEN);
            if again > now {
                plan.look_again = earliest(plan.look_again, Some(again));
                return true;
            }
            let wanted = is_wanted(creation);
            if wanted {
                *answered = None;
                plan.actions.push(Action::Create(creation.clone()));
            }
            wanted
        });
    }

    /// The API server has the Pod.
    pub fn created(&mut self, pod: &str, now: Timestamp) {
        if let Some(awaited) = self.awaited.get_mut(pod) {
            awaited.answered = Some(now);
            awaited.doubts = 0;
        }
    }

    /// The API server may have the Pod: it did not answer, or has something of this name. The Pod keeps its slot and
    /// is asked for again. After some tries the image says so, and is held back.
    pub fn maybe_created(&mut self, pod: &str, why: Refusal<'_>, now: Timestamp) {
        let Some(awaited) = self.awaited.get_mut(pod) else { return };
        awaited.answered = Some(now);
        awaited.doubts = awaited.doubts.saturating_add(1);
        if awaited.doubts >= MOST_DOUBTS {
            let record = Arc::clone(&awaited.creation.order.record);
            self.refuse(&record, why, now);
        }
    }

    /// The API server was asked to delete the Pod.
    pub fn deleted(&mut self, pod: &str, now: Timestamp) {
        if let Some(seen) = self.pods.get_mut(pod) {
            seen.deletion = Deletion::Answered(now);
        }
    }

    /// The API server takes Pods of these images.
    fn accepted(&mut self, record: &Record) {
        for pull in &record.pulls {
            let image = self.images.get_mut(&pull.uid).filter(|image| image.refused.is_some());
            if let Some(image) = image {
                image.refused = None;
                image.touched = true;
            }
        }
    }

    /// A Pod is gone, or will not come.
    fn detach(&mut self, pod: &str, record: &Record, now: Timestamp) {
        for pull in &record.pulls {
            let Some(image) = self.images.get_mut(&pull.uid) else { continue };
            if image.pods.get(&record.node).is_some_and(|attached| *attached.pod == *pod) {
                image.pods.remove(&record.node);
                self.look(&pull.uid, &record.node, now);
            }
        }
    }

    fn observe_pod(&mut self, pod: &Arc<PullPod>, started: Timestamp, now: Timestamp, plan: &mut Plan) {
        let node = &pod.record.node;
        if pod.is_acknowledged() {
            self.acknowledged = self.acknowledged.max(Some(pod.created));
        }
        for pull in &pod.record.pulls {
            let (Some(image), Some(known)) = (self.images.get_mut(&pull.uid), self.nodes.get(node)) else {
                continue;
            };
            let known_attempt = image.memory.get(node).map_or(0, |row| row.attempt);
            let attached = image.pods.get(node);
            let later = attached.is_some_and(|attached| attached.attempt > pull.attempt);
            if pull.attempt <= known_attempt || later || !image.accepts(&pull.reference) {
                continue;
            }
            // Clocks differ.
            image.memory.started(started.min(now));
            let deadline = after(after(pod.created, self.settings.pull_deadline), DEADLINE_GRACE);
            let state = pull_state(pod, pull);
            if matches!(state, PullState::Present { .. } | PullState::Failed(_)) {
                // Deadlines are long: those of pulls that have ended would pile up.
                self.due.remove(&(deadline, Arc::clone(&pull.uid), Arc::clone(node)));
            }
            match state {
                PullState::Present { digest } => {
                    conclude(image, known, pod, pull, Ok(digest), now, plan);
                }
                PullState::Failed(failure) => conclude(image, known, pod, pull, Err(&failure), now, plan),
                state => {
                    let since = attached
                        .and_then(|attached| attached.stuck.as_ref())
                        .map_or(now, |(since, _)| *since);
                    let stuck = match state {
                        PullState::Stuck(failure) => Some((since, failure)),
                        _ => None,
                    };
                    let due = stuck.as_ref().map(|(since, _)| after(*since, STUCK_GRACE));
                    self.due.insert((due.unwrap_or(deadline), Arc::clone(&pull.uid), Arc::clone(node)));
                    let attached = Attached {
                        pod: Arc::clone(&pod.name),
                        attempt: pull.attempt,
                        reference: Arc::clone(&pull.reference),
                        created: pod.created,
                        seen: true,
                        acknowledged: pod.is_acknowledged(),
                        stuck,
                    };
                    let silent_at = attached.silent_at().filter(|at| *at > now);
                    self.due.extend(silent_at.map(|at| (at, Arc::clone(&pull.uid), Arc::clone(node))));
                    if let Some(replaced) = image.pods.insert(Arc::clone(node), attached) {
                        self.settle(&replaced.pod);
                    }
                }
            }
            self.look(&pull.uid, node, now);
        }
        self.settle(&pod.name);
    }

    /// A Pod that no image waits for any more is finished. While it is not decided what an image is pulled as, its Pods
    /// are left alone.
    pub(super) fn settle(&mut self, pod: &Arc<str>) {
        let Some(seen) = self.pods.get(pod) else { return };
        let record = &seen.pod.record;
        let awaited = record.pulls.iter().any(|pull| {
            let attached =
                |image: &Image| image.pods.get(&record.node).is_some_and(|found| found.pod == *pod);
            self.images.get(&pull.uid).is_some_and(|image| image.routed.is_none() || attached(image))
        });
        if awaited {
            self.finished.remove(pod);
        } else {
            self.finished.insert(Arc::clone(pod));
        }
    }

    /// Ends a pull that has taken too long, or whose kubelet did not get over its failure.
    pub(super) fn give_up(&mut self, image: &Arc<str>, node: &Arc<str>, now: Timestamp, plan: &mut Plan) {
        let (Some(image), Some(known)) = (self.images.get_mut(image), self.nodes.get(node)) else { return };
        let Some(attached) = image.pods.get(node) else { return };
        let deadline = after(after(attached.created, self.settings.pull_deadline), DEADLINE_GRACE);
        let failure = match &attached.stuck {
            Some((since, failure)) if after(*since, STUCK_GRACE) <= now => failure.clone(),
            _ if deadline <= now => Failure::new("DeadlineExceeded", "the pull did not end in time"),
            _ => {
                self.due.insert((deadline, Arc::clone(&image.uid), Arc::clone(node)));
                return;
            }
        };
        let name = Arc::clone(&attached.pod);
        let Some(pod) = self.pods.get(&name).map(|seen| Arc::clone(&seen.pod)) else { return };
        if let Some(pull) = pod.record.pulls.iter().find(|pull| pull.uid == image.uid) {
            conclude(image, known, &pod, pull, Err(&failure), now, plan);
        }
        self.settle(&name);
    }

    pub(super) fn delete_pods(&mut self, now: Timestamp, plan: &mut Plan) {
        for name in &self.finished {
            let Some(seen) = self.pods.get_mut(name) else { continue };
            let record = &seen.pod.record;
            // The result of a Pod whose deletion was asked for is stored; it is not looked up in every round.
            let stored = seen.deletion == Deletion::Asked
                || record.pulls.iter().all(|pull| {
                    let image = self.images.get(&pull.uid).filter(|_| self.nodes.contains_key(&record.node));
                    image.is_none_or(|image| !image.memory.is_unstored(&record.node, pull.attempt))
                });
            if !stored {
                continue;
            }
            let again = match seen.deletion {
                Deletion::Nothing => now,
                Deletion::Asked => after(now, UNSEEN),
                Deletion::Answered(at) => after(at, UNSEEN),
            };
            if again <= now {
                seen.deletion = Deletion::Asked;
                plan.actions.push(Action::Delete { pod: Arc::clone(name) });
            } else {
                plan.look_again = earliest(plan.look_again, Some(again));
            }
        }
    }

    /// Pods that are not stuck, each with the UID of its node, one of its images, and whether it takes a slot. Until it
    /// is decided what an image is pulled as, its Pods are attached to nothing, but they pull all the same.
    pub(super) fn pods_under_way(&self, clock: Clock) -> impl Iterator<Item = (&Arc<str>, &Image, bool)> {
        let attached = self.images.values().flat_map(|image| image.pods.iter().map(move |pod| (image, pod)));
        // A batch is the Pod of several images.
        let mut counted = HashSet::new();
        let attached = attached
            .filter(move |(_, (_, pod))| pod.stuck.is_none() && counted.insert(&*pod.pod))
            .map(move |(image, (node, pod))| (node, image, image.is_active(node, pod, clock)));
        let undecided = self.images.values().any(|image| image.routed.is_none());
        let seen = undecided.then(|| self.pods.values()).into_iter().flatten();
        attached.chain(seen.filter_map(move |seen| self.undecided_pull(&seen.pod, clock)))
    }

    /// A Pod that pulls an image of which it is not decided what it is pulled as, unless another image counts it.
    fn undecided_pull<'a>(
        &'a self,
        pod: &'a PullPod,
        clock: Clock,
    ) -> Option<(&'a Arc<str>, &'a Image, bool)> {
        let node = &pod.record.node;
        let pulls = pod.record.pulls.iter();
        let images = pulls.filter_map(|pull| Some((self.images.get(&pull.uid)?, pull)));
        let is_attached = |image: &Image| image.pods.get(node).is_some_and(|found| found.pod == pod.name);
        if images.clone().any(|(image, _)| is_attached(image)) {
            return None;
        }
        let mut undecided = images.filter(|(image, _)| image.routed.is_none());
        let (image, _) = undecided.find(|(_, pull)| pull_state(pod, pull) == PullState::Pulling)?;
        let is_ready = self.nodes.get(node).is_none_or(|known| known.node.ready);
        let is_silent = !pod.is_acknowledged() && clock.is_silent(pod.created);
        Some((node, image, is_ready && !is_silent))
    }

    pub(super) fn clock(&self, now: Timestamp) -> Clock {
        Clock { now, acknowledged: self.acknowledged }
    }

    /// The API server refused a Pod. The images of it are tried again after a pause.
    pub fn not_created(&mut self, pod: &str, refusal: Refusal<'_>, now: Timestamp) {
        let Some(awaited) = self.awaited.remove(pod) else { return };
        let record = awaited.creation.order.record;
        self.refuse(&record, refusal, now);
        self.detach(pod, &record, now);
    }

    fn refuse(&mut self, record: &Record, refusal: Refusal<'_>, now: Timestamp) {
        for pull in &record.pulls {
            let Some(image) = self.images.get_mut(&pull.uid) else { continue };
            // Pods that were asked for together count once.
            let (times, until) = match &image.refused {
                Some(refused) if now < refused.until => (refused.times, refused.until),
                before => {
                    let times = before.as_ref().map_or(0, |refused| refused.times);
                    (times.saturating_add(1), after(now, RETRY.plain(times)))
                }
            };
            let Failure { reason, message, .. } = Failure::new(refusal.reason, refusal.message);
            image.refused = Some(Refused { reason, message, times, until });
            image.touched = true;
        }
    }
}

fn conclude(
    image: &mut Image,
    known: &KnownNode,
    pod: &PullPod,
    pull: &Pull,
    result: Result<Option<Digest>, &Failure>,
    now: Timestamp,
    plan: &mut Plan,
) {
    if !image.conclude(known, pull, result, now) {
        return;
    }
    let took = Duration::try_from(now.duration_since(pod.created)).unwrap_or_default();
    let kind =
        result.map_or_else(|failure| EventKind::Failed(failure.clone()), |_| EventKind::Succeeded { took });
    let (image, name) = (Arc::clone(&image.uid), Arc::clone(&image.name));
    plan.actions.push(Action::Tell(Event { image, name, node: Arc::clone(&known.node.name), kind }));
}
