//! One image and its copies, from a ledger or from the status of the object.

use fairlead_api::fairlead::{CopyState, LedgerEntry};
use fairlead_api::kuik::MatchingImage;
use fairlead_plan::mirroring::RecordedCopy;
use jiff::Timestamp;

pub(crate) struct Row<'a> {
    pub(crate) image: &'a str,
    pub(crate) unused_since: Option<Timestamp>,
    pub(crate) copies: Vec<CopyRow<'a>>,
}

pub(crate) struct CopyRow<'a> {
    pub(crate) destination: &'a str,
    pub(crate) state: CopyState,
    /// None: it is not recorded.
    pub(crate) since: Option<Timestamp>,
    pub(crate) error: &'a str,
    /// Fairlead or kube-image-keeper wrote it, as far as is known.
    pub(crate) written: bool,
    /// A Pod names it although none uses the image.
    pub(crate) named: bool,
    pub(crate) named_until: Option<Timestamp>,
    /// Why it stays for good.
    pub(crate) kept: Option<&'a str>,
}

impl<'a> CopyRow<'a> {
    /// What the planner is asked about.
    pub(crate) fn recorded(&self) -> RecordedCopy<'a> {
        let Self { state, error, written, named, named_until, kept, .. } = *self;
        RecordedCopy { state, failing: !error.is_empty(), written, named, named_until, kept }
    }
}

impl<'a> From<&'a LedgerEntry> for Row<'a> {
    fn from(entry: &'a LedgerEntry) -> Self {
        let copies = entry.mirrors.iter().map(|copy| CopyRow {
            destination: &copy.destination,
            state: copy.state,
            since: Some(copy.since.0),
            error: copy.last_error.as_deref().unwrap_or_default(),
            written: copy.adopted || !copy.written.is_empty(),
            named: copy.named,
            named_until: copy.named_until.as_ref().map(|time| time.0),
            kept: copy.kept.as_deref(),
        });
        Self {
            image: &entry.source,
            unused_since: entry.unused_since.as_ref().map(|time| time.0),
            copies: copies.collect(),
        }
    }
}

/// A status knows when a copy was made and why one was not, and nothing else.
impl<'a> From<&'a MatchingImage> for Row<'a> {
    fn from(image: &'a MatchingImage) -> Self {
        let copies = image.mirrors.iter().map(|copy| CopyRow {
            destination: &copy.image,
            state: match &copy.mirrored_at {
                Some(_) => CopyState::Mirrored,
                None if copy.last_error.is_empty() => CopyState::Pending,
                None => CopyState::Failed,
            },
            since: copy.mirrored_at.as_ref().map(|time| time.0),
            error: &copy.last_error,
            written: true,
            named: false,
            named_until: None,
            kept: None,
        });
        Self {
            image: &image.image,
            unused_since: image.unused_since.as_ref().map(|time| time.0),
            copies: copies.collect(),
        }
    }
}
