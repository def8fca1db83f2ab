//! Writes about objects that keep a ledger: parts of the ledger and the status, one at a time, at most one a second,
//! and with back-off while they fail. Which of them is next is the controller's to say.

use std::time::Duration;

use fairlead_plan::ledger::{Ledger, Owner, ShardId, Ticket};
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::backoff::Retry;
use super::status::{Draft, StatusWriter};
use crate::cluster::ledgers::{LedgerStore, Stored, WriteError};
use crate::platform::api_error::{Class, Failure};
use crate::platform::leader::Term;

/// Between two writes about one object.
const INTERVAL: Duration = Duration::from_secs(1);

/// When the next write about an object may be.
#[derive(Debug, Default)]
pub(crate) struct WritePace {
    busy: bool,
    not_before: Option<Instant>,
    retry: Retry,
}

impl WritePace {
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// From when on something may be written; none if nothing was written yet.
    pub(crate) fn not_before(&self) -> Option<Instant> {
        self.not_before
    }

    pub(crate) fn may(&self, now: Instant) -> bool {
        !self.busy && self.not_before.is_none_or(|next| next <= now)
    }

    /// A write begins.
    pub(crate) fn begin(&mut self) {
        self.busy = true;
    }

    /// Nothing is to be written before.
    pub(crate) fn put_off(&mut self, until: Instant) {
        self.not_before = Some(until);
    }

    /// A write has ended, or was not sent.
    pub(crate) fn end(&mut self, failed: bool) {
        self.busy = false;
        let pause = if failed { self.retry.failed().max(INTERVAL) } else { INTERVAL };
        if !failed {
            self.retry.reset();
        }
        self.not_before = Some(Instant::now() + pause);
    }
}

/// A write that ended.
#[derive(Debug)]
pub(crate) enum LedgerWrite {
    Shard {
        id: ShardId,
        ticket: Ticket,
        result: Result<Stored, WriteError>,
    },
    Status {
        draft: Box<Draft>,
        result: Result<(), Failure>,
    },
    /// Leadership ended before it was sent.
    Unsent,
}

/// What came of a write, once ledger and statuses have taken note.
#[derive(Debug)]
pub(crate) struct WriteResult {
    /// `ledger` or `status`.
    pub(crate) what: &'static str,
    /// The part of the ledger that was stored.
    pub(crate) stored: Option<(ShardId, Ticket)>,
    /// Why it has to be tried again.
    pub(crate) failure: Option<Failure>,
}

impl LedgerWrite {
    pub(crate) fn of_shard(
        ledger: &Ledger,
        id: ShardId,
        owner: Owner,
        store: &LedgerStore,
        term: &Term,
    ) -> BoxFuture<'static, Self> {
        let (draft, store, term) = (ledger.draft(id), store.clone(), term.clone());
        Box::pin(async move {
            if !term.holds() {
                return Self::Unsent;
            }
            let result = store.write(&owner, &draft).await;
            Self::Shard { id, ticket: draft.ticket(), result }
        })
    }

    pub(crate) fn of_status(draft: Draft, statuses: &StatusWriter, term: &Term) -> BoxFuture<'static, Self> {
        let (sending, term) = (statuses.send(draft.clone()), term.clone());
        Box::pin(async move {
            if !term.holds() {
                return Self::Unsent;
            }
            Self::Status { draft: Box::new(draft), result: sending.await }
        })
    }

    /// Takes note of it in the ledger, or in what the writer of statuses remembers.
    pub(crate) fn note(self, ledger: &mut Ledger, statuses: &mut StatusWriter) -> WriteResult {
        let (mut stored, mut failure) = (None, None);
        let what = match self {
            Self::Shard { id, ticket, result } => {
                match result {
                    Ok(Stored { version }) => {
                        ledger.written(id, ticket, version);
                        stored = Some((id, ticket));
                    }
                    Err(WriteError::Conflict { version }) => ledger.lost(id, version),
                    Err(WriteError::Gone) => ledger.lost(id, None),
                    Err(WriteError::Failed(why)) => failure = Some(why),
                }
                "ledger"
            }
            Self::Status { draft, result } => {
                statuses.note(&draft, result.as_ref().err(), Instant::now());
                // Another version, another object of the same name, or none: the watch will show which.
                failure = result.err().filter(|why| !matches!(why.class, Class::Absent | Class::Conflict));
                "status"
            }
            Self::Unsent => "nothing",
        };
        WriteResult { what, stored, failure }
    }
}
