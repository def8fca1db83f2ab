//! Ledgers and statuses on their way to the API server.

use std::sync::Arc;

use tokio::time::Instant;

use super::MirrorController;
use crate::capabilities::mirror::status::{self, StatusInputs};
use crate::controller::ledger_writes::{LedgerWrite, WriteResult};

impl MirrorController {
    /// Begins the writes that are due.
    pub(super) fn begin_writes(&mut self) {
        let wall_clock = self.setup.context.clock.now();
        for (uid, mirror) in &mut self.mirrors {
            if self.writes.is_full() || !self.term.holds() {
                return;
            }
            let secrets = match &mirror.object.policy {
                Some(policy) => self.setup.context.secrets.problems().of(policy.id()),
                None => continue,
            };
            let places = mirror.object.policy.iter().flat_map(|policy| policy.targets());
            let inputs = StatusInputs {
                secret_problems: &secrets,
                copies_pull_secrets: self.setup.context.config.routing.pull_secrets.copy,
                usage_lists: self.lists.of_places(places.map(|target| target.place), wall_clock),
            };
            let store = &self.setup.context.ledger_store;
            let write = status::next(mirror, &inputs, store, &mut self.statuses, &self.term, wall_clock);
            if let Some(write) = write {
                self.writes.start(Arc::clone(uid), write);
            }
        }
    }

    /// A write has ended; without a result if it panicked.
    pub(super) fn written(&mut self, uid: &Arc<str>, written: Option<LedgerWrite>) {
        let Some(mirror) = self.mirrors.get_mut(uid) else { return };
        let Some(written) = written.filter(|written| !matches!(written, LedgerWrite::Unsent)) else {
            return mirror.writes.end(true);
        };
        let WriteResult { what, stored, failure } = written.note(&mut mirror.ledger, &mut self.statuses);
        if let Some((shard, _)) = stored {
            mirror.witnessed.remove(&shard);
            mirror.unseen.insert(shard, Instant::now());
            self.resync = true;
        }
        self.setup.metrics.wrote(what, failure.is_none());
        mirror.writes.end(failure.is_some());
        if let Some(failure) = failure.filter(|_| what == "ledger") {
            tracing::warn!(object = %mirror.object.owner, error = %failure, "cannot write a ledger; trying again");
        }
    }
}
