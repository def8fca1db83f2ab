//! Entries as they are stored, and how large that makes them.

use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;

use fairlead_api::fairlead::{
    ImageLedger, ImageLedgerSpec, LedgerCopy, LedgerEntry, LedgerManner, LedgerProof, LedgerWatch, MAX_COPIES,
};
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use jiff::Timestamp;

use super::digests::Digests;
use super::entry::{Copy, Entry, Named, Watch, normalise, storable};

/// Stored text of one shard. The API server takes several times as much; but a shard is written again as a whole
/// whenever one of its entries changes.
pub const MOST_BYTES: usize = 400 * 1024;

pub(super) fn write(source: &Reference, entry: &Entry) -> LedgerEntry {
    LedgerEntry {
        source: source.as_str().to_owned(),
        source_digest: entry.source_digest.map(|digest| digest.to_string()),
        unused_since: entry.unused_since.map(Into::into),
        uncopyable: entry.uncopyable,
        access: entry.access.iter().map(write_proof).collect(),
        mirrors: entry.copies.iter().map(write_copy).collect(),
        watch: entry.watch.as_deref().map(write_watch),
    }
}

fn write_proof((namespace, at): (&Arc<str>, &Timestamp)) -> LedgerProof {
    LedgerProof { namespace: namespace.to_string(), proven_at: (*at).into() }
}

fn write_copy(copy: &Copy) -> LedgerCopy {
    LedgerCopy {
        destination: copy.destination.as_str().to_owned(),
        digest: copy.digest.map(|digest| digest.to_string()),
        state: copy.state,
        since: copy.since.into(),
        last_error: copy.last_error.as_deref().map(str::to_owned),
        written: copy.written.iter().map(|digest| digest.to_string()).collect(),
        adopted: copy.adopted,
        replaces: copy.replaces,
        named: copy.named == Some(Named::Now),
        named_until: match copy.named {
            Some(Named::Until(time)) => Some(time.into()),
            Some(Named::Now) | None => None,
        },
        kept: copy.kept.as_deref().map(str::to_owned),
    }
}

fn write_watch(watch: &Watch) -> LedgerWatch {
    LedgerWatch {
        status: watch.status,
        last_monitor: watch.last_monitor.map(Into::into),
        last_error: watch.last_error.as_deref().map(str::to_owned),
        original: watch.original,
    }
}

/// A stored object as it was read. Smaller than the object, so it is made of each one as it arrives.
#[derive(Debug)]
pub struct StoredShard {
    pub(super) name: String,
    pub(super) version: Option<String>,
    pub(super) manner: LedgerManner,
    pub(super) entries: Vec<(Reference, Box<Entry>)>,
    /// Everything could be read. What could not is left out; the rest still holds.
    pub(super) whole: bool,
}

impl From<ImageLedger> for StoredShard {
    fn from(ledger: ImageLedger) -> Self {
        let (name, version) = (ledger.metadata.name, ledger.metadata.resource_version);
        (name.unwrap_or_default(), version, ledger.spec).into()
    }
}

/// From its name, resource version and content.
impl From<(String, Option<String>, ImageLedgerSpec)> for StoredShard {
    fn from((name, version, content): (String, Option<String>, ImageLedgerSpec)) -> Self {
        let mut whole = true;
        let mut entries = Vec::with_capacity(content.entries.len());
        for stored in content.entries {
            let read = read(stored, &mut whole);
            whole &= read.is_some();
            entries.extend(read);
        }
        Self { name, version, manner: content.manner, entries, whole }
    }
}

/// `None`: nothing can be made of it without its source.
pub(super) fn read(stored: LedgerEntry, whole: &mut bool) -> Option<(Reference, Box<Entry>)> {
    let mut source = Reference::parse(&stored.source).ok().filter(storable)?;
    normalise(&mut source);
    let (listed, proofs) = (stored.mirrors.len(), stored.access.len());
    let source_digest = read_digest(stored.source_digest.as_deref(), whole);
    let copies = stored.mirrors.into_iter().filter_map(|copy| {
        Some(Copy {
            destination: Reference::parse(&copy.destination).ok()?,
            digest: read_digest(copy.digest.as_deref(), whole),
            state: copy.state,
            since: copy.since.0,
            last_error: copy.last_error.map(Into::into),
            written: read_digests(&copy.written, whole),
            adopted: copy.adopted,
            replaces: copy.replaces,
            named: match copy.named_until {
                _ if copy.named => Some(Named::Now),
                until => until.map(|time| Named::Until(time.0)),
            },
            kept: copy.kept.map(Into::into),
        })
    });
    let mut entry = Box::new(Entry {
        source_digest,
        unused_since: stored.unused_since.map(|time| time.0),
        uncopyable: stored.uncopyable,
        access: stored.access.into_iter().map(|one| (one.namespace.into(), one.proven_at.0)).collect(),
        copies: copies.collect(),
        watch: stored.watch.map(|watch| {
            Box::new(Watch {
                status: watch.status,
                last_monitor: watch.last_monitor.map(|time| time.0),
                last_error: watch.last_error.map(Into::into),
                original: watch.original,
            })
        }),
    });
    entry.tidy();
    *whole &= entry.copies.len() == listed && entry.access.len() == proofs;
    Some((source, entry))
}

fn read_digest(text: Option<&str>, whole: &mut bool) -> Option<Digest> {
    let digest = text?.parse().ok();
    *whole &= digest.is_some();
    digest
}

/// What cannot be read was not written by us.
fn read_digests(texts: &[String], whole: &mut bool) -> Digests {
    texts.iter().filter_map(|text| read_digest(Some(text), whole)).collect()
}

/// What entries take of a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) entries: usize,
    pub(super) rows: usize,
    /// A little more than the stored text has.
    pub(super) bytes: usize,
}

impl Size {
    pub(super) fn of(source: &Reference, entry: &Entry) -> Self {
        let digest =
            |digest: &Option<Digest>| digest.as_ref().map_or(0, |digest| 30 + digest.as_bytes().len() * 2);
        let error = |error: &Option<Box<str>>| error.as_deref().map_or(0, |text| 16 + escaped_len(text));
        let written = |copy: &Copy| {
            let digests = copy.written.iter().map(|one| 10 + one.as_bytes().len() * 2);
            digests.sum::<usize>() + usize::from(!copy.written.is_empty()) * 14
        };
        let named = |copy: &Copy| match copy.named {
            None => 0,
            Some(Named::Now) => 14,
            Some(Named::Until(_)) => 40,
        };
        let copy = |copy: &Copy| {
            100 + copy.destination.as_str().len()
                + digest(&copy.digest)
                + written(copy)
                + usize::from(copy.adopted) * 15
                + usize::from(copy.replaces) * 16
                + named(copy)
                + error(&copy.last_error)
                + error(&copy.kept)
        };
        let proof = |namespace: &Arc<str>| 51 + namespace.len();
        let watch = |watch: &Watch| 130 + error(&watch.last_error);
        Self {
            entries: 1,
            rows: entry.copies.len().max(1),
            bytes: 80
                + usize::from(entry.uncopyable) * 18
                + source.as_str().len()
                + digest(&entry.source_digest)
                + usize::from(!entry.access.is_empty()) * 12
                + entry.access.keys().map(proof).sum::<usize>()
                + entry.copies.iter().map(copy).sum::<usize>()
                + entry.watch.as_deref().map_or(0, watch),
        }
    }

    pub(super) fn has_room_for(&self, more: &Self) -> bool {
        self.rows + more.rows <= MAX_COPIES && self.bytes + more.bytes <= MOST_BYTES
    }
}

impl AddAssign for Size {
    fn add_assign(&mut self, other: Self) {
        self.entries += other.entries;
        self.rows += other.rows;
        self.bytes += other.bytes;
    }
}

impl SubAssign for Size {
    fn sub_assign(&mut self, other: Self) {
        self.entries = self.entries.saturating_sub(other.entries);
        self.rows = self.rows.saturating_sub(other.rows);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }
}

/// Length of a text inside quotes in JSON.
fn escaped_len(text: &str) -> usize {
    let escaped = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        ..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(escaped).sum()
}
