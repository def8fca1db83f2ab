//! Ledgers and statuses on their way to the API server.

use std::sync::Arc;

use tokio::time::Instant;

use super::MirrorController;
use crate::capabilities::mirror::write::{self, Told, Written};
use crate::cluster::ledgers::WriteError;
use crate::platform::api_error::Class;

impl MirrorController {
    /// Begins the writes that are due.
    pub(super) fn begin_writes(&mut self) {
        let (now, wall_clock) = (Instant::now(), self.parts.context.clock.now());
        for (uid, mirror) in &mut self.mirrors {
            if self.writes.is_full() || !self.term.holds() {
                return;
            }
            let secrets = match &mirror.object.policy {
                Some(policy) => self.parts.context.secrets.problems().of(policy.id()),
                None => continue,
            };
            let places = mirror.object.policy.iter().flat_map(|policy| policy.targets());
            let told = Told {
                secret_problems: &secrets,
                copies_pull_secrets: self.parts.context.config.routing.pull_secrets.copy,
                usage_lists: self.lists.of_places(places.map(|target| target.place), wall_clock),
            };
            let shelves = &self.parts.context.shelves;
            let write = write::next(mirror, &told, shelves, &mut self.statuses, now, wall_clock);
            if let Some(write) = write {
                self.writes.start(Arc::clone(uid), write);
            }
        }
    }

    /// A write has ended; without a result if it panicked.
    pub(super) fn written(&mut self, uid: &Arc<str>, written: Option<Written>) {
        let Some(mirror) = self.mirrors.get_mut(uid) else { return };
        let Some(written) = written else { return mirror.turn.done(false) };
        let what = written.what();
        let failure = match written {
            Written::Ledger { shelf, ticket, result } => match result {
                Ok(stored) => {
                    mirror.witnessed.remove(&shelf);
                    mirror.unseen.insert(shelf, Instant::now());
                    mirror.ledger.written(shelf, ticket, stored.version);
                    self.resync = true;
                    None
                }
                Err(WriteError::Conflict { version }) => {
                    mirror.ledger.lost(shelf, version);
                    None
                }
                Err(WriteError::Gone) => {
                    mirror.ledger.lost(shelf, None);
                    None
                }
                Err(WriteError::Failed(failure)) => Some(failure),
            },
            Written::Status { draft, result } => {
                let failure = result.err();
                self.statuses.note(&draft, failure.as_ref(), Instant::now());
                failure.filter(|failure| !matches!(failure.class, Class::Absent | Class::Conflict))
            }
        };
        self.parts.metrics.wrote(what, failure.is_none());
        mirror.turn.done(failure.is_none());
        if let Some(failure) = failure.filter(|_| what == "ledger") {
            tracing::warn!(object = %mirror.object.owner, error = %failure, "cannot write a ledger; trying again");
        }
    }
}
