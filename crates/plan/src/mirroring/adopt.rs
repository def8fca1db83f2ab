//! Taking over from kuik, which keeps everything in the status of its objects.

use std::collections::BTreeMap;

use fairlead_api::kuik::{MatchingImage, MirrorSetStatus};
use fairlead_domain::reference::Reference;
use jiff::Timestamp;

use super::whole_seconds;
use crate::ledger::{Copy, Entry, Ledger, LedgerChange};

/// The entries that a status lists, for an object that has no ledger yet. Retention goes on from where it was. No
/// digest is known, so every copy is looked at: what is found then counts as written, because kuik says that it made
/// it.
pub fn adopt(ledger: &Ledger, status: &MirrorSetStatus, now: Timestamp) -> Vec<LedgerChange> {
    let mut entries: BTreeMap<Reference, Entry> = BTreeMap::new();
    for image in &status.matching_images {
        let Ok(source) = Reference::parse(&image.image) else { continue };
        let copies = copies(image, whole_seconds(now));
        if ledger.get(&source).is_none() && !copies.is_empty() {
            let unused_since = image.unused_since.as_ref().map(|time| time.0);
            entries.entry(source).or_insert_with(|| Entry { unused_since, copies, ..Entry::default() });
        }
    }
    entries.into_iter().map(|(source, entry)| LedgerChange { source, entry: Some(entry) }).collect()
}

fn copies(image: &MatchingImage, now: Timestamp) -> Vec<Copy> {
    let mut copies: Vec<Copy> = Vec::with_capacity(image.mirrors.len());
    for mirror in &image.mirrors {
        // Of an image that is not in use, only copies that were made matter.
        if image.unused_since.is_some() && mirror.mirrored_at.is_none() {
            continue;
        }
        let Ok(destination) = Reference::parse(&mirror.image) else { continue };
        if copies.iter().all(|known| !known.destination.is_same_image(&destination)) {
            let made = mirror.mirrored_at.as_ref().map(|time| time.0);
            let copy = Copy::pending(destination, made.unwrap_or(now));
            copies.push(Copy { adopted: made.is_some(), ..copy });
        }
    }
    copies
}
