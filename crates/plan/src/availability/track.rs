//! Which images a ledger of the watch holds: those in use, and those that were not long ago.

use fairlead_api::kuik::{Availability, ClusterImageSetAvailabilityStatus};
use fairlead_domain::reference::Reference;
use jiff::Timestamp;

use super::Watched;
use crate::ledger::{Entry, Ledger, Watch};
use crate::usage::Used;

/// Brings a ledger in line with what is in use. Images out of the filter are dropped at once; the others stay for as
/// long as the object says after their last use, or for ever. Returns when the next one is to be dropped.
pub fn track(ledger: &mut Ledger, watched: &Watched, used: &[Used], now: Timestamp) -> Option<Timestamp> {
    let mut leaving = Vec::new();
    let mut unused = Vec::new();
    let mut in_use = Vec::new();
    let mut next_expiry: Option<Timestamp> = None;
    for (image, entry) in ledger.iter() {
        if let Ok(at) = used.binary_search_by(|used| used.image.cmp(image)) {
            let original = used.get(at).is_some_and(|used| used.original);
            let recorded = entry.watch.as_ref().map(|watch| watch.original);
            if entry.unused_since.is_some() || recorded != Some(original) {
                in_use.push((image.clone(), original));
            }
            continue;
        }
        if !watched.takes(image) {
            leaving.push(image.clone());
            continue;
        }
        let since = entry.unused_since.filter(|since| !is_mark(*since)).unwrap_or(now).min(now);
        match watched.expiry() {
            // What has never been looked at has nothing to be remembered for.
            Some(_) if status(entry) == Availability::Scheduled => leaving.push(image.clone()),
            Some(expiry) => {
                let end = since.checked_add(expiry).unwrap_or(Timestamp::MAX);
                if end <= now {
                    leaving.push(image.clone());
                    continue;
                }
                next_expiry = Some(next_expiry.map_or(end, |next| next.min(end)));
                if entry.unused_since != Some(since) {
                    unused.push((image.clone(), since));
                }
            }
            None if entry.unused_since != Some(since) => unused.push((image.clone(), since)),
            None => {}
        }
    }
    for image in &leaving {
        ledger.remove(image);
    }
    for (image, since) in unused {
        ledger.edit(&image, |entry| entry.unused_since = Some(since));
    }
    for (image, original) in in_use {
        ledger.edit(&image, |entry| {
            entry.unused_since = None;
            entry.watch.get_or_insert_with(|| unseen(original).into()).original = original;
        });
    }
    for used in used {
        if ledger.get(&used.image).is_none() {
            // One that no ledger can hold is not watched; there is nowhere to say so but in the ledger.
            let entry = Entry { watch: Some(unseen(used.original).into()), ..Entry::default() };
            ledger.insert(used.image.clone(), entry);
        }
    }
    next_expiry
}

/// Takes over what kuik's status says, where there is no ledger yet. Images that cannot be parsed are left out: no Pod
/// can use them.
pub fn adopt(ledger: &mut Ledger, status: &ClusterImageSetAvailabilityStatus) {
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
        ledger.insert(image, entry);
    }
}

pub(super) fn status(entry: &Entry) -> Availability {
    entry.watch.as_ref().map_or(Availability::Scheduled, |watch| watch.status)
}

fn unseen(original: bool) -> Watch {
    Watch { original, ..Watch::default() }
}

/// Whether kuik marked the image as one to forget, with a time before all times, rather than recording its last use.
fn is_mark(since: Timestamp) -> bool {
    since < Timestamp::UNIX_EPOCH
}
