//! Objects that are being deleted: finalizers, and what is told when copies stay behind.

use std::sync::Arc;

use fairlead_api::names::kuik::MIRROR_CLEANUP;
use fairlead_plan::copy_queue::Key;
use fairlead_plan::mirroring::Farewell;

use super::Work;
use crate::capabilities::mirror::events;
use crate::capabilities::mirror::objects::Stuck;
use crate::platform::api_error::Class;

/// Finalizers that are set or taken off before everything is looked at again.
const AT_ONCE: usize = 20;

impl Work<'_> {
    /// Objects whose copies are to be removed with them are held until that is done, and no longer.
    pub(super) async fn mind_finalizers(&mut self) {
        let (mut requests, mut done) = (0, 0);
        let leaving: Vec<_> = self.desks.keys().cloned().collect();
        for uid in &leaving {
            self.tell_parting(uid);
        }
        for desk in self.desks.values() {
            let held = desk.object.has_finalizer(MIRROR_CLEANUP);
            // What is under way may still write something, which is then to be deleted with the rest.
            let of_this = |key: &Key| key.owner == desk.object.owner.uid;
            let busy = self.running.keys().any(of_this) || self.cancelled.iter().any(|(key, _)| of_this(key));
            let wanted = match (&desk.farewell, &desk.object.policy) {
                (Some(farewell), _) => held && (busy || !matches!(farewell, Farewell::Done { .. })),
                (None, Some(policy)) => policy.targets().iter().any(|target| target.cleanup.is_some()),
                (None, None) => held,
            };
            if held == wanted || requests == AT_ONCE || !self.term.holds() {
                continue;
            }
            requests += 1;
            let result = self.parts.writer.set_finalizer(desk, wanted).await;
            self.parts.metrics.wrote("finalizer", result.is_ok());
            match result {
                Ok(()) => done += 1,
                Err(failure) if matches!(failure.class, Class::Conflict | Class::Absent) => {}
                Err(failure) => {
                    tracing::warn!(object = %desk.object.owner, error = %failure, "cannot set or remove the finalizer; trying again");
                }
            }
        }
        // The watch brings the objects as they are now; until then they are as they were.
        if done > 0 {
            self.look_wanted = true;
        }
    }

    /// Lets objects go that are being deleted and cannot be read: what was to be cleaned up with them cannot be told.
    pub(super) async fn release(&mut self, stuck: &[Stuck]) {
        for stuck in stuck.iter().take(AT_ONCE) {
            if !self.term.holds() {
                return;
            }
            let Stuck { owner, error, .. } = stuck;
            if self.parted.insert(Arc::clone(&owner.uid)) {
                tracing::warn!(object = %owner, error, "a mirror object that cannot be read goes; its copies stay");
                self.parts.teller.tell(events::unreadable(owner, error));
            }
            let result = self.parts.writer.release(stuck).await;
            self.parts.metrics.wrote("finalizer", result.is_ok());
            match result {
                Err(failure) if !matches!(failure.class, Class::Conflict | Class::Absent) => {
                    tracing::warn!(object = %owner, error = %failure, "cannot remove the finalizer; trying again");
                }
                _ => {}
            }
        }
    }

    /// Copies that stay behind when their object goes are told of once.
    fn tell_parting(&mut self, uid: &Arc<str>) {
        let Some(desk) = self.desks.get(uid) else { return };
        let Some(Farewell::Done { left: Some(left) }) = &desk.farewell else { return };
        let owner = &desk.object.owner;
        if self.parted.insert(Arc::clone(uid)) {
            tracing::warn!(object = %owner, left, "a mirror object goes, and copies that were to go with it stay");
            self.parts.teller.tell(events::left_behind(owner, left));
        }
    }
}
