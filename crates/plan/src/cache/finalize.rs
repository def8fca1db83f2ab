//! What becomes of a pair when its object is deleted.

use std::time::Duration;

use fairlead_domain::backoff::Backoff;
use jiff::Timestamp;

use super::Observed;
use super::ownership::{CacheObject, Ownership, ownership};
use crate::mirroring::GIVE_UP;

/// Attempts to remove a pair: the first pause, doubled up to the longest. Repositories of pulls that have just ended
/// appear within half a minute, and keep their project from being deleted.
const RETRY: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(30));

/// What the end of an object depends on.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "a function has no form to print")]
pub struct DeletedCache<'a> {
    pub object: CacheObject<'a>,
    /// The name of its pair.
    pub name: &'a str,
    pub retain: bool,
    /// Another object of this cluster that stands for the same pair and stays.
    pub successor: Option<&'a str>,
    pub observed: Option<&'a Observed>,
    /// Why it did not succeed so far.
    pub failing: Option<&'a str>,
    /// When the object was deleted.
    pub deletion: Timestamp,
    pub now: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finalization {
    /// Harbor has to be looked at.
    Look,
    /// These go, in this order.
    Remove(Vec<Removal>),
    /// The object may go. `left` says what should have gone with it and did not, and why.
    Done { left: Option<String> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// All repositories of a project, which holds nothing but what can be fetched again.
    Repositories {
        project: String,
    },
    Project {
        name: String,
    },
    Endpoint {
        id: i64,
    },
}

/// Only a pair of the object's own goes with it.
pub fn finalization(deleted: &DeletedCache<'_>) -> Finalization {
    if deleted.retain {
        return Finalization::Done { left: None };
    }
    let until = deleted.deletion.checked_add(GIVE_UP).unwrap_or(Timestamp::MAX);
    // What was not tried, because no replica led for all that time, is not given up.
    if let Some(failing) = deleted.failing.filter(|_| until <= deleted.now) {
        return Finalization::Done { left: Some(given_up(deleted.name, failing)) };
    }
    let Some(observed) = deleted.observed else { return Finalization::Look };
    let mut removals = Vec::new();
    let own = ownership(observed.endpoint.as_ref(), deleted.object);
    if let (Ownership::Ours | Ownership::Adoptable, Some(endpoint)) = (own, &observed.endpoint) {
        if let Some(successor) = deleted.successor {
            let left = format!(
                "endpoint and project {} stay, because ProxyCache {successor} uses them",
                deleted.name
            );
            return Finalization::Done { left: Some(left) };
        }
        removals.extend(of_pair(endpoint.id, observed.project.as_ref()));
    }
    if let Some(former) = &observed.former
        && ownership(Some(&former.endpoint), deleted.object) == Ownership::Ours
    {
        removals.extend(of_pair(former.endpoint.id, former.project.as_ref()));
    }
    if removals.is_empty() { Finalization::Done { left: None } } else { Finalization::Remove(removals) }
}

/// A project of the name that serves from somewhere else is not part of the pair.
pub(super) fn of_pair(endpoint: i64, project: Option<&fairlead_domain::harbor::Project>) -> Vec<Removal> {
    let own = project.filter(|project| project.endpoint == Some(endpoint));
    let mut removals = Vec::new();
    if let Some(project) = own {
        removals.push(Removal::Repositories { project: project.name.clone() });
        removals.push(Removal::Project { name: project.name.clone() });
    }
    removals.push(Removal::Endpoint { id: endpoint });
    removals
}

impl super::Pair {
    /// What removes the pair.
    pub fn removals(&self) -> Vec<Removal> {
        of_pair(self.endpoint.id, self.project.as_ref())
    }
}

/// When to try again after so many failures in a row.
pub fn next_attempt(failures: u32) -> Duration {
    RETRY.plain(failures)
}

fn given_up(name: &str, why: &str) -> String {
    format!("endpoint and project {name} may be left in Harbor, because they could not be deleted: {why}")
}
