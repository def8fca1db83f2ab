//! The queue of tasks: what goes into it, what is begun, and what is broken off.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::reference::Host;
use fairlead_plan::copy_queue::{Ended, Job, Key};
use fairlead_plan::mirroring::{self, Jobs, Registry, Task, Work};
use fairlead_plan::tenant::Tenant;
use jiff::Timestamp;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::MirrorController;
use crate::capabilities::mirror::executor::Publishing;
use crate::capabilities::mirror::object_state::MirrorState;

/// A task under way.
pub(super) struct Running {
    /// The same thing may be begun again before the end of a cancelled one is heard of.
    pub(super) number: u64,
    pub(super) job: AbortHandle,
    pub(super) task: Task,
    pub(super) publishing: Publishing,
    /// The ledger knows what it is writing.
    pub(super) noted: bool,
}

/// For how long a registry is left alone, for us and for people.
pub(super) struct Pause {
    pub(super) until: Instant,
    until_clock: Timestamp,
}

impl Pause {
    pub(super) fn of(length: Duration) -> Self {
        let seconds = i64::try_from(length.as_secs()).unwrap_or(i64::MAX);
        let now = Timestamp::now();
        let end = Timestamp::from_second(now.as_second().saturating_add(seconds)).unwrap_or(now);
        Self { until: Instant::now() + length, until_clock: end }
    }
}

impl MirrorController {
    /// Makes the queue hold what the ledgers call for.
    pub(super) fn sync(&mut self) {
        let now = self.elapsed();
        let mut hosts: HashMap<Host, Registry> = HashMap::new();
        let (client, paused) = (&self.setup.context.registries, &self.paused);
        let mut registry = |host: Host| {
            let look = |host: &Host| Registry {
                host: host.key().to_shared(),
                trouble: trouble_of(client, paused, host),
            };
            hosts.entry(host).or_insert_with_key(look).clone()
        };
        let held_back = self.wrong_clock.is_some();
        let mut to_cancel = Vec::new();
        for (uid, mirror) in &mut self.mirrors {
            let (object, finalization) = (mirror.planned(), mirror.finalization.as_ref());
            let Jobs { jobs, waiting } =
                mirroring::jobs(&object, finalization, held_back, mirror.lists_wanted, &mut registry);
            mirror.waiting = waiting;
            to_cancel.extend(self.queue.sync(&Tenant::from(&mirror.object.owner), uid, jobs, now));
        }
        self.cancel(to_cancel);
    }

    pub(super) fn cancel(&mut self, keys: Vec<Key>) {
        for key in keys {
            if let Some(running) = self.running.remove(&key) {
                running.job.abort();
                self.cancelled.push((key.clone(), running));
                self.look_wanted = true;
            }
            self.queue.ended(&key, Ended::Cancelled, self.elapsed(), 0.0);
        }
    }

    /// Begins the tasks whose turn it is.
    pub(super) fn begin_jobs(&mut self) {
        if !self.term.holds() {
            return;
        }
        let limits = self.setup.limits;
        let (client, paused) = (&self.setup.context.registries, &self.paused);
        let closed = |host: &str| {
            paused.contains_key(host) || Host::parse(host).is_ok_and(|host| client.is_down(&host).is_some())
        };
        let begun = self.queue.start(self.elapsed(), &limits, &closed);
        for Job { key, what: task, .. } in begun {
            if task.work == Work::Delete
                && !self.lists.permits(&task.destination, self.setup.context.clock.now())
            {
                // The lists are read again, and the deletion is planned anew.
                self.queue.ended(&key, Ended::Cancelled, self.elapsed(), 0.0);
                self.look_wanted = true;
                continue;
            }
            let Some(order) = self.order(&key, &task) else {
                self.queue.ended(&key, Ended::Done, self.elapsed(), 0.0);
                continue;
            };
            self.begun += 1;
            let (executor, number) = (self.setup.executor.clone(), self.begun);
            let publishing = order.publishing.clone();
            let job = self.jobs.start((key.clone(), number), executor.carry_out(order));
            let running = Running { number, job, task, publishing, noted: false };
            self.running.insert(key, running);
        }
    }

    /// A Secret that a policy names has appeared, gone or changed: whatever failed for want of it is tried again.
    pub(super) fn secrets_changed(&mut self) {
        let named = |mirror: &&mut MirrorState| {
            mirror.object.policy.as_ref().is_some_and(|policy| policy.secrets().count() > 0)
        };
        for mirror in self.mirrors.values_mut().filter(named) {
            mirror.writes.touch();
            let object = mirror.planned();
            for task in mirroring::startable(&object, mirror.finalization.as_ref()) {
                self.queue.hurry(&mirroring::job_key(&object, &task));
            }
        }
    }
}

/// Why nothing is asked of a registry now.
fn trouble_of(
    client: &fairlead_registry::Client,
    paused: &HashMap<Arc<str>, Pause>,
    host: &Host,
) -> Option<String> {
    if let Some(down) = client.is_down(host) {
        return Some(format!("registry {host} is down: {}", down.reason()));
    }
    let Pause { until_clock, .. } = paused.get(host.key().as_str())?;
    Some(format!("registry {host} has no quota left until {until_clock}"))
}
