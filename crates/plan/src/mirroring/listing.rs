//! Which copies this cluster uses, for the usage lists that other clusters read.

use fairlead_api::fairlead::CopyState;
use fairlead_domain::reference::{Location, Reference};
use jiff::Timestamp;

use super::targets::Aims;
use crate::ledger::Ledger;
use crate::routing::Policy;

/// The copies that one object keeps in its mirrors: of images in use, and of those whose retention is not over.
pub fn kept_copies<'a>(
    ledger: &'a Ledger,
    policy: &'a Policy,
    now: Timestamp,
) -> Vec<(&'a Location, &'a Reference)> {
    let aims = Aims::of(policy);
    let mut kept = Vec::new();
    for (source, entry) in ledger.iter() {
        for copy in entry.copies.iter().filter(|copy| copy.state != CopyState::Refused) {
            let Some(aim) = aims.position(source, &copy.destination).and_then(|position| aims.get(position))
            else {
                continue;
            };
            let used = match entry.unused_since {
                None => true,
                // Without clean-up a copy stays for ever, which is no use of it.
                Some(since) => aim.gone_at(since, copy).is_some_and(|end| end > now),
            };
            if used {
                kept.push((aim.place(), &copy.destination));
            }
        }
    }
    kept
}
