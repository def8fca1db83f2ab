//! The tasks of one object as the queue takes them, and the registries that some of them wait for.

use std::collections::BTreeMap;
use std::sync::Arc;

use fairlead_api::kuik::AwaitedRegistry;
use fairlead_domain::reference::Host;

use super::finalize::Finalization;
use super::object::MirrorObject;
use super::tasks::{Registry, Task, Work, registries_of, tasks};
use crate::copy_queue::{Job, Key};
use crate::routing::Policy;

/// What one object wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jobs {
    pub jobs: Vec<Job<Task>>,
    pub waiting: Vec<AwaitedRegistry>,
}

/// The tasks that may be worked on now. A copy is made only once its row is stored: the next lease holder must know of
/// everything that may be in a registry. A removal adds nothing to one, so it need not be stored first.
pub fn startable(object: &MirrorObject<'_>, finalization: Option<&Finalization>) -> Vec<Task> {
    match (finalization, object.policy) {
        (None, Some(policy)) => {
            let mut tasks = tasks(object.ledger, policy, object.used);
            tasks.retain(|task| policy.keeps(&task.destination) && object.ledger.is_stored(&task.source));
            tasks
        }
        (Some(Finalization::Clean { tasks, .. }), _) => tasks.clone(),
        (Some(Finalization::Done { .. }), _) | (None, None) => Vec::new(),
    }
}

/// What the queue is to hold for an object. `held_back`: nothing is removed now. `lists_wanted`: removals wait for the
/// usage lists of other clusters; those of a registry that is down cannot be read, so they wait for the registry.
pub fn jobs(
    object: &MirrorObject<'_>,
    finalization: Option<&Finalization>,
    held_back: bool,
    lists_wanted: bool,
    mut registry: impl FnMut(Host) -> Registry,
) -> Jobs {
    let mut waiting: BTreeMap<(Arc<str>, String), u32> = BTreeMap::new();
    let mut jobs = Vec::new();
    for task in startable(object, finalization) {
        if held_back && task.work == Work::Delete {
            continue;
        }
        let known = object.ledger.get(&task.source).is_some_and(|entry| entry.source_digest.is_some());
        let (destination, source) = (registry(task.destination.host()), registry(task.source.host()));
        let (hosts, blocked) = registries_of(task.work, known, destination, source);
        if let Some(blocked) = blocked {
            *waiting.entry(blocked).or_default() += 1;
        }
        jobs.push(Job { key: job_key(object, &task), hosts, what: task });
    }
    let targets = object.policy.filter(|_| lists_wanted).map(Policy::targets).unwrap_or_default();
    for Registry { host, trouble } in targets.iter().map(|target| registry(target.place.host())) {
        if let Some(why) = trouble {
            *waiting.entry((host, why)).or_default() += 1;
        }
    }
    let awaited = |((host, reason), tasks): ((Arc<str>, _), _)| AwaitedRegistry {
        registry: host.as_ref().to_owned(),
        reason,
        tasks,
    };
    Jobs { jobs, waiting: waiting.into_iter().map(awaited).collect() }
}

/// One source at one destination, on behalf of the object.
pub fn job_key(object: &MirrorObject<'_>, task: &Task) -> Key {
    let owner = Arc::clone(&object.ledger.owner().uid);
    Key { owner, destination: format!("{} {}", task.destination, task.source).into() }
}
