//! What becomes of the copies when their object is deleted.

use std::collections::HashSet;

use fairlead_api::fairlead::CopyState;
use fairlead_domain::reference::Reference;
use jiff::{SignedDuration, Timestamp};

use super::{
    aims::Aims,
    claims::Claims,
    tasks::{Task, Work},
    whole_seconds,
};
use crate::{ledger::Ledger, routing::Policy};

/// How long the deletion of an object waits for its copies to be deleted. A Secret that is gone or a registry that is down must
/// not hold it up for ever.
pub const GIVE_UP: SignedDuration = SignedDuration::from_mins(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Farewell {
    /// Copies are still to be deleted; the object waits for that, at most until then.
    Clean { tasks: Vec<Task>, until: Timestamp, why: String },
    /// The object may go. `left`: copies that should have been deleted and were not.
    Done { left: usize },
}

/// Copies go with their object only where clean-up is enabled; retention is not waited for then. What other objects need
/// stays. In `claims` this object is leaving; `failing` is why deletions do not succeed at the moment.
///
/// Without a policy nobody can tell what was to be cleaned up, so everything stays.
pub fn farewell(
    ledger: &mut Ledger,
    policy: Option<&Policy>,
    claims: &Claims,
    deletion: Timestamp,
    failing: Option<&str>,
    now: Timestamp,
) -> Farewell {
    let Some(policy) = policy else {
        return Farewell::Done { left: 0 };
    };
    let doomed = doomed(ledger, policy, claims);
    let until = deletion.checked_add(GIVE_UP).unwrap_or(Timestamp::MAX);
    if doomed.is_empty() || until <= now {
        return Farewell::Done { left: doomed.len() };
    }
    let now = whole_seconds(now);
    for (source, destination) in &doomed {
        ledger.edit(source, |entry| {
            for copy in entry.copies.iter_mut().filter(|copy| copy.destination == *destination) {
                if copy.state != CopyState::Deleting {
                    (copy.state, copy.since, copy.last_error) = (CopyState::Deleting, now, None);
                }
            }
        });
    }
    let count = doomed.len();
    let copies = if count == 1 { "copy is" } else { "copies are" };
    let why = match failing {
        None => format!("{count} {copies} still to be deleted"),
        Some(failing) => {
            format!("{count} {copies} still to be deleted, and left where they are after {until}: {failing}")
        }
    };
    let mut known = HashSet::new();
    let tasks = doomed.into_iter().filter(|(_, destination)| known.insert(destination.clone()));
    let tasks = tasks.map(|(source, destination)| Task { source, destination, work: Work::Delete }).collect();
    Farewell::Clean { tasks, until, why }
}

fn doomed(ledger: &Ledger, policy: &Policy, claims: &Claims) -> Vec<(Reference, Reference)> {
    let aims = Aims::of(policy);
    let mut doomed = Vec::new();
    for (source, entry) in ledger.iter() {
        for copy in entry.copies.iter().filter(|copy| copy.state != CopyState::Refused) {
            let aim = aims.position(source, &copy.destination).and_then(|position| aims.get(position));
            let cleaned = aim.map_or(policy.cleanup().is_some(), super::aims::Aim::cleans_up);
            let uid = &ledger.owner().uid;
            if cleaned && !claims.wanted_elsewhere(uid, source, &copy.destination) {
                doomed.push((source.clone(), copy.destination.clone()));
            }
        }
    }
    doomed
}
