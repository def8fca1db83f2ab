//! What is written about an object, and when: at most one request a second, never two at once, the ledger and the status
//! in turn, less often what only tells when an image was looked at, and less and less often what does not get through.

use std::sync::Arc;
use std::time::Duration;

use fairlead_plan::ledger::{ShelfId, Ticket};
use kube::Client;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::object::Object;
use super::status::{self, Essence, FIELD_MANAGER};
use crate::cluster::ledgers::{self, Shelves, WriteError};
use crate::controller::backoff::Retry;
use crate::platform::api_error::{Class, Failure};
use crate::platform::leader::Term;

/// At most one write in this time.
const INTERVAL: Duration = Duration::from_secs(1);

/// The same while nothing changed but the times of looks. A ledger may have megabytes, and a restart that forgot a few
/// looks does them again.
const UNHURRIED: Duration = Duration::from_secs(5);

/// Time for a write to come back through the watch, also through one that has to be begun anew.
const SETTLES: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_mins(5);

/// The state of writing about one object.
#[derive(Debug)]
pub(super) struct Pen {
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
    last: Option<Last>,
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

/// A status that was written, for as long as the watch may not have brought it.
#[derive(Debug)]
struct Last {
    essence: Essence,
    again: Instant,
    times: u32,
}

impl Default for Pen {
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
            last: None,
        }
    }
}

/// A write that ended.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) name: Arc<str>,
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
        essence: Essence,
        result: Result<(), Failure>,
    },
    /// Leadership ended before it was sent.
    Nothing,
}

impl Pen {
    /// Something may have changed that the status tells.
    pub(super) fn reconsider(&mut self) {
        self.doubt = Doubt::Fresh;
    }

    /// Somebody waits for what changed in these shelves, and for the status, which has its turn between any two.
    pub(super) fn hurry(&mut self, shelves: usize) {
        self.urgent = self.urgent.max(2 * shelves + 1);
    }

    fn not_before(&self) -> Instant {
        if self.urgent > 0 { self.not_before } else { self.not_before.max(self.unhurried) }
    }

    /// When there may be something to write; `None` while nothing has to be.
    pub(super) fn due(&self, has_dirty_shelf: bool) -> Option<Instant> {
        if self.busy {
            return None;
        }
        let now_or_then = self.not_before();
        let again = self.last.as_ref().map_or(now_or_then, |last| last.again.max(now_or_then));
        match (has_dirty_shelf, self.doubt) {
            (true, _) | (false, Doubt::Fresh) => Some(now_or_then),
            (false, Doubt::Known) => Some(again),
            (false, Doubt::None) => None,
        }
    }

    fn failed(&mut self, failure: &Failure, name: &str, what: &'static str) {
        self.not_before = Instant::now() + self.backoff.failed().max(INTERVAL);
        if self.complained.replace(failure.class) != Some(failure.class) {
            tracing::warn!(object = name, error = %failure, "{what} of a ClusterImageSetAvailability could not be written");
        }
    }

    fn wrote(&mut self) {
        let now = Instant::now();
        (self.not_before, self.unhurried) = (now + INTERVAL, now + UNHURRIED);
        self.backoff.reset();
        self.complained = None;
    }
}

/// Starts the next write of an object, if one is due.
pub(super) fn start(
    object: &mut Object,
    client: &Client,
    shelves: &Shelves,
    term: &Term,
    writing: &mut JoinSet<Written>,
) {
    let now = Instant::now();
    if object.pen.busy || now < object.pen.not_before() {
        return;
    }
    let dirty = object.next_shelf();
    let draft = if object.pen.doubt != Doubt::None && (dirty.is_none() || object.pen.status_next) {
        status_draft(object, now)
    } else {
        None
    };
    object.pen.urgent = object.pen.urgent.saturating_sub(1);
    let (owner, term) = (object.owner.clone(), term.clone());
    let (name, uid) = (owner.name.clone(), owner.uid.clone());
    if let Some(essence) = draft {
        let draft = status::draft(&essence, &object.stored, &owner);
        object.pen.busy = true;
        object.pen.status_next = false;
        let client = client.clone();
        writing.spawn(async move {
            let what = if term.holds() {
                let result = draft.send(client, FIELD_MANAGER).await;
                What::Status { essence, result }
            } else {
                What::Nothing
            };
            Written { name, uid, what }
        });
    } else if let Some(id) = dirty {
        object.pen.busy = true;
        object.pen.status_next = true;
        let (draft, shelves) = (object.ledger.draft(id), shelves.clone());
        writing.spawn(async move {
            let what = if term.holds() {
                let result = shelves.write(&owner, &draft).await;
                What::Shelf { id, ticket: draft.ticket(), result }
            } else {
                What::Nothing
            };
            Written { name, uid, what }
        });
    } else {
        object.pen.urgent = 0;
    }
}

/// What should be written about an object, if it is other than what is stored and was not just tried.
fn status_draft(object: &mut Object, now: Instant) -> Option<Essence> {
    let essence = status::wanted(object);
    object.pen.doubt = Doubt::Known;
    if essence.is_in(&object.stored) {
        object.pen.doubt = Doubt::None;
        object.pen.last = None;
        return None;
    }
    let tried = object.pen.last.as_ref().filter(|last| last.essence == essence);
    if tried.is_some_and(|last| now < last.again) {
        return None;
    }
    if tried.is_none() {
        object.pen.last = None;
    }
    Some(essence)
}

/// Takes note of a write that ended.
pub(super) fn finish(object: &mut Object, written: Written) {
    if object.owner.uid != written.uid {
        return;
    }
    let pen = &mut object.pen;
    pen.busy = false;
    match written.what {
        What::Nothing => {}
        What::Shelf { id, ticket, result: Ok(stored) } => {
            pen.wrote();
            object.stored(id, ticket, stored.version);
        }
        What::Shelf { id, result: Err(error), .. } => match error {
            WriteError::Conflict { version } => {
                pen.wrote();
                object.ledger.lost(id, version);
            }
            WriteError::Gone => {
                pen.wrote();
                object.ledger.lost(id, None);
            }
            WriteError::Failed(failure) => pen.failed(&failure, &object.owner.name, "ledger"),
        },
        What::Status { essence, result } => {
            let refused = match &result {
                Ok(()) => None,
                // Another version, another object of the same name, or none: the watch will say which.
                Err(failure) if matches!(failure.class, Class::Conflict | Class::Absent) => None,
                Err(failure) => Some(failure),
            };
            match refused {
                None => pen.wrote(),
                Some(failure) => pen.failed(failure, &object.owner.name, "status"),
            }
            let times = pen.last.as_ref().map_or(0, |last| last.times.saturating_add(1));
            let pause = SETTLES.saturating_mul(1 << times.min(10)).min(LONGEST);
            // What did not reach the API server at all is not held against anybody.
            let unavailable = result.is_err_and(|failure| failure.class == Class::Unavailable);
            let again = if unavailable { pen.not_before } else { Instant::now() + pause };
            pen.last = Some(Last { essence, again, times });
        }
    }
}
