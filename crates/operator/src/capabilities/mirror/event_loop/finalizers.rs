//! Objects that are being deleted: finalizers, and the event when copies stay behind.

use std::sync::Arc;

use fairlead_api::names::kuik::MIRROR_CLEANUP;
use fairlead_plan::copy_queue::Key;
use fairlead_plan::ledger::Owner;
use fairlead_plan::mirroring::{self, Finalization};

use super::MirrorController;
use crate::capabilities::mirror::events;
use crate::capabilities::mirror::objects::{OWN_FINALIZERS, Stuck};
use crate::capabilities::mirror::status;
use crate::controller::finalizers::{self, Finalized};

/// Finalizers that are set or taken off before everything is looked at again.
const AT_ONCE: usize = 20;

impl MirrorController {
    /// Objects whose copies are to be removed with them are held until that is done, and no longer.
    pub(super) async fn mind_finalizers(&mut self) {
        let (mut requests, mut done) = (0, 0);
        let leaving: Vec<_> = self.mirrors.keys().cloned().collect();
        for uid in &leaving {
            self.report_copies_left(uid);
        }
        for mirror in self.mirrors.values() {
            let held = mirror.object.has_finalizer(MIRROR_CLEANUP);
            let of_this = |key: &Key| key.owner == mirror.object.owner.uid;
            let busy = self.running.keys().any(of_this) || self.cancelled.iter().any(|(key, _)| of_this(key));
            let policy = mirror.object.policy.as_deref();
            let wanted = mirroring::wants_finalizer(held, busy, mirror.finalization.as_ref(), policy);
            if held == wanted || requests == AT_ONCE || !self.term.holds() {
                continue;
            }
            requests += 1;
            let metadata = mirror.object.stored.metadata();
            let present = metadata.finalizers.as_deref().unwrap_or_default();
            let seen = (metadata.resource_version.as_deref(), present);
            if self.finalize(&mirror.object.owner, seen, &[MIRROR_CLEANUP], wanted).await {
                done += 1;
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
            if self.reported_left.insert(Arc::clone(&owner.uid)) {
                tracing::warn!(object = %owner, error, "a mirror object that cannot be read goes; its copies stay");
                self.setup.context.events.tell(events::unreadable(owner, error));
            }
            let seen = (Some(&*stuck.resource_version), &*stuck.finalizers);
            self.finalize(owner, seen, &OWN_FINALIZERS, false).await;
        }
    }

    /// Sets finalizers of an object or takes them off, and returns whether it did.
    async fn finalize(
        &self,
        owner: &Owner,
        seen: (Option<&str>, &[String]),
        ours: &[&str],
        wanted: bool,
    ) -> bool {
        let (client, object) = (&self.setup.context.client, status::object_id(owner));
        let result = finalizers::set(client, status::FIELD_MANAGER, &object, seen, ours, wanted).await;
        let done = matches!(result, Ok(Finalized::Done));
        self.setup.metrics.wrote("finalizer", done);
        if let Err(failure) = result {
            tracing::warn!(object = %owner, error = %failure, "cannot set or remove the finalizer; trying again");
        }
        done
    }

    /// Copies that remain when their object is deleted get one event.
    fn report_copies_left(&mut self, uid: &Arc<str>) {
        let Some(mirror) = self.mirrors.get(uid) else { return };
        let Some(Finalization::Done { left: Some(left) }) = &mirror.finalization else { return };
        let owner = &mirror.object.owner;
        if self.reported_left.insert(Arc::clone(uid)) {
            tracing::warn!(object = %owner, left, "a mirror object is deleted, and copies that were to be deleted with it remain");
            self.setup.context.events.tell(events::left_behind(owner, left));
        }
    }
}
