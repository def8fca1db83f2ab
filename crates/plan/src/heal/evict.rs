//! Pods that only a new Pod can heal: the image of a volume and the pull secrets of a Pod are immutable.
//!
//! A Pod is evicted only where the configuration says so, only if a controller makes another one, and only if admission
//! would give that one something else.

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use jiff::{SignedDuration, Timestamp};

use super::{Choice, FailingContainer, FailingPod};
use crate::owners::Controller;
use crate::routing::Alternatives;

/// The Pods of one controller are evicted no faster than this, and so often within [`MEMORY`].
const PAUSE: SignedDuration = SignedDuration::from_secs(30);
const MOST: usize = 5;
const MEMORY: SignedDuration = SignedDuration::from_hours(1);

/// Controllers that are remembered.
const MOST_CONTROLLERS: usize = 4096;

/// What the configuration allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allowed {
    pub unpatchable: bool,
    /// Also Pods of Jobs, for which an evicted Pod may count as a failed one.
    pub jobs: bool,
}

/// Why a Pod is not evicted, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotEvicted {
    /// The configuration does not allow it.
    Off,
    Jobs,
    /// No controller would make another Pod.
    Bare,
    /// A main container of it runs or ran.
    InUse,
    /// A new Pod would be given the same image.
    NothingElse,
    /// Pods of its controller were evicted a moment ago.
    Later(Timestamp),
    /// They were evicted often, and it did not help.
    TooOften,
}

impl NotEvicted {
    /// For the event on the Pod.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Off => {
                "delete the Pod to have its replacement routed, or set heal.evictUnpatchable in the configuration"
            }
            Self::Jobs => {
                "delete the Pod, or set heal.evictJobs in the configuration: the Job may count it as failed"
            }
            Self::Bare => "no controller replaces this Pod: delete it and create it again",
            Self::InUse => "a container of this Pod has run: delete the Pod to have its replacement routed",
            Self::NothingElse => "no other place has the image, so a replacement would fail alike",
            Self::Later(_) => "another Pod of the same controller was evicted a moment ago",
            Self::TooOften => {
                "Pods of this controller were evicted several times and their replacements failed, too"
            }
        }
    }
}

/// A Pod that a patch cannot heal.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    pub controller: Option<Controller<'a>>,
    /// A main container runs or ran, or a person uses the Pod.
    pub in_use: bool,
    /// Another place than the one that failed has the image now.
    pub has_other_place: bool,
}

/// A container that only a new Pod can heal: because of an image volume, or of pull secrets that this one lacks.
/// `unpatchable` are positions of containers, and `choices` what was decided about others.
pub fn needs_new_pod<'f, 'p>(
    pod: &'f FailingPod<'p>,
    unpatchable: &[usize],
    choices: &[(usize, Choice)],
) -> Option<&'f FailingContainer<'p>> {
    let container = |position: &usize| pod.containers.get(*position);
    let volumes = unpatchable.iter().filter_map(container).filter(|one| one.volume.is_some());
    let locked = choices.iter().filter(|(_, choice)| choice.is_locked());
    volumes.chain(locked.filter_map(|(position, _)| container(position))).next()
}

/// Whether admission would give a new Pod another image than the one that failed: the first place that can be used is
/// another one. `verdicts` are in the order of the places, for the pull secrets that the new Pod would have, and were
/// judged.
pub fn has_other_place(failed: &str, planned: &Alternatives, verdicts: &[Verdict]) -> bool {
    let mut judged = planned.list().iter().zip(verdicts);
    let Some((place, _)) = judged.find(|(_, verdict)| verdict.is_usable()) else { return false };
    let failed = Reference::parse(failed);
    !failed.is_ok_and(|failed| failed.is_same_image(&place.reference))
}

/// When Pods of each controller were evicted.
#[derive(Debug, Default)]
pub struct Evictions {
    by_controller: HashMap<Arc<str>, Vec<Timestamp>>,
}

impl Evictions {
    /// Whether a Pod is evicted now. If so it counts from here on, because the next Pod of the same controller may be
    /// decided about before this one is gone; see [`Self::undo`].
    pub fn decide(&mut self, pod: &Subject<'_>, allowed: Allowed, now: Timestamp) -> Result<(), NotEvicted> {
        let Some(controller) = pod.controller else { return Err(NotEvicted::Bare) };
        let is_job = controller.kind == "Job" && controller.group() == "batch";
        match () {
            () if !pod.has_other_place => Err(NotEvicted::NothingElse),
            () if pod.in_use => Err(NotEvicted::InUse),
            () if !allowed.unpatchable => Err(NotEvicted::Off),
            () if is_job && !allowed.jobs => Err(NotEvicted::Jobs),
            () => {
                let times = self.by_controller.get(controller.uid).map(Vec::as_slice).unwrap_or_default();
                let recent = times.iter().filter(|time| now.duration_since(**time) < MEMORY);
                let last = recent.clone().max().and_then(|last| last.checked_add(PAUSE).ok());
                match last {
                    Some(next) if next > now => Err(NotEvicted::Later(next)),
                    _ if recent.count() >= MOST => Err(NotEvicted::TooOften),
                    _ => {
                        self.count(controller.uid, now);
                        Ok(())
                    }
                }
            }
        }
    }

    /// A Pod of this controller was not evicted after all, as was decided at that time.
    pub fn undo(&mut self, controller: &str, decided: Timestamp) {
        if let Some(times) = self.by_controller.get_mut(controller) {
            times.retain(|time| *time != decided);
        }
    }

    fn count(&mut self, controller: &str, now: Timestamp) {
        if self.by_controller.len() >= MOST_CONTROLLERS {
            self.by_controller.retain(|_, times| {
                times.retain(|time| now.duration_since(*time) < MEMORY);
                !times.is_empty()
            });
        }
        self.by_controller.entry(controller.into()).or_default().push(now);
    }
}
