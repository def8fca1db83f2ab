//! What findings about copies and sources change in a ledger.

use std::collections::HashMap;
use std::hash::BuildHasher;

use fairlead_api::fairlead::CopyState;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{ImageKey, Reference};
use jiff::Timestamp;

use super::tasks::Work;
use super::{is_shared, shortened, whole_seconds};
use crate::ledger::{Copy, Digests, Entry, Ledger, LedgerChange};

/// The outcome of a task, or what a probe saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// A write of this digest to the destination has begun, which did not have it a moment ago.
    Writing {
        digest: Digest,
    },
    /// The copy is in place: newly written, or found there.
    Copied {
        digest: Digest,
        source_digest: Digest,
        written: bool,
    },
    CopyFailed {
        error: String,
        fault: Fault,
    },
    /// What a copy would contain that was refused.
    Compared {
        digest: Digest,
        source_digest: Digest,
    },
    /// The source of a copy that was refused cannot be read.
    CompareFailed,
    /// What is under the name of a copy that kube-image-keeper made; `None`: nothing.
    Identified {
        digest: Option<Digest>,
    },
    /// The copy is no longer in the registry.
    Deleted,
    DeletionFailed {
        error: String,
    },
    /// The copy stays in the registry.
    Kept {
        why: String,
        /// The name has this, which we did not write.
        foreign: Option<Digest>,
    },
    /// The copy is not there, or something else is.
    Missing,
    /// The source has another digest than it had.
    SourceMoved {
        digest: Digest,
    },
}

impl Finding {
    /// What the failure of a task says about its copy.
    pub fn failed(work: Work, error: String, fault: Fault) -> Option<Self> {
        match work {
            Work::Copy => Some(Self::CopyFailed { error, fault }),
            Work::Compare => Some(Self::CompareFailed),
            Work::Delete => Some(Self::DeletionFailed { error }),
            Work::Identify => None,
        }
    }
}

/// What a copy failed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The source: not found, denied, unreachable, not as it must be.
    Source,
    /// The destination, which has not taken a write, or has been asked for none.
    Destination,
    /// The destination refused a write of this digest for certain.
    Refused(Digest),
}

/// What a registry said of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sighting {
    Gone,
    Digest(Digest),
}

/// What follows from sightings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    pub changes: Vec<LedgerChange>,
    /// Copies that are to be made again because they are not what they should be.
    pub missing: usize,
    /// Sources that have moved, so that their copies are to be made again.
    pub moved: usize,
}

/// What a finding about a copy changes, or one about a source where `destination` is `None`. What no longer has a row
/// is not noted, unless it is a write: what may be in a registry because of us is never forgotten.
pub fn record(
    ledger: &Ledger,
    source: &Reference,
    destination: Option<&Reference>,
    finding: Finding,
    now: Timestamp,
) -> Option<LedgerChange> {
    let now = whole_seconds(now);
    let written = destination.filter(|_| matches!(finding, Finding::Writing { .. }));
    let known = ledger.get(source);
    let mut entry = match (known, written) {
        (Some(entry), _) => entry.clone(),
        (None, Some(_)) => Entry { unused_since: Some(now), ..Entry::default() },
        (None, None) => return None,
    };
    if let Some(destination) = written.filter(|destination| entry.copy_at(destination).is_none()) {
        entry.copies.push(Copy::pending(destination.clone(), now));
    }
    note(&mut entry, source, destination, finding, now);
    if entry.copies.is_empty() && entry.unused_since.is_some() {
        return Some(LedgerChange::remove(source));
    }
    (known != Some(&entry)).then(|| LedgerChange::set(source, entry))
}

/// What a finding about one copy tells of its source: that it has another digest than the ledger says. To be recorded
/// first, because all copies of the image that were made before are to follow.
pub fn source_moved(ledger: &Ledger, source: &Reference, finding: &Finding) -> Option<Finding> {
    let Finding::Copied { source_digest: digest, .. } = *finding else { return None };
    let known = ledger.get(source)?.source_digest?;
    (known != digest).then_some(Finding::SourceMoved { digest })
}

/// What follows if an image is said not to be what its ledger says: its copies are looked for, and made if need be.
pub fn doubt(ledger: &Ledger, source: &Reference, now: Timestamp) -> Option<LedgerChange> {
    let known = ledger.get(source)?;
    let mut entry = known.clone();
    for copy in &known.copies {
        note(&mut entry, source, Some(&copy.destination), Finding::Missing, whole_seconds(now));
    }
    (*known != entry).then(|| LedgerChange::set(source, entry))
}

fn note(
    entry: &mut Entry,
    source: &Reference,
    destination: Option<&Reference>,
    finding: Finding,
    now: Timestamp,
) {
    if let Finding::SourceMoved { digest } = finding {
        moved(entry, source, digest, now);
        return;
    }
    let position = destination
        .and_then(|destination| entry.copies.iter().position(|copy| copy.destination == *destination));
    let Some((position, copy)) = position.and_then(|at| Some((at, entry.copies.get_mut(at)?))) else {
        return;
    };
    match (finding, copy.state) {
        (Finding::Writing { digest }, _) => copy.write(digest),
        (Finding::Copied { digest, source_digest, written }, state) => {
            let ours = written || copy.written.contains(digest);
            copy.written = ours.then_some(digest).into_iter().collect();
            copy.replaces = false;
            if state == CopyState::Deleting {
                copy.digest = Some(digest);
            } else {
                if state != CopyState::Mirrored || copy.digest != Some(digest) {
                    copy.since = now;
                }
                (copy.state, copy.digest, copy.last_error) = (CopyState::Mirrored, Some(digest), None);
            }
            entry.uncopyable = false;
            follow(entry, source_digest, digest, now);
        }
        (Finding::Compared { digest, source_digest }, CopyState::Refused) => {
            copy.digest = Some(digest);
            entry.uncopyable = false;
            follow(entry, source_digest, digest, now);
        }
        (Finding::CompareFailed, CopyState::Refused) => entry.uncopyable |= entry.source_digest.is_none(),
        (Finding::CopyFailed { error, fault }, state) => {
            if let Fault::Refused(digest) = fault {
                copy.written = copy.written.iter().filter(|known| *known != digest).collect();
            }
            if matches!(state, CopyState::Pending | CopyState::Failed) {
                if state != CopyState::Failed {
                    (copy.state, copy.since) = (CopyState::Failed, now);
                }
                copy.last_error = Some(shortened(&error));
                entry.uncopyable |= fault == Fault::Source && entry.source_digest.is_none();
            }
        }
        (Finding::Identified { digest }, _) => {
            copy.adopted = false;
            copy.written = copy.written.iter().chain(digest).collect();
        }
        (Finding::Deleted, CopyState::Deleting) => {
            entry.copies.remove(position);
        }
        (Finding::Kept { why, foreign }, CopyState::Deleting) => keep(copy, &why, foreign, now),
        (Finding::DeletionFailed { error }, CopyState::Deleting) => {
            copy.last_error = Some(shortened(&error));
        }
        // An image came back into use while its copy was being deleted: what is wanted now was not there a moment ago.
        (Finding::Deleted | Finding::Missing, CopyState::Mirrored) if copy.kept.is_none() => again(copy, now),
        _ => {}
    }
}

/// Parks a copy that was to be deleted and is not. What others put there is not offered as this copy.
fn keep(copy: &mut Copy, why: &str, foreign: Option<Digest>, now: Timestamp) {
    copy.kept = Some(shortened(why));
    if foreign.is_some() {
        (copy.state, copy.digest, copy.last_error) = (CopyState::Refused, None, Some(shortened(why)));
        (copy.replaces, copy.since) = (true, now);
        copy.written = Digests::default();
    } else {
        let digest = copy.digest.or(copy.written.last());
        (copy.state, copy.digest, copy.last_error) = (CopyState::Mirrored, digest, None);
    }
}

/// What registries said of any references, sources and copies alike, held against a whole ledger in one pass.
pub fn observe<S: BuildHasher>(
    ledger: &Ledger,
    seen: &HashMap<ImageKey, Sighting, S>,
    now: Timestamp,
) -> Observed {
    let mut observed = Observed::default();
    if seen.is_empty() {
        return observed;
    }
    let now = whole_seconds(now);
    for (source, entry) in ledger.iter() {
        let mut findings = Vec::new();
        if let Some(Sighting::Digest(digest)) = seen.get(&source.key())
            && has_moved(entry, source, digest)
        {
            observed.moved += 1;
            findings.push((None, Finding::SourceMoved { digest: *digest }));
        }
        for copy in
            entry.copies.iter().filter(|copy| copy.state == CopyState::Mirrored && copy.kept.is_none())
        {
            let right = match seen.get(&copy.destination.key()) {
                None => true,
                Some(Sighting::Gone) => false,
                Some(Sighting::Digest(digest)) => copy.digest == Some(*digest),
            };
            if !right {
                observed.missing += 1;
                findings.push((Some(&copy.destination), Finding::Missing));
            }
        }
        if !findings.is_empty() {
            let mut changed = entry.clone();
            for (destination, finding) in findings {
                note(&mut changed, source, destination, finding, now);
            }
            observed.changes.push(LedgerChange::set(source, changed));
        }
    }
    observed
}

/// Has the copies of these images made again, which were made in another manner than is asked for now.
pub fn make_again(ledger: &Ledger, outdated: &[Reference], now: Timestamp) -> Vec<LedgerChange> {
    let now = whole_seconds(now);
    let again = |source: &Reference| {
        let mut entry = ledger.get(source)?.clone();
        entry.copies.iter_mut().for_each(|copy| outdate(copy, now));
        Some(LedgerChange::set(source, entry))
    };
    outdated.iter().filter_map(again).collect()
}

/// Drift of an image that is not in use is left until it is: its copy is kept as it is until then.
fn has_moved(entry: &Entry, source: &Reference, digest: &Digest) -> bool {
    entry.unused_since.is_none()
        && source.digest().is_none()
        && entry.source_digest.is_some_and(|known| known != *digest)
}

fn moved(entry: &mut Entry, source: &Reference, digest: Digest, now: Timestamp) {
    if has_moved(entry, source, &digest) {
        entry.source_digest = Some(digest);
        for copy in &mut entry.copies {
            outdate(copy, now);
        }
    }
}

/// What the source has now, according to one copy. If its tag moved since the last one, the others are to be made
/// again.
fn follow(entry: &mut Entry, source_digest: Digest, copied: Digest, now: Timestamp) {
    if entry.source_digest.replace(source_digest).is_some_and(|known| known != source_digest) {
        for other in entry.copies.iter_mut().filter(|other| other.digest != Some(copied)) {
            outdate(other, now);
        }
    }
}

/// The copy is not what it would be if it were made now, nor is what it was compared with.
fn outdate(copy: &mut Copy, now: Timestamp) {
    if copy.kept.is_some() {
        return;
    }
    if copy.state == CopyState::Refused || is_shared(copy) {
        copy.digest = None;
    }
    if copy.state == CopyState::Mirrored {
        again(copy, now);
    }
}

/// The digest stays: it says that the destination was filled before, and by whom.
fn again(copy: &mut Copy, now: Timestamp) {
    (copy.state, copy.since, copy.last_error) = (CopyState::Pending, now, None);
}

/// Digests in the repository of a destination that copies which stay need. They must not be deleted: every tag that
/// names one would go with it.
pub fn needed_digests<'l>(
    ledgers: impl IntoIterator<Item = &'l Ledger>,
    destination: &Reference,
) -> Vec<Digest> {
    let copies = ledgers.into_iter().flat_map(Ledger::iter).flat_map(|(_, entry)| &entry.copies);
    let stays = |copy: &&Copy| !matches!(copy.state, CopyState::Deleting | CopyState::Refused);
    let same = copies.filter(stays).filter(|copy| copy.destination.place() == destination.place());
    same.filter_map(|copy| copy.digest.or(copy.destination.digest())).collect()
}
