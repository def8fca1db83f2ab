//! What becomes of the copies when their object is deleted.

use std::collections::HashSet;

use fairlead_api::fairlead::CopyState;
use fairlead_domain::reference::Reference;
use jiff::{SignedDuration, Timestamp};

use super::{
    aims::Aims,
    claims::Claims,
    removal::{Candidate, Veto, may_delete},
    report::copies,
    tasks::{Task, Work},
    whole_seconds,
};
use crate::{ledger::Ledger, routing::Policy, usage::DirectUses};

/// How long the deletion of an object waits for its copies to be deleted. A Secret that is gone or a registry that is down must
/// not hold it up for ever.
pub const GIVE_UP: SignedDuration = SignedDuration::from_mins(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Farewell {
    /// Copies are still to be deleted; the object waits for that, at most until then.
    Clean { tasks: Vec<Task>, until: Timestamp, why: String },
    /// The object may go. `left` says which copies should have been deleted and were not, and why.
    Done { left: Option<String> },
}

/// Copies go with their object only where clean-up is enabled; retention is not waited for then. What other objects need
/// stays, and so does what a Pod names and what we did not write. In `claims` this object is leaving; `failing` is why
/// deletions do not succeed at the moment.
///
/// Without a policy nobody can tell what was to be cleaned up, so everything stays.
pub fn farewell(
    ledger: &mut Ledger,
    policy: Option<&Policy>,
    claims: &Claims,
    direct: &DirectUses,
    deletion: Timestamp,
    failing: Option<&str>,
    now: Timestamp,
) -> Farewell {
    let Some(policy) = policy else {
        return Farewell::Done { left: None };
    };
    let Doomed { tasks, named } = doomed(ledger, policy, claims, direct, now);
    let until = deletion.checked_add(GIVE_UP).unwrap_or(Timestamp::MAX);
    if tasks.is_empty() || until <= now {
        return Farewell::Done { left: left(&tasks, named.as_ref(), failing) };
    }
    let now = whole_seconds(now);
    for task in tasks.iter().filter(|task| task.work == Work::Delete) {
        ledger.edit(&task.source, |entry| {
            for copy in entry.copies.iter_mut().filter(|copy| copy.destination == task.destination) {
                if copy.state != CopyState::Deleting {
                    (copy.state, copy.since, copy.last_error) = (CopyState::Deleting, now, None);
                }
            }
        });
    }
    let count = tasks.len();
    let copies = if count == 1 { "copy is" } else { "copies are" };
    let why = match failing {
        None => format!("{count} {copies} still to be deleted"),
        Some(failing) => {
            format!("{count} {copies} still to be deleted, and left where they are after {until}: {failing}")
        }
    };
    let mut known = HashSet::new();
    let tasks = tasks.into_iter().filter(|task| known.insert(task.destination.clone())).collect();
    Farewell::Clean { tasks, until, why }
}

/// What is to go with an object.
#[derive(Default)]
struct Doomed {
    tasks: Vec<Task>,
    /// A copy that stays because a Pod names it, the Pod, and how many there are.
    named: Option<(Reference, Box<str>, usize)>,
}

fn doomed(ledger: &Ledger, policy: &Policy, claims: &Claims, direct: &DirectUses, now: Timestamp) -> Doomed {
    let aims = Aims::of(policy);
    let mut doomed = Doomed::default();
    for (source, entry) in ledger.iter() {
        for copy in entry.copies.iter().filter(|copy| copy.kept.is_none()) {
            let aim = aims.position(source, &copy.destination).and_then(|position| aims.get(position));
            let candidate = Candidate {
                copy,
                due: aim.filter(|aim| aim.cleans_up()).map(|_| Timestamp::MIN),
                named_by: direct.by(&copy.destination, &copy.written),
                wanted_elsewhere: claims.wanted_elsewhere(&ledger.owner().uid, source, &copy.destination),
                now,
            };
            let work = match may_delete(&candidate) {
                Ok(()) => Work::Delete,
                Err(Veto::NotIdentified) => Work::Identify,
                Err(Veto::Named { pod }) if !copy.written.is_empty() => {
                    let named = doomed.named.get_or_insert_with(|| (copy.destination.clone(), pod, 0));
                    named.2 += 1;
                    continue;
                }
                Err(_) => continue,
            };
            let (source, destination) = (source.clone(), copy.destination.clone());
            doomed.tasks.push(Task { source, destination, work });
        }
    }
    doomed
}

fn left(
    tasks: &[Task],
    named: Option<&(Reference, Box<str>, usize)>,
    failing: Option<&str>,
) -> Option<String> {
    let given_up = tasks.first().map(|task| {
        let why = failing.unwrap_or("there was no time");
        format!("{} could not be deleted, the first {}: {why}", copies(tasks.len()), task.destination)
    });
    let named = named.map(|(copy, pod, count)| {
        format!("{} stay because Pods name them, the first {copy}: Pod {pod}", copies(*count))
    });
    let told: Vec<String> = given_up.into_iter().chain(named).collect();
    (!told.is_empty()).then(|| told.join("; "))
}
