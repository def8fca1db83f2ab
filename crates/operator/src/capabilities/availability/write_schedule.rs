//! What is written about an object, and when: at most one request a second, never two at once, the ledger and the
//! status in turn, less often what only tells when an image was looked at, and less and less often what does not get
//! through.

use std::sync::Arc;
use std::time::Duration;

use fairlead_plan::ledger::{ShelfId, Ticket};
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::object::Object;
use super::status;
use crate::cluster::ledgers::{self, Shelves, WriteError};
use crate::controller::backoff::Retry;
use crate::controller::status::{Draft, StatusWriter};
use crate::platform::api_error::{Class, Failure};
use crate::platform::leader::Term;

/// At most one write in this time.
const INTERVAL: Duration = Duration::from_secs(1);

/// The same while nothing changed but the times of looks. A ledger may have megabytes, and a restart that forgot a few
/// looks does them again.
const UNHURRIED: Duration = Duration::from_secs(5);

/// The state of writing about one object.
#[derive(Debug)]
pub(super) struct WriteSchedule {
    busy: bool,
    not_before: Instant,
    backoff: Retry,
    complained: Option<Class>,
    /// From then on, what is not urgent.
    unhurried: Instant,
    doubt: Doubt,
    /// Writes until everything is stored that people wait for.
    urgent: usize,
    /// Whether it is the status' turn.
    status_next: bool,
}

/// Whether the status may be another than what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    None,
    /// It is another one, and was written.
    Known,
    /// Something changed since that was looked into.
    Fresh,
}

impl Default for WriteSchedule {
    fn default() -> Self {
        Self {
            busy: false,
            not_before: Instant::now(),
            backoff: Retry::default(),
            complained: None,
            unhurried: Instant::now(),
            doubt: Doubt::Fresh,
            urgent: 1,
            status_next: false,
        }
    }
}

/// A write that ended.
#[derive(Debug)]
pub(super) struct Written {
    uid: Arc<str>,
    what: What,
}

#[derive(Debug)]
enum What {
    Shelf {
        id: ShelfId,
        ticket: Ticket,
        result: Result<ledgers::Stored, WriteError>,
    },
    Status {
        draft: Box<Draft>,
        result: Result<(), Failure>,
    },
    /// Leadership ended before it was sent.
    Nothing,
}

impl WriteSchedule {
    /// Something may have changed that the status tells.
    pub(super) fn reconsider(&mut self) {
        self.doubt = Doubt::Fresh;
    }

    /// A caller waits for what changed in these shelves, and for the status, which has its turn between any two.
    pub(super) fn hurry(&mut self, shelves: usize) {
        self.urgent = self.urgent.max(2 * shelves + 1);
    }

    fn not_before(&self) -> Instant {
        if self.urgent > 0 { self.not_before } else { self.not_before.max(self.unhurried) }
    }

    /// When there may be something to write; `None` while nothing has to be. `again` is when a status that was written
    /// may be written once more.
    pub(super) fn due(&self, has_dirty_shelf: bool, again: Option<Instant>) -> Option<Instant> {
        if self.busy {
            return None;
        }
        let now_or_then = self.not_before();
        let again = again.map_or(now_or_then, |again| again.max(now_or_then));
        match (has_dirty_shelf, self.doubt) {
            (true, _) | (false, Doubt::Fresh) => Some(now_or_then),
            (false, Doubt::Known) => Some(again),
            (false, Doubt::None) => None,
        }
    }

    /// Tells whether it is another failure than the last.
    fn failed(&mut self, failure: &Failure) -> bool {
        self.not_before = Instant::now() + self.backoff.failed().max(INTERVAL);
        self.complained.replace(failure.class) != Some(failure.class)
    }

    fn wrote(&mut self) {
        let now = Instant::now();
        (self.not_before, self.unhurried) = (now + INTERVAL, now + UNHURRIED);
        self.backoff.reset();
        self.complained = None;
    }
}

/// The next write of an object, if one is due.
pub(super) fn next(
    object: &mut Object,
    shelves: &Shelves,
    statuses: &mut StatusWriter,
    term: &Term,
) -> Option<BoxFuture<'static, Written>> {
    let now = Instant::now();
    if object.writes.busy || now < object.writes.not_before() {
        return None;
    }
    let dirty = object.next_shelf();
    let draft = if object.writes.doubt != Doubt::None && (dirty.is_none() || object.writes.status_next) {
        status_draft(object, statuses, now)
    } else {
        None
    };
    object.writes.urgent = object.writes.urgent.saturating_sub(1);
    let (owner, term) = (object.owner.clone(), term.clone());
    let uid = owner.uid.clone();
    if let Some(draft) = draft {
        object.writes.busy = true;
        object.writes.status_next = false;
        let sending = statuses.send(draft.clone());
        return Some(Box::pin(async move {
            if !term.holds() {
                return Written { uid, what: What::Nothing };
            }
            let result = sending.await;
            Written { uid, what: What::Status { draft: Box::new(draft), result } }
        }));
    }
    let Some(id) = dirty else {
        object.writes.urgent = 0;
        return None;
    };
    object.writes.busy = true;
    object.writes.status_next = true;
    let (draft, shelves) = (object.ledger.draft(id), shelves.clone());
    Some(Box::pin(async move {
        if !term.holds() {
            return Written { uid, what: What::Nothing };
        }
        let result = shelves.write(&owner, &draft).await;
        Written { uid, what: What::Shelf { id, ticket: draft.ticket(), result } }
    }))
}

/// What should be written about an object, if it is other than what is stored and was not just tried.
fn status_draft(object: &mut Object, statuses: &mut StatusWriter, now: Instant) -> Option<Draft> {
    let essence = status::wanted(object);
    if essence.is_in(&object.stored) {
        object.writes.doubt = Doubt::None;
        statuses.forget(&object.owner.uid);
        return None;
    }
    object.writes.doubt = Doubt::Known;
    let draft = status::draft(&essence, &object.stored, &object.owner);
    statuses.may(&draft, now).then_some(draft)
}

/// Takes note of a write that ended, or was lost.
pub(super) fn finish(object: &mut Object, written: Option<Written>, statuses: &mut StatusWriter) {
    if written.as_ref().is_some_and(|written| object.owner.uid != written.uid) {
        return;
    }
    let writes = &mut object.writes;
    writes.busy = false;
    let Some(written) = written else { return writes.wrote() };
    match written.what {
        What::Nothing => {}
        What::Shelf { id, ticket, result: Ok(stored) } => {
            writes.wrote();
            object.stored(id, ticket, stored.version);
        }
        What::Shelf { id, result: Err(error), .. } => match error {
            WriteError::Conflict { version } => {
                writes.wrote();
                object.ledger.lost(id, version);
            }
            WriteError::Gone => {
                writes.wrote();
                object.ledger.lost(id, None);
            }
            WriteError::Failed(failure) => {
                if writes.failed(&failure) {
                    tracing::warn!(object = %object.owner, error = %failure, "ledger could not be written");
                }
            }
        },
        What::Status { draft, result } => {
            let failure = result.err();
            statuses.note(&draft, failure.as_ref(), Instant::now());
            // Another version, another object of the same name, or none: the watch will show which.
            match failure.filter(|failure| !matches!(failure.class, Class::Conflict | Class::Absent)) {
                Some(failure) => drop(writes.failed(&failure)),
                None => writes.wrote(),
            }
        }
    }
}
