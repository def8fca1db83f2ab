//! What the planner is shown of Pods and registries.

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_plan::warm::Trouble;
use fairlead_plan::warm::pod_state::{Phase, PullContainer, PullPod};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::routing::Source;
use crate::cluster::state::{self, PodEntry, Pods, Role};
use crate::context::Context;

/// Pull Pods as the planner sees them. One that has not changed is the same as before, which makes comparing it free.
#[derive(Debug, Default)]
pub(super) struct PullPods {
    known: HashMap<Arc<str>, (Arc<PodEntry>, Arc<PullPod>)>,
    all: Vec<Arc<PullPod>>,
}

impl PullPods {
    pub(super) fn observe(&mut self, pods: &Pods, namespace: &str) -> &[Arc<PullPod>] {
        let entries = pods.pulling().into_iter().filter(|entry| *entry.key.namespace == *namespace);
        let mut known = HashMap::with_capacity(self.known.len());
        self.all.clear();
        for entry in entries {
            let before = self.known.remove(&entry.key.name);
            let pod = match before {
                Some((before, pod)) if Arc::ptr_eq(&before, &entry) => pod,
                _ => match pull_pod(&entry) {
                    Some(pod) => Arc::new(pod),
                    None => continue,
                },
            };
            self.all.push(Arc::clone(&pod));
            known.insert(Arc::clone(&entry.key.name), (entry, pod));
        }
        self.known = known;
        &self.all
    }

    /// UID of a Pod that was there when last observed.
    pub(super) fn uid(&self, name: &str) -> Option<Arc<str>> {
        self.known.get(name).map(|(entry, _)| Arc::clone(&entry.uid))
    }
}

fn pull_pod(entry: &PodEntry) -> Option<PullPod> {
    let containers = entry.containers.iter().filter(|container| container.role == Role::Container);
    let containers = containers.map(|container| PullContainer {
        name: Arc::clone(&container.name),
        image_id: container.image_id.clone(),
        created: container.created,
        waiting: container.waiting.clone(),
        problem: container
            .pull_problem
            .as_ref()
            .map(|problem| (problem.failure, Arc::clone(&problem.message))),
        terminated: container.terminated.clone(),
    });
    Some(PullPod {
        name: Arc::clone(&entry.key.name),
        created: Timestamp::from_second(entry.created).unwrap_or_default(),
        phase: match entry.phase {
            state::Phase::Pending => Phase::Pending,
            state::Phase::Running => Phase::Running,
            state::Phase::Succeeded => Phase::Succeeded,
            state::Phase::Failed => Phase::Failed,
            state::Phase::Unknown => Phase::Unknown,
        },
        reason: entry.reason.clone(),
        record: Arc::clone(entry.pulls.as_ref()?),
        volumes: entry.containers.iter().filter(|container| container.role == Role::Volume).count(),
        containers: containers.collect(),
    })
}

/// Images whose registries are to be left alone, by UID.
pub(super) fn troubles<'a>(
    context: &Context,
    sources: impl Iterator<Item = (&'a Arc<str>, &'a Source)>,
    now: Timestamp,
) -> HashMap<Arc<str>, Trouble> {
    let mut troubles = HashMap::new();
    let instant = Instant::now();
    for (image, Source { host, account }) in sources {
        let Some(health) = context.registries.health(host) else { continue };
        let trouble = if health.down().is_some() {
            // Its return is not told to us, so it is looked for.
            Some(Trouble { what: "down".into(), until: now.checked_add(SignedDuration::from_secs(1)).ok() })
        } else {
            health.held_until(*account, instant).map(|until| {
                let rest = SignedDuration::try_from(until.saturating_duration_since(instant));
                Trouble {
                    what: "rate-limited".into(),
                    until: rest.ok().and_then(|rest| now.checked_add(rest).ok()),
                }
            })
        };
        if let Some(trouble) = trouble {
            troubles.insert(Arc::clone(image), trouble);
        }
    }
    troubles
}
