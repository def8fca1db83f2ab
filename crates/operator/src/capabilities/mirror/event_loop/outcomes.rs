//! What becomes of what was found: in the ledgers, in the queue, and for people.

use std::sync::Arc;

use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::copy_queue::{Ended, Key};
use fairlead_plan::credentials::Principal;
use fairlead_plan::mirroring::{
    self, Fault, Finding, Observed, REPORTED_FAILURES, Sighting, Task, VERIFIED_FOR, Work,
};
use tokio::time::Instant;

use super::MirrorController;
use super::queueing::{Pause, Running};
use crate::capabilities::availability::Seen;
use crate::capabilities::mirror::events;
use crate::capabilities::mirror::executor::Trouble;
use crate::capabilities::mirror::object_state::MirrorState;
use crate::cluster::ledgers::Missed;

/// Copies that are remembered as found in their places.
const MOST_VERIFIED: usize = 10_000;

/// Whose ledgers what was seen of an image is compared with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Audience {
    /// All: a probe found it, and it is looked at again before anything follows.
    AllOwners,
    /// The object of this UID, whose ledger asks for it.
    Owner(Arc<str>),
    /// Objects that may know what this principal was told.
    Learned(Principal),
}

impl MirrorController {
    /// Takes note of what copies have begun to write, so that a crash leaves nothing behind that no ledger knows of.
    pub(super) fn note_writes(&mut self) {
        let news = |(key, running): (&Key, &Running)| {
            (!running.noted && running.publishing.digest().is_some()).then(|| key.clone())
        };
        let fresh: Vec<Key> = self.running.iter().filter_map(news).collect();
        for key in fresh {
            if let Some(mut running) = self.running.remove(&key) {
                self.note_write(&key, &running);
                running.noted = true;
                self.running.insert(key, running);
            }
        }
    }

    /// Takes note of what cancelled copies have written before they noticed.
    pub(super) fn note_cancelled(&mut self) {
        let cancelled = std::mem::take(&mut self.cancelled);
        for (key, running) in cancelled {
            // Asked first: what ends meanwhile has said everything by then.
            let ended = running.job.is_finished();
            self.note_write(&key, &running);
            if !ended {
                self.cancelled.push((key, running));
                self.look_wanted = true;
            }
        }
    }

    /// Takes note of what one copy has begun to write, also if that was interrupted.
    pub(super) fn note_write(&mut self, key: &Key, running: &Running) {
        let Some(digest) = running.publishing.digest().filter(|_| !running.noted) else { return };
        let now = self.setup.context.clock.now();
        let Some(mirror) = self.mirrors.get_mut(&key.owner) else { return };
        mirror.record(&running.task, Finding::Writing { digest }, now);
    }

    /// A task has ended; without a result if it panicked.
    pub(super) fn ended(&mut self, key: &Key, number: u64, done: Option<Result<Finding, Trouble>>) {
        // One that was cancelled may have ended all the same, and another may run in its place.
        if self.running.get(key).is_none_or(|running| running.number != number) {
            return;
        }
        let Some(running) = self.running.remove(key) else { return };
        self.note_write(key, &running);
        let task = &running.task;
        let bug = "the task failed inside Fairlead, which is a bug".to_owned();
        let done = done.unwrap_or(Err(Trouble::from(bug)));
        let now = self.setup.context.clock.now();
        let (findings, ended) = match done {
            Ok(finding) => (self.succeeded(key, task, finding), Ended::Done),
            Err(trouble) => self.failed(key, task, trouble),
        };
        self.queue.ended(key, ended, self.elapsed(), fastrand::f64());
        if let Some(mirror) = self.mirrors.get_mut(&key.owner) {
            for finding in findings {
                mirror.record(task, finding, now);
            }
            mirror.writes.touch();
            if mirror.finalization.is_some() {
                self.look_wanted = true;
            }
        }
    }

    /// What goes into the ledger after a task has done its work.
    fn succeeded(&mut self, key: &Key, task: &Task, finding: Finding) -> Vec<Finding> {
        let metrics = &self.setup.metrics;
        match &finding {
            Finding::Copied { written, .. } => {
                metrics.copied(if *written { "copied" } else { "present" });
                if !written {
                    self.verify(&task.destination);
                }
                let mirror = self.mirrors.get(&key.owner);
                let moved =
                    mirror.and_then(|mirror| mirroring::source_moved(&mirror.ledger, &task.source, &finding));
                if moved.is_some() {
                    self.setup.metrics.drifted();
                    self.resync = true;
                }
                return moved.into_iter().chain([finding]).collect();
            }
            Finding::Deleted => metrics.deleted("removed"),
            Finding::Kept { why, .. } => {
                metrics.deleted("kept");
                tracing::info!(object = %self.name_of(&key.owner), why, "a copy that nothing uses is kept in its registry");
                if let Some(mirror) = self.mirrors.get(&key.owner) {
                    self.setup.context.events.tell(events::kept(&mirror.object.owner, task, why));
                }
            }
            _ => {}
        }
        self.look_wanted = true;
        vec![finding]
    }

    fn failed(&mut self, key: &Key, task: &Task, trouble: Trouble) -> (Vec<Finding>, Ended) {
        let Trouble { error, pause, fault } = trouble;
        let mut wait = None;
        if let Some((host, pause)) = pause {
            wait = Some(pause);
            self.paused.insert(host, Pause::of(pause));
        }
        let failures = self.queue.failures(key) + 1;
        let object = self.name_of(&key.owner);
        if failures == REPORTED_FAILURES {
            tracing::warn!(object, image = %task.source, copy = %task.destination, error, "a task keeps failing; it is tried again and again");
            if let Some(mirror) = self.mirrors.get(&key.owner) {
                self.setup.context.events.tell(events::failing(&mirror.object.owner, task, &error));
            }
        } else {
            tracing::debug!(object, image = %task.source, copy = %task.destination, error, failures, "a task failed");
        }
        match task.work {
            Work::Copy => {
                self.setup.metrics.copied("failed");
                // Another source may own the destination from now on.
                self.look_wanted |= fault == Fault::Source;
            }
            Work::Delete => {
                self.setup.metrics.deleted("failed");
                if let Some(mirror) = self.mirrors.get_mut(&key.owner) {
                    mirror.failing = Some(error.clone());
                }
            }
            Work::Compare | Work::Identify => {}
        }
        let finding = Finding::failed(task.work, error, fault);
        (finding.into_iter().collect(), Ended::Failed { wait })
    }

    fn name_of(&self, uid: &Arc<str>) -> String {
        self.mirrors.get(uid).map(|mirror| mirror.object.owner.to_string()).unwrap_or_default()
    }

    /// A probe says something else about an image than the ledger: it is looked at, and copied if need be. What the
    /// ledger of one object asks for concerns that object alone.
    pub(in crate::capabilities::mirror) fn missed(&mut self, missed: Missed) {
        let Missed { reference: image, owner } = missed;
        if self.verified.get(&image.key()).is_some_and(|at| at.elapsed() < VERIFIED_FOR) {
            return;
        }
        let now = self.setup.context.clock.now();
        let audience = owner.map_or(Audience::AllOwners, Audience::Owner);
        for mirror in self.mirrors.values_mut().filter(|mirror| audience.includes(mirror)) {
            if let Some(change) = mirroring::doubt(&mirror.ledger, &image, now) {
                mirror.ledger.apply([change]);
                mirror.writes.touch();
                self.resync = true;
            }
        }
        self.sightings.entry(audience).or_default().insert(image.key(), Sighting::Gone);
    }

    /// The watch has looked at an image.
    pub(in crate::capabilities::mirror) fn seen(&mut self, seen: Seen) {
        let sighting = match seen.verdict {
            Verdict::Available { digest: Some(digest), .. } => Sighting::Digest(digest),
            Verdict::NotFound { .. } => Sighting::Gone,
            _ => return,
        };
        let audience = Audience::Learned(seen.principal);
        self.sightings.entry(audience).or_default().insert(seen.reference.key(), sighting);
    }

    /// Copies that are not what they should be, and all copies of a source that has moved, are wanted again.
    pub(super) fn heed_sightings(&mut self) {
        let sightings = std::mem::take(&mut self.sightings);
        let now = self.setup.context.clock.now();
        for mirror in self.mirrors.values_mut() {
            let (mut missing, mut moved) = (0, 0);
            for (audience, seen) in &sightings {
                if !audience.includes(mirror) {
                    continue;
                }
                let observed: Observed = mirroring::observe(&mirror.ledger, seen, now);
                mirror.ledger.apply(observed.changes);
                missing += observed.missing;
                moved += observed.moved;
            }
            if missing + moved == 0 {
                continue;
            }
            self.resync = true;
            mirror.writes.touch();
            (0..moved).for_each(|_| self.setup.metrics.drifted());
            tracing::info!(
                object = %mirror.object.owner,
                missing,
                moved,
                "copies are missing or their sources have moved; they are copied again"
            );
        }
    }

    fn verify(&mut self, copy: &Reference) {
        if self.verified.len() >= MOST_VERIFIED {
            self.verified.retain(|_, at| at.elapsed() < VERIFIED_FOR);
        }
        if self.verified.len() < MOST_VERIFIED {
            self.verified.insert(copy.key(), Instant::now());
        }
    }
}

impl Audience {
    fn includes(&self, mirror: &MirrorState) -> bool {
        match self {
            Self::AllOwners => true,
            Self::Owner(uid) => mirror.object.owner.uid == *uid,
            Self::Learned(principal) => mirror.principal().may_learn_from(principal),
        }
    }
}
