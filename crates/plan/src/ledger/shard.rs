//! Shards: the parts of a ledger that are stored in one object each, and what is known of those objects.

use std::fmt;

use fairlead_api::fairlead::{LedgerEntry, LedgerManner};

use super::stored::Size;

/// One part of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub(super) u32);

/// The number that ends the name of the stored object.
impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A moment in the life of a ledger, counted in changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub(super) u64);

/// What to do with the object that a shard is stored in.
#[derive(Debug, Clone, PartialEq)]
pub enum Draft {
    Write {
        name: String,
        /// The version to replace. `None`: it is to be created.
        version: Option<String>,
        manner: LedgerManner,
        entries: Vec<LedgerEntry>,
        ticket: Ticket,
    },
    Delete {
        name: String,
        /// The version to delete. `None`: whatever is there, and nothing being there is as good.
        version: Option<String>,
        ticket: Ticket,
    },
}

impl Draft {
    pub fn name(&self) -> &str {
        match self {
            Self::Write { name, .. } | Self::Delete { name, .. } => name,
        }
    }

    pub fn version(&self) -> Option<&str> {
        match self {
            Self::Write { version, .. } | Self::Delete { version, .. } => version.as_deref(),
        }
    }

    pub fn ticket(&self) -> Ticket {
        match self {
            Self::Write { ticket, .. } | Self::Delete { ticket, .. } => *ticket,
        }
    }
}

/// What is known of one shard. Its entries are in the ledger.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) name: Box<str>,
    pub(super) version: Option<Box<str>>,
    /// How its copies were made.
    pub(super) manner: LedgerManner,
    pub(super) size: Size,
    /// The moment as of which the stored object is known to have all entries. `None`: there may be none.
    pub(super) stored: Option<u64>,
    changed: u64,
    /// Its place in the line of shards to be written.
    dirty_since: Option<u64>,
}

impl Shard {
    /// A shard whose object says what the ledger says.
    pub(super) fn stored(name: Box<str>, version: Option<String>, manner: LedgerManner) -> Self {
        Self {
            name,
            version: version.map(Into::into),
            manner,
            size: Size::default(),
            stored: Some(0),
            changed: 0,
            dirty_since: None,
        }
    }

    /// A shard without an object.
    pub(super) fn new(name: Box<str>, manner: LedgerManner) -> Self {
        Self { stored: None, ..Self::stored(name, None, manner) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.size.entries == 0
    }

    pub(super) fn dirty_since(&self) -> Option<u64> {
        self.dirty_since
    }

    pub(super) fn change(&mut self, now: u64) {
        self.changed = now;
        self.dirty_since.get_or_insert(now);
    }

    /// Takes a place in the line that is not behind the one given.
    pub(super) fn hurry(&mut self, place: u64) {
        self.dirty_since = self.dirty_since.map(|own| own.min(place));
    }

    /// Goes to the end of the line.
    pub(super) fn stand_back(&mut self, now: u64) {
        self.dirty_since = Some(now);
    }

    /// Its object was written, or deleted, as of a moment.
    pub(super) fn written(&mut self, as_of: Ticket, version: Option<String>) {
        let Ticket(as_of) = as_of;
        self.stored = version.is_some().then_some(as_of);
        self.version = version.map(Into::into);
        let current = self.stored.is_some() && self.changed <= as_of;
        // What changed meanwhile changed after the ticket was drawn, so it stands behind what is older than that.
        self.dirty_since = (!current).then(|| self.dirty_since.unwrap_or(0).max(as_of + 1));
    }

    /// Its object is not what it was.
    pub(super) fn lost(&mut self, version: Option<String>, now: u64) {
        self.version = version.map(Into::into);
        self.stored = None;
        self.change(now);
    }
}
