//! What becomes of a pair when its object is deleted.

use std::time::Duration;

use fairlead_api::conditions::{ConditionStatus, find};
use fairlead_api::reef::{OWNED, ProxyCacheStatus};
use fairlead_domain::backoff::Backoff;
use fairlead_domain::harbor::{Endpoint, Project};
use jiff::Timestamp;

use super::Observed;
use super::ownership::{CacheObject, Ownership, owned_id, ownership};
use crate::mirroring::GIVE_UP;

/// Attempts to remove a pair: the first pause, doubled up to the longest. Repositories of pulls that have just ended
/// appear within half a minute, and keep their project from being deleted.
const RETRY: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(30));

/// How far an object has come, as far as its finalizer depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// `configured`: a Harbor is, so that something is made for the object.
    Live { configured: bool },
    /// `released`: all that goes with the object is gone, or given up.
    Deleted { released: bool },
}

/// Whether an object is to have the finalizer: from before anything is made for it until everything is removed. `held`:
/// it has it. Without a Harbor an object keeps what it has, because what was made for it may still be there; once an
/// object is deleted the API server accepts no new finalizer.
pub fn wants_finalizer(held: bool, stage: Stage) -> bool {
    match stage {
        Stage::Live { configured } => held || configured,
        Stage::Deleted { released } => held && !released,
    }
}

/// What the end of an object depends on.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "a function has no form to print")]
pub struct DeletedCache<'a> {
    pub object: CacheObject<'a>,
    /// The name of its pair.
    pub name: &'a str,
    pub retain: bool,
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
    /// These go, in this order. `left` as in `Done`.
    Remove { removals: Vec<Removal>, left: Option<String> },
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
        name: String,
    },
}

impl Removal {
    /// The name of the pair that it is about.
    pub fn pair(&self) -> &str {
        match self {
            Self::Repositories { project: name } | Self::Project { name } | Self::Endpoint { name, .. } => {
                name
            }
        }
    }
}

/// Only a pair of the object's own goes with it.
pub fn finalization(deleted: &DeletedCache<'_>) -> Finalization {
    if deleted.retain {
        return Finalization::Done { left: None };
    }
    // What was not tried, because no replica led for all that time, is not given up.
    if let Some(failing) = deleted.failing.filter(|_| is_over(deleted.deletion, deleted.now)) {
        return Finalization::Done { left: Some(given_up(deleted.name, failing)) };
    }
    let Some(observed) = deleted.observed else { return Finalization::Look };
    let own = ownership(observed.endpoint.as_ref(), deleted.object);
    let own = observed.endpoint.as_ref().filter(|_| matches!(own, Ownership::Ours | Ownership::Adoptable));
    let (mut removals, mut left) = (Vec::new(), None);
    if let Some(endpoint) = own {
        match (deleted.object.wanted_by)(deleted.name) {
            Some(successor) => left = Some(taken_over(deleted.name, &successor)),
            None => removals.extend(of_pair(endpoint, observed.project.as_ref())),
        }
    }
    for former in &observed.former {
        if (deleted.object.wanted_by)(&former.endpoint.name).is_none() {
            removals.extend(former.removals());
        }
    }
    if removals.is_empty() { Finalization::Done { left } } else { Finalization::Remove { removals, left } }
}

/// Whether a removal that has failed since then is given up.
pub(super) fn is_over(since: Timestamp, now: Timestamp) -> bool {
    since.checked_add(GIVE_UP).unwrap_or(Timestamp::MAX) <= now
}

/// A project of the name that serves from somewhere else is not part of the pair.
fn of_pair(endpoint: &Endpoint, project: Option<&Project>) -> Vec<Removal> {
    let own = project.filter(|project| project.endpoint == Some(endpoint.id));
    let mut removals = Vec::new();
    if let Some(project) = own {
        removals.push(Removal::Repositories { project: project.name.clone() });
        removals.push(Removal::Project { name: project.name.clone() });
    }
    removals.push(Removal::Endpoint { id: endpoint.id, name: endpoint.name.clone() });
    removals
}

impl super::Pair {
    /// What removes the pair.
    pub fn removals(&self) -> Vec<Removal> {
        of_pair(&self.endpoint, self.project.as_ref())
    }
}

/// What may be left of a deleted object that is invalid: it is not known what should go with it, so nothing does. None
/// if nothing in Harbor was its own, or everything is to stay. Of an object that cannot be read at all, the conditions
/// are the status.
pub fn left_by_invalid(status: &ProxyCacheStatus, error: &str, retain: bool) -> Option<String> {
    let owned = find(&status.conditions, OWNED).is_some_and(|one| one.status == ConditionStatus::True);
    let had_pair = owned || owned_id(Some(status)).is_some();
    (had_pair && !retain).then(|| {
        format!("endpoint and project may be left in Harbor, because the object does not say which they are: {error}")
    })
}

/// When to try again after so many failures in a row.
pub fn next_attempt(failures: u32) -> Duration {
    RETRY.plain(failures)
}

fn taken_over(name: &str, successor: &str) -> String {
    format!("endpoint and project {name} stay, because ProxyCache {successor} uses them")
}

fn given_up(name: &str, why: &str) -> String {
    format!("endpoint and project {name} may be left in Harbor, because they could not be deleted: {why}")
}
