//! Pull Pods in a round: what they came to, and when they are deleted.

use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::digest::Digest;
use jiff::Timestamp;

use super::actions::{Action, Event, EventKind, Plan, Refusal};
use super::image::{Attached, Image, KnownNode, Refused};
use super::pod_state::{Failure, PullPod, PullState, pull_state};
use super::record::{Pull, Record};
use super::round::{SeenPod, UNSEEN, Warming};
use super::snapshot::Snapshot;
use super::time::{after, earliest};

/// How long a kubelet may try again by itself after a failure that may pass: it does so after ten seconds.
const STUCK_GRACE: Duration = Duration::from_secs(20);
/// How much later than the kubelet a pull is given up here: the kubelet may be gone.
const DEADLINE_GRACE: Duration = Duration::from_mins(1);
/// Pauses after Pods that were not created. They are not those of the policy, which are about pulls: an API server that
/// restarts is away for seconds.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

impl Warming {
    pub(super) fn observe_pods(&mut self, snapshot: &Snapshot<'_>, plan: &mut Plan) {
        for pod in snapshot.pods {
            if let Some(awaited) = self.awaited.remove(&pod.name) {
                self.accepted(&awaited.record);
            }
            let seen = self.pods.get_mut(&pod.name);
            let delete_asked = seen.as_ref().and_then(|seen| seen.delete_asked);
            if let Some(seen) = seen.filter(|seen| seen.pod == *pod && !seen.stale) {
                seen.round = self.round;
                continue;
            }
            let seen = SeenPod { pod: Arc::clone(pod), round: self.round, stale: false, delete_asked };
            self.pods.insert(Arc::clone(&pod.name), seen);
            self.observe_pod(pod, snapshot.now, plan);
        }
        let gone = self.pods.iter().filter(|(_, seen)| seen.round != self.round);
        let gone: Vec<_> = gone.map(|(name, seen)| (Arc::clone(name), seen.pod.record.clone())).collect();
        for (name, record) in gone {
            self.pods.remove(&name);
            self.finished.remove(&name);
            self.detach(&name, &record, snapshot.now);
        }
        let unseen = self.awaited.iter().filter(|(_, awaited)| after(awaited.since, UNSEEN) <= snapshot.now);
        let unseen: Vec<_> = unseen.map(|(name, _)| Arc::clone(name)).collect();
        for name in unseen {
            if let Some(awaited) = self.awaited.remove(&name) {
                self.detach(&name, &awaited.record, snapshot.now);
            }
        }
        let oldest = self.awaited.values().map(|awaited| awaited.since).min();
        plan.look_again = earliest(plan.look_again, oldest.map(|since| after(since, UNSEEN)));
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

    /// A Pod is gone, or never came.
    fn detach(&mut self, pod: &str, record: &Record, now: Timestamp) {
        for pull in &record.pulls {
            let Some(image) = self.images.get_mut(&pull.uid) else { continue };
            if image.pods.get(&record.node).is_some_and(|attached| *attached.pod == *pod) {
                image.pods.remove(&record.node);
                self.look(&pull.uid, &record.node, now);
            }
        }
    }

    fn observe_pod(&mut self, pod: &Arc<PullPod>, now: Timestamp, plan: &mut Plan) {
        let node = &pod.record.node;
        for pull in &pod.record.pulls {
            let (Some(image), Some(known)) = (self.images.get_mut(&pull.uid), self.nodes.get(node)) else {
                continue;
            };
            let known_attempt = image.memory.get(node).map_or(0, |row| row.attempt);
            let attached = image.pods.get(node);
            let later = attached.is_some_and(|attached| attached.attempt > pull.attempt);
            let wanted = image.reference().is_some_and(|reference| *reference.as_str() == *pull.reference);
            if pull.attempt <= known_attempt || later || !wanted {
                continue;
            }
            // Clocks differ.
            image.memory.started(pod.created.min(now));
            match pull_state(pod, pull) {
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
                    let deadline = after(after(pod.created, self.settings.pull_deadline), DEADLINE_GRACE);
                    self.due.insert((due.unwrap_or(deadline), Arc::clone(&pull.uid), Arc::clone(node)));
                    let attached = Attached {
                        pod: Arc::clone(&pod.name),
                        attempt: pull.attempt,
                        reference: Arc::clone(&pull.reference),
                        created: pod.created,
                        stuck,
                    };
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
            let stored = record.pulls.iter().all(|pull| {
                let image = self.images.get(&pull.uid).filter(|_| self.nodes.contains_key(&record.node));
                image.is_none_or(|image| {
                    let recorded =
                        image.memory.get(&record.node).is_some_and(|row| row.attempt >= pull.attempt);
                    !recorded || image.memory.is_stored(&record.node, pull.attempt)
                })
            });
            if !stored {
                continue;
            }
            let again = seen.delete_asked.map(|asked| after(asked, UNSEEN));
            if again.is_none_or(|again| again <= now) {
                seen.delete_asked = Some(now);
                plan.actions.push(Action::Delete { pod: Arc::clone(name) });
            }
            plan.look_again = earliest(plan.look_again, seen.delete_asked.map(|asked| after(asked, UNSEEN)));
        }
    }

    /// Pods that take slots, each with the UID of its node and its first image.
    pub(super) fn active_pods(&self) -> impl Iterator<Item = (&Arc<str>, &Image)> {
        let seen = self.pods.iter().map(|(name, seen)| (name, &seen.pod.record));
        let awaited = self.awaited.iter().map(|(name, awaited)| (name, &awaited.record));
        seen.chain(awaited).filter_map(|(name, record)| {
            let mut images = record.pulls.iter().filter_map(|pull| self.images.get(&pull.uid));
            let image = images.find(|image| {
                let attached = image.pods.get(&record.node);
                attached.is_some_and(|attached| attached.pod == *name && attached.stuck.is_none())
            })?;
            Some((&record.node, image))
        })
    }

    /// The API server refused a Pod. The images of it are tried again after a pause.
    pub fn not_created(&mut self, pod: &str, refusal: Refusal<'_>, now: Timestamp) {
        let Some(awaited) = self.awaited.remove(pod) else { return };
        for pull in &awaited.record.pulls {
            let Some(image) = self.images.get_mut(&pull.uid) else { continue };
            // Pods that were asked for together count once.
            let (times, until) = match &image.refused {
                Some(refused) if now < refused.until => (refused.times, refused.until),
                before => {
                    let times = before.as_ref().map_or(0, |refused| refused.times);
                    let pause = FIRST_PAUSE.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX));
                    (times.saturating_add(1), after(now, pause.min(LONGEST_PAUSE)))
                }
            };
            let Failure { reason, message, .. } = Failure::new(refusal.reason, refusal.message);
            image.refused = Some(Refused { reason, message, times, until });
            image.touched = true;
        }
        self.detach(pod, &awaited.record, now);
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
