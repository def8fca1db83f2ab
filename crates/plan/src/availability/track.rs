//! Which images a ledger of the watch holds: those in use, and those that were not long ago.

use std::collections::BTreeMap;

use fairlead_api::kuik::{Availability, ClusterImageSetAvailabilityStatus};
use fairlead_domain::reference::Reference;
use jiff::Timestamp;

use super::Watched;
use crate::ledger::{Entry, Ledger, LedgerChange, Watch, storable};
use crate::usage::Used;

/// What brings a ledger in line with what is in use.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tracked {
    pub changes: Vec<LedgerChange>,
    /// When the next image is to be dropped.
    pub next_expiry: Option<Timestamp>,
}

/// Images out of the filter are dropped at once; the others stay for as long as the object says after their last use,
/// or for ever.
pub fn track(ledger: &Ledger, watched: &Watched, used: &[Used], now: Timestamp) -> Tracked {
    let mut tracked = Tracked::default();
    let Tracked { changes, next_expiry } = &mut tracked;
    for (image, entry) in ledger.iter() {
        if let Ok(at) = used.binary_search_by(|used| used.image.cmp(image)) {
            let original = used.get(at).is_some_and(|used| used.original);
            let recorded = entry.watch.as_ref().map(|watch| watch.original);
            if entry.unused_since.is_some() || recorded != Some(original) {
                let watch = Watch { original, ..entry.watch.as_deref().cloned().unwrap_or_default() };
                let entry = Entry { unused_since: None, watch: Some(watch.into()), ..entry.clone() };
                changes.push(LedgerChange::set(image, entry));
            }
            continue;
        }
        if !watched.takes(image) {
            changes.push(LedgerChange::remove(image));
            continue;
        }
        let since = entry.unused_since.filter(|since| !is_mark(*since)).unwrap_or(now).min(now);
        let unused = || Entry { unused_since: Some(since), ..entry.clone() };
        match watched.expiry() {
            // What has never been looked at has nothing to be remembered for.
            Some(_) if status(entry) == Availability::Scheduled => changes.push(LedgerChange::remove(image)),
            Some(expiry) => {
                let end = since.checked_add(expiry).unwrap_or(Timestamp::MAX);
                if end <= now {
                    changes.push(LedgerChange::remove(image));
                    continue;
                }
                *next_expiry = Some(next_expiry.map_or(end, |next| next.min(end)));
                if entry.unused_since != Some(since) {
                    changes.push(LedgerChange::set(image, unused()));
                }
            }
            None if entry.unused_since != Some(since) => changes.push(LedgerChange::set(image, unused())),
            None => {}
        }
    }
    // One that no ledger can hold is not watched; there is nowhere to say so but in the ledger.
    let is_new = |used: &&Used| ledger.get(&used.image).is_none() && storable(&used.image);
    changes.extend(used.iter().filter(is_new).map(|used| {
        let watch = Watch { original: used.original, ..Watch::default() };
        LedgerChange::set(&used.image, Entry { watch: Some(watch.into()), ..Entry::default() })
    }));
    tracked
}

/// Takes over what kuik's status says, where there is no ledger yet. Images that cannot be parsed are left out: no Pod
/// can use them.
pub fn adopt(ledger: &Ledger, status: &ClusterImageSetAvailabilityStatus) -> Vec<LedgerChange> {
    let mut entries: BTreeMap<Reference, Entry> = BTreeMap::new();
    for monitored in &status.images {
        let Ok(image) = Reference::parse(&monitored.image) else { continue };
        if ledger.get(&image).is_some() {
            continue;
        }
        let error = (!monitored.last_error.is_empty()).then(|| monitored.last_error.as_str().into());
        let watch = Watch {
            status: monitored.status,
            last_monitor: monitored.last_monitor.as_ref().map(|time| time.0),
            last_error: error,
            original: monitored.original,
        };
        let unused_since = monitored.unused_since.as_ref().map(|time| time.0);
        let entry = Entry { unused_since, watch: Some(watch.into()), ..Entry::default() };
        entries.entry(image).or_insert(entry);
    }
    entries.into_iter().map(|(source, entry)| LedgerChange { source, entry: Some(entry) }).collect()
}

pub(super) fn status(entry: &Entry) -> Availability {
    entry.watch.as_ref().map_or(Availability::Scheduled, |watch| watch.status)
}

/// Whether kuik marked the image as one to forget, with a time before all times, rather than recording its last use.
fn is_mark(since: Timestamp) -> bool {
    since < Timestamp::UNIX_EPOCH
}
