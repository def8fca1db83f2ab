//! When a failure is certain enough to act on.
//!
//! Kubelets flip between `ErrImagePull` and `ImagePullBackOff` while nothing changes, and a pull that failed once may
//! succeed the next time. So a definite cause is acted on at once, and any other when it is seen a second time or has
//! lasted for twenty seconds. A Pod without our record is acted on at once, as its annotation asks for.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{FailingPod, Malformed, RETRY_SECONDS, Unpatchable};
use crate::pull_failure::PullFailure;

/// How long a failure whose cause may pass lasts before it is acted on.
const PATIENCE: SignedDuration = SignedDuration::from_secs(20);

/// A container that could be given nothing is looked at again after this time, when verdicts have been refreshed.
const RECHECK: SignedDuration = SignedDuration::from_secs(30);

/// All failures that are known.
#[derive(Debug, Default)]
pub struct Incidents {
    pods: HashMap<Arc<str>, Incident>,
}

#[derive(Debug, Default)]
struct Incident {
    containers: HashMap<Box<str>, Failing>,
    /// The Pod is left alone until then.
    rest: Option<Timestamp>,
    /// No patch is sent until then, whatever else fails: the last one was refused.
    refused: Option<Timestamp>,
    /// A patch was refused because of a change that came before it, and decided about anew at once.
    overtaken: bool,
    /// What was reported already.
    reported: BTreeSet<String>,
}

/// One container with one image.
#[derive(Debug)]
struct Failing {
    image: Arc<str>,
    since: Timestamp,
    /// The kubelet's reason when it was last looked at.
    waiting: Box<str>,
    observations: u32,
    cause: PullFailure,
}

/// Something to report about a Pod, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// Images that cannot be pulled were detected.
    Detected {
        containers: Vec<usize>,
    },
    /// A container is not healed.
    LeftAlone {
        container: usize,
        why: Unpatchable,
    },
    Malformed(Malformed),
}

/// What follows for a Pod now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    /// Positions of the containers to heal.
    pub due: Vec<usize>,
    /// Positions of containers that only a new Pod can heal.
    pub unpatchable: Vec<usize>,
    pub notes: Vec<Note>,
    /// When to look again if nothing changes before.
    pub next: Option<Timestamp>,
}

impl Incidents {
    /// Forgets Pods that do not fail any more.
    pub fn retain(&mut self, present: &HashSet<&Arc<str>>) {
        self.pods.retain(|uid, _| present.contains(uid));
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Looks at a Pod as it is now.
    pub fn look(&mut self, pod: &FailingPod<'_>, now: Timestamp) -> Look {
        let incident = self.pods.entry(pod.uid.clone()).or_default();
        let mut look = Look::default();
        let detected = incident.observe(pod, now);
        if !detected.is_empty() {
            look.notes.push(Note::Detected { containers: detected });
        }
        for malformed in pod.written.malformed() {
            if incident.reported.insert(format!("{} {}", malformed.annotation, malformed.error)) {
                look.notes.push(Note::Malformed(malformed));
            }
        }
        let record = pod.written.record();
        for (position, container) in pod.containers.iter().enumerate() {
            let Some(failing) = incident.containers.get(container.name()) else {
                look.next = look.next.into_iter().chain(pod.old_news_until(container, now)).min();
                continue;
            };
            let mut judged = container.clone();
            judged.failure = failing.cause;
            let why = judged.unpatchable();
            if let Some(why) = why {
                let report = format!("{} {} {why:?}", container.name(), container.image);
                // The kubelet's own limit passes by itself.
                let passes = why == Unpatchable::Cause(PullFailure::TooManyPulls);
                if !passes && incident.reported.insert(report) {
                    look.notes.push(Note::LeftAlone { container: position, why });
                }
            }
            if matches!(why, Some(Unpatchable::Cause(_) | Unpatchable::Ephemeral)) {
                continue;
            }
            let (place, image) = container.at_fault();
            let is_recorded = pod.route(record.as_ref(), &place, image).is_some();
            let wait = failing.since.saturating_add(PATIENCE).unwrap_or(now);
            let certain =
                !is_recorded || failing.cause.is_definite() || failing.observations > 1 || now >= wait;
            if !certain {
                look.next = Some(look.next.map_or(wait, |next| next.min(wait)));
            } else if why.is_some() {
                look.unpatchable.push(position);
            } else {
                look.due.push(position);
            }
        }
        let rest = incident.rest.into_iter().chain(incident.refused).max();
        if let Some(rest) = rest.filter(|rest| *rest > now) {
            look.next = Some(look.next.map_or(rest, |next| next.min(rest)));
            look.due.clear();
            look.unpatchable.clear();
        }
        look
    }

    /// The patch of a Pod was refused.
    pub fn failed(&mut self, uid: &Arc<str>, now: Timestamp) {
        if let Some(incident) = self.pods.get_mut(uid) {
            incident.refused = now.checked_add(SignedDuration::from_secs(RETRY_SECONDS)).ok();
        }
    }

    /// The patch of a Pod was refused, and the Pod has changed since that was decided on. Whether it is decided about
    /// anew at once: the first time. A Pod that is written all the time has a patch refused as often as it is sent.
    pub fn may_repeat(&mut self, uid: &Arc<str>) -> bool {
        self.pods.get_mut(uid).is_none_or(|incident| !std::mem::replace(&mut incident.overtaken, true))
    }

    /// Nothing can be pulled now, or nothing is left to do.
    pub fn waits(&mut self, uid: &Arc<str>, now: Timestamp) {
        self.rest(uid, now, RECHECK);
    }

    /// The Pod was patched: until the watch shows it, it looks as it did before.
    pub fn patched(&mut self, uid: &Arc<str>, now: Timestamp) {
        if let Some(incident) = self.pods.get_mut(uid) {
            (incident.refused, incident.overtaken) = (None, false);
        }
        self.rest(uid, now, SignedDuration::from_secs(RETRY_SECONDS));
    }

    fn rest(&mut self, uid: &Arc<str>, now: Timestamp, time: SignedDuration) {
        if let Some(incident) = self.pods.get_mut(uid) {
            incident.rest = now.checked_add(time).ok();
        }
    }

    /// Whether something is reported of a Pod for the first time. `key` makes it the same news, however it is put.
    pub fn is_news(&mut self, uid: &Arc<str>, key: &str) -> bool {
        self.pods.get_mut(uid).is_some_and(|incident| incident.reported.insert(key.to_owned()))
    }
}

impl Incident {
    /// Takes up how the containers fail now, and returns the positions of those that did not before.
    fn observe(&mut self, pod: &FailingPod<'_>, now: Timestamp) -> Vec<usize> {
        let mut detected = Vec::new();
        self.containers.retain(|name, failing| {
            pod.containers.iter().any(|one| one.name() == &**name && *one.image == failing.image)
        });
        for (position, container) in pod.containers.iter().enumerate() {
            if let Some(failing) = self.containers.get_mut(container.name()) {
                if *failing.waiting != *container.waiting {
                    failing.waiting = container.waiting.into();
                    failing.observations += 1;
                }
                // What the kubelet repeats while it waits may lack the cause that it told before.
                if container.failure != PullFailure::Unknown {
                    failing.cause = container.failure;
                }
                continue;
            }
            if pod.old_news_until(container, now).is_some() {
                continue;
            }
            detected.push(position);
            // Another image, another incident: what was to be waited for is over.
            self.rest = None;
            let failing = Failing {
                image: Arc::clone(container.image),
                since: now,
                waiting: container.waiting.into(),
                observations: 1,
                cause: container.failure,
            };
            self.containers.insert(container.name().into(), failing);
        }
        detected
    }
}
