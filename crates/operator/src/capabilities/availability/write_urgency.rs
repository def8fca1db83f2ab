//! What is written about an object, and when: at most one request a second, never two at once, the ledger and the
//! status in turn, less often what only tells when an image was looked at, and less and less often what does not get
//! through.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::Instant;

use super::object::WatchedSet;
use super::status;
use crate::cluster::ledgers::LedgerStore;
use crate::controller::ledger_writes::{LedgerWrite, WritePace, WriteResult};
use crate::controller::status::{Draft, StatusWriter};
use crate::platform::api_error::{Class, Failure};
use crate::platform::leader::Term;

/// At most one write in this time while nothing changed but the times of looks. A ledger may have megabytes, and a
/// restart that forgot a few looks does them again.
const UNHURRIED: Duration = Duration::from_secs(5);

/// The state of writing about one object.
#[derive(Debug)]
pub(super) struct WriteUrgency {
    pace: WritePace,
    complained: Option<Class>,
    /// From then on, what is not urgent.
    unhurried: Instant,
    status_check: StatusCheck,
    /// Writes until everything is stored that people wait for.
    urgent: usize,
    /// Whether it is the status' turn.
    status_next: bool,
}

/// Whether the status may be another than what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatusCheck {
    None,
    /// It is another one, and was written.
    Known,
    /// Something changed since that was looked into.
    Fresh,
}

impl Default for WriteUrgency {
    fn default() -> Self {
        Self {
            pace: WritePace::default(),
            complained: None,
            unhurried: Instant::now(),
            status_check: StatusCheck::Fresh,
            urgent: 1,
            status_next: false,
        }
    }
}

impl WriteUrgency {
    /// Something may have changed that the status tells.
    pub(super) fn reconsider(&mut self) {
        self.status_check = StatusCheck::Fresh;
    }

    /// A caller waits for what changed in these shards, and for the status, which has its turn between any two.
    pub(super) fn hurry(&mut self, shards: usize) {
        self.urgent = self.urgent.max(2 * shards + 1);
    }

    fn not_before(&self) -> Instant {
        let next = self.pace.not_before().unwrap_or(self.unhurried);
        if self.urgent > 0 { next } else { next.max(self.unhurried) }
    }

    /// When there may be something to write; `None` while nothing has to be. `again` is when a status that was written
    /// may be written once more.
    pub(super) fn due(&self, has_dirty_shard: bool, again: Option<Instant>) -> Option<Instant> {
        if self.pace.is_busy() {
            return None;
        }
        let now_or_then = self.not_before();
        let again = again.map_or(now_or_then, |again| again.max(now_or_then));
        match (has_dirty_shard, self.status_check) {
            (true, _) | (false, StatusCheck::Fresh) => Some(now_or_then),
            (false, StatusCheck::Known) => Some(again),
            (false, StatusCheck::None) => None,
        }
    }

    /// A write has ended. Returns whether it failed for another reason than the last one.
    fn end(&mut self, failure: Option<&Failure>) -> bool {
        self.pace.end(failure.is_some());
        let Some(failure) = failure else {
            (self.unhurried, self.complained) = (Instant::now() + UNHURRIED, None);
            return false;
        };
        self.complained.replace(failure.class) != Some(failure.class)
    }
}

/// The next write of an object, if one is due.
pub(super) fn next(
    object: &mut WatchedSet,
    store: &LedgerStore,
    statuses: &mut StatusWriter,
    term: &Term,
) -> Option<BoxFuture<'static, LedgerWrite>> {
    let now = Instant::now();
    if object.writes.pace.is_busy() || now < object.writes.not_before() {
        return None;
    }
    let dirty = object.next_shard();
    let draft = if object.writes.status_check != StatusCheck::None
        && (dirty.is_none() || object.writes.status_next)
    {
        status_draft(object, statuses, now)
    } else {
        None
    };
    object.writes.urgent = object.writes.urgent.saturating_sub(1);
    if let Some(draft) = draft {
        object.writes.pace.begin();
        object.writes.status_next = false;
        return Some(LedgerWrite::of_status(draft, statuses, term));
    }
    let Some(id) = dirty else {
        object.writes.urgent = 0;
        return None;
    };
    object.writes.pace.begin();
    object.writes.status_next = true;
    Some(LedgerWrite::of_shard(&object.ledger, id, object.owner.clone(), store, term))
}

/// What should be written about an object, if it is other than what is stored and was not just tried.
fn status_draft(object: &mut WatchedSet, statuses: &mut StatusWriter, now: Instant) -> Option<Draft> {
    let essence = status::wanted(object);
    if essence.is_in(&object.stored) {
        object.writes.status_check = StatusCheck::None;
        statuses.forget(&object.owner.uid);
        return None;
    }
    object.writes.status_check = StatusCheck::Known;
    let draft = status::draft(&essence, &object.stored, &object.owner);
    statuses.may(&draft, now).then_some(draft)
}

/// Takes note of a write that ended; without a result if it panicked.
pub(super) fn finish(object: &mut WatchedSet, written: Option<LedgerWrite>, statuses: &mut StatusWriter) {
    let Some(written) = written else {
        object.writes.end(None);
        return;
    };
    let WriteResult { what, stored, failure } = written.note(&mut object.ledger, statuses);
    if let Some((shard, ticket)) = stored {
        object.note_stored(shard, ticket);
    }
    if object.writes.end(failure.as_ref())
        && let Some(failure) = failure.filter(|_| what == "ledger")
    {
        tracing::warn!(object = %object.owner, error = %failure, "ledger could not be written");
    }
}
