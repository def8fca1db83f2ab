//! What a ledger says is to be done.

use std::collections::{HashMap, hash_map::Entry as Place};

use fairlead_api::fairlead::CopyState;
use fairlead_domain::reference::{PlaceKey, Reference};
use jiff::Timestamp;

use super::{destination_key::suffix, targets::Aims};
use crate::ledger::{Copy, Ledger};
use crate::routing::Policy;
use crate::usage::Used;

/// In order of precedence, where one destination is to see more than one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    /// Find out which digest a copy has that kube-image-keeper made.
    Identify,
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
/// [`reconcile`](super::reconcile) over all objects, because only that says who may write to a destination. `used` are the
/// images in use that the policy selects, in order: nothing is copied for any other.
pub fn tasks(ledger: &Ledger, policy: &Policy, used: &[Used]) -> Vec<Task> {
    let aims = Aims::of(policy);
    let mut tasks: Vec<Task> = Vec::new();
    let mut places: HashMap<(PlaceKey<'_>, &str), (usize, Precedence)> = HashMap::new();
    for (source, entry) in ledger.iter() {
        let in_use = || used.binary_search_by(|used| used.image.cmp(source)).is_ok();
        for copy in &entry.copies {
            let Some(work) = work(copy, in_use) else { continue };
            if aims.position(source, &copy.destination).is_none() {
                continue;
            }
            let task = || Task { source: source.clone(), destination: copy.destination.clone(), work };
            let precedence = (work, copy.state == CopyState::Failed, copy.digest.is_none(), copy.since);
            match places.entry((copy.destination.place(), suffix(&copy.destination))) {
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

fn work(copy: &Copy, in_use: impl Fn() -> bool) -> Option<Work> {
    if copy.kept.is_some() {
        return None;
    }
    if copy.adopted {
        return Some(Work::Identify);
    }
    match copy.state {
        CopyState::Pending | CopyState::Failed => in_use().then_some(Work::Copy),
        CopyState::Refused => (copy.digest.is_none() && in_use()).then_some(Work::Compare),
        CopyState::Deleting => Some(Work::Delete),
        CopyState::Mirrored => None,
    }
}
