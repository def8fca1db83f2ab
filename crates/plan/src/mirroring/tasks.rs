//! What a ledger says is to be done.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::sync::Arc;

use fairlead_api::fairlead::CopyState;
use fairlead_domain::reference::{PlaceKey, Reference};
use jiff::Timestamp;

use super::destination_key::suffix;
use super::targets::Aims;
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

/// One side of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    pub host: Arc<str>,
    /// Why nothing is asked of it now.
    pub trouble: Option<String>,
}

/// A registry that a task cannot do without, and why it has to wait.
pub type Blocked = (Arc<str>, String);

/// The registries that a task waits for, and the one that it cannot do without now, with the reason. `known`: it is
/// known which image the source is, so that a copy can be made from elsewhere while the source is down.
pub fn registries_of(
    work: Work,
    known: bool,
    destination: Registry,
    source: Registry,
) -> (Vec<Arc<str>>, Option<Blocked>) {
    let awaited = |one: &Registry| one.trouble.clone().map(|why| (Arc::clone(&one.host), why));
    let (closed, silent) = (awaited(&destination), awaited(&source));
    match work {
        Work::Copy if silent.is_none() || known => (vec![destination.host], closed),
        Work::Copy => (vec![destination.host, source.host], closed.or(silent)),
        Work::Compare => (vec![source.host], silent),
        Work::Delete | Work::Identify => (vec![destination.host], closed),
    }
}

/// Everything to be done now, in order of source, one task for each destination. To be asked after a round of
/// [`reconcile`](super::reconcile) over all objects, because only that says who may write to a destination. `used` are
/// the images in use that the policy selects, in order: nothing is copied for any other.
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

/// Of two copies to one destination the one that has not just failed, then the one that was there before, then the
/// older one.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_is_down_is_waited_for_only_where_it_is_needed() {
        let registry = |host: &str, down: bool| Registry {
            host: host.into(),
            trouble: down.then(|| format!("{host} is down")),
        };
        let blocked = |work, known, [destination, source]: [bool; 2]| {
            let found = registries_of(work, known, registry("m.io", destination), registry("a.io", source));
            (found.0.join(" "), found.1.map(|(_, why)| why).unwrap_or_default())
        };
        let expect = |hosts: &str, why: &str| (hosts.to_owned(), why.to_owned());
        assert_eq!(blocked(Work::Copy, false, [false, false]), expect("m.io", ""));
        assert_eq!(
            blocked(Work::Copy, true, [false, true]),
            expect("m.io", ""),
            "it may come from elsewhere"
        );
        assert_eq!(blocked(Work::Copy, false, [false, true]), expect("m.io a.io", "a.io is down"));
        assert_eq!(blocked(Work::Copy, false, [true, true]), expect("m.io a.io", "m.io is down"));
        assert_eq!(blocked(Work::Compare, true, [true, false]), expect("a.io", ""));
        assert_eq!(blocked(Work::Delete, true, [true, false]), expect("m.io", "m.io is down"));
    }
}
