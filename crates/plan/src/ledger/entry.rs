//! What a ledger says of one image, in the form in which it can be stored.
//!
//! The API server refuses a stored ledger as a whole if one row of it breaks a rule, so no such row may come to be in
//! the first place. And what was stored must read back as what it was, or every restart would rewrite everything: texts
//! are cut, and times rounded, when they come in rather than when they go out.

use fairlead_api::fairlead::{CopyState, MAX_WRITTEN};
use fairlead_api::kuik::{Availability, MAX_MIRRORS};
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use jiff::Timestamp;

use super::digests::Digests;
use crate::access::{self, Proofs};

/// Characters of an error that are kept.
pub const MOST_ERROR_CHARACTERS: usize = 256;

/// What a ledger says went wrong where no reason was recorded.
const NO_REASON: &str = "no reason was given";

/// Longest reference that can be stored: name, tag and digest at their longest.
const LONGEST_REFERENCE: usize = 255 + 129 + 136;

/// Digits of the highest port.
const PORT_DIGITS: usize = 5;

/// One copy of an image.
#[derive(Debug, Clone, PartialEq)]
pub struct Copy {
    pub destination: Reference,
    /// What the copy must have. Always there where it is `Mirrored`.
    pub digest: Option<Digest>,
    pub state: CopyState,
    /// Since when it has been in that state.
    pub since: Timestamp,
    /// Always there where it is `Failed` or `Refused`.
    pub last_error: Option<Box<str>>,
    /// Digests that we wrote there: the last one, and the one before it until the registry has confirmed the last.
    pub written: Digests,
    /// kube-image-keeper wrote it, and which digest that is was not looked at yet.
    pub adopted: bool,
    /// Another source's copy is there until this one is made.
    pub replaces: bool,
    /// Pods that name the copy itself while none uses the source.
    pub named: Option<Named>,
    /// Why it stays in the registry although nothing uses it. Such a row claims nothing and calls for nothing.
    pub kept: Option<Box<str>>,
}

/// Whether Pods name a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    Now,
    Until(Timestamp),
}

/// What the watch knows of an image.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Watch {
    pub status: Availability,
    /// `None`: never looked at yet.
    pub last_monitor: Option<Timestamp>,
    pub last_error: Option<Box<str>>,
    /// Some Pod asked for exactly this image.
    pub original: bool,
}

/// One image.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Entry {
    /// What the source had when it was last looked at.
    pub source_digest: Option<Digest>,
    /// `None` while a Pod uses it.
    pub unused_since: Option<Timestamp>,
    /// It was never copied, for reasons of its source.
    pub uncopyable: bool,
    /// Namespaces that have proven access to it.
    pub access: Proofs,
    pub copies: Vec<Copy>,
    /// Boxed, because the images of mirrors have none.
    pub watch: Option<Box<Watch>>,
}

impl Entry {
    /// The copy at a destination.
    pub fn copy_at(&self, destination: &Reference) -> Option<&Copy> {
        self.copies.iter().find(|copy| copy.destination == *destination)
    }

    /// Makes it what it would be after having been stored and read again.
    pub(super) fn tidy(&mut self) {
        self.copies.retain(|copy| storable(&copy.destination));
        self.drop_surplus();
        self.copies.shrink_to_fit();
        for copy in &mut self.copies {
            copy.tidy();
        }
        access::tidy(&mut self.access);
        if let Some(time) = &mut self.unused_since {
            *time = whole_seconds(*time);
        }
        if let Some(watch) = &mut self.watch {
            watch.last_monitor = watch.last_monitor.map(whole_seconds);
            shorten(&mut watch.last_error);
        }
    }

    /// More destinations than an object may have are there when its mirrors are replaced by others while copies in the
    /// old ones are still being deleted. Rows that stand for nothing in a registry give way: they come back when there
    /// is room.
    fn drop_surplus(&mut self) {
        let mut surplus = self.copies.len().saturating_sub(MAX_MIRRORS);
        for wanted in [Copy::is_unmade, |_: &Copy| true] {
            for index in (0..self.copies.len()).rev() {
                if surplus > 0 && self.copies.get(index).is_some_and(wanted) {
                    self.copies.remove(index);
                    surplus -= 1;
                }
            }
        }
    }
}

impl Copy {
    /// One that is still to be made.
    pub fn pending(destination: Reference, since: Timestamp) -> Self {
        Self {
            destination,
            digest: None,
            state: CopyState::Pending,
            since,
            last_error: None,
            written: Digests::default(),
            adopted: false,
            replaces: false,
            named: None,
            kept: None,
        }
    }

    /// Nothing is known to be at the destination.
    pub fn is_unmade(&self) -> bool {
        self.written.is_empty()
            && !self.adopted
            && (self.state == CopyState::Refused
                || (self.digest.is_none() && self.state != CopyState::Deleting))
    }

    /// A write of this digest was begun.
    pub fn write(&mut self, digest: Digest) {
        let mut written: Vec<_> = self.written.iter().filter(|known| *known != digest).collect();
        written.push(digest);
        let surplus = written.len().saturating_sub(MAX_WRITTEN);
        self.written = written.into_iter().skip(surplus).collect();
    }

    fn tidy(&mut self) {
        self.since = whole_seconds(self.since);
        normalise(&mut self.destination);
        shorten(&mut self.last_error);
        shorten(&mut self.kept);
        if self.written.iter().nth(MAX_WRITTEN).is_some() {
            self.written = self.written.iter().take(MAX_WRITTEN).collect();
        }
        if let Some(Named::Until(time)) = &mut self.named {
            *time = whole_seconds(*time);
        }
        match self.state {
            // Without its digest it is unknown whether it is in place. Looking again finds out.
            CopyState::Mirrored if self.digest.is_none() => self.state = CopyState::Pending,
            CopyState::Failed | CopyState::Refused if self.last_error.is_none() => {
                self.last_error = Some(NO_REASON.into());
            }
            _ => {}
        }
    }
}

/// Whether a ledger can hold a reference. Runtimes read a few that no registry has: with a port of six digits, or a
/// host in brackets that is no address.
pub fn storable(reference: &Reference) -> bool {
    let host = reference.host();
    let host = host.as_str();
    let (name, port) = match host.rsplit_once(']') {
        Some((address, port)) => (address, port.strip_prefix(':')),
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    reference.as_str().len() <= LONGEST_REFERENCE
        && port.is_none_or(|port| port.len() <= PORT_DIGITS)
        && (!name.starts_with('[') || name.contains(':'))
}

/// Lets go of the text that was written, where it is another: only the normalised one is stored.
pub(super) fn normalise(reference: &mut Reference) {
    if reference.written() != reference.as_str()
        && let Ok(normalised) = Reference::parse(reference.as_str())
    {
        *reference = normalised;
    }
}

/// Kubernetes keeps times to the second.
pub(crate) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn shorten(error: &mut Option<Box<str>>) {
    let Some(text) = error else { return };
    if let Some((end, _)) = text.char_indices().nth(MOST_ERROR_CHARACTERS) {
        *error = text.get(..end).map(Into::into);
    }
}
