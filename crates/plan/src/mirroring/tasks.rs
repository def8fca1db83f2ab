//! What a ledger says is to be done.

use std::collections::{HashMap, hash_map::Entry as Place};

use fairlead_api::fairlead::CopyState;
use fairlead_domain::reference::Reference;
use jiff::Timestamp;

use crate::ledger::{Copy, Entry, Ledger};

/// In order of precedence, where one destination is to see more than one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    /// Make the copy, or find that it is there.
    Copy,
    Delete,
    /// Find out what a copy would contain that another source's copy is in the way of.
    Compare,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pub source: Reference,
    pub destination: Reference,
    pub work: Work,
}

/// Everything to be done now, in order of source, one task for each destination. To be asked after a round of
/// [`reconcile`](super::reconcile) over all objects, because only that says who may write to a destination.
pub fn tasks(ledger: &Ledger) -> Vec<Task> {
    let mut tasks: Vec<Task> = Vec::new();
    let mut places: HashMap<&Reference, (usize, Precedence)> = HashMap::new();
    for (source, entry) in ledger.iter() {
        for copy in &entry.copies {
            let Some(work) = work(entry, copy) else { continue };
            let task = || Task { source: source.clone(), destination: copy.destination.clone(), work };
            let precedence = (work, copy.state == CopyState::Failed, copy.digest.is_none(), copy.since);
            match places.entry(&copy.destination) {
                Place::Vacant(place) => {
                    place.insert((tasks.len(), precedence));
                    tasks.push(task());
                }
                Place::Occupied(mut place) if precedence < place.get().1 => {
                    let (position, known) = place.get_mut();
                    *known = precedence;
                    if let Some(before) = tasks.get_mut(*position) {
                        *before = task();
                    }
                }
                Place::Occupied(_) => {}
            }
        }
    }
    tasks
}

/// Of two copies to one destination the one that has not just failed, then the one that was there before, then the older one.
type Precedence = (Work, bool, bool, Timestamp);

fn work(entry: &Entry, copy: &Copy) -> Option<Work> {
    let in_use = entry.unused_since.is_none();
    match copy.state {
        CopyState::Pending | CopyState::Failed => in_use.then_some(Work::Copy),
        CopyState::Refused => (in_use && copy.digest.is_none()).then_some(Work::Compare),
        CopyState::Deleting => Some(Work::Delete),
        CopyState::Mirrored => None,
    }
}
