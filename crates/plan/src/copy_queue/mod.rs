//! Which copy is made next.
//!
//! All copies and deletions of a cluster wait here for one of a few workers. Workers are shared fairly between tenants,
//! and within a tenant between the objects that want something, so that neither a namespace with a thousand objects nor
//! an object with twenty thousand images delays the only image of another; a registry that is full, down or asked to be
//! left alone holds up nothing but its own jobs; and what failed waits longer each time. The queue is level-triggered:
//! its input is what is wanted now, never what has changed.

mod line;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::backoff::Backoff;

use self::line::{Hosts, JobState, Line, Next, QueuedJob, Share};
use crate::tenant::Tenant;

/// After failures in a row. People who repair a registry wait for the longest pause at most.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(10)).with_jitter(0.2);
/// However long a registry asks to be left alone. Quotas are counted over six hours at most.
const LONGEST_WAIT: Duration = Duration::from_hours(6);

/// What tells jobs apart: an object does one thing at a time with a destination.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// UID of the object that wants it done.
    pub owner: Arc<str>,
    pub destination: Arc<str>,
}

/// Something to do in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job<T> {
    pub key: Key,
    /// The registries that it keeps busy, its destination's first.
    pub hosts: Vec<Arc<str>>,
    pub what: T,
}

/// How much may run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub workers: usize,
    /// Jobs that one registry takes part in, as source or destination.
    pub per_registry: usize,
}

/// How a job that was started came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Done,
    /// It is tried again later, and not before `wait` is over, where the registry named a time.
    Failed {
        wait: Option<Duration>,
    },
    /// It was stopped on request.
    Cancelled,
}

/// Jobs that wait, rest after a failure, or run. Times are durations since one fixed moment.
#[derive(Debug)]
pub struct Queue<T> {
    may_go_on: fn(&T, &T) -> bool,
    lines: BTreeMap<Arc<str>, Line<T>>,
    /// What tenants with jobs have running.
    shares: HashMap<Tenant, Share>,
    /// Jobs in back-off, by its end.
    resting: BTreeMap<(Duration, u64), Key>,
    /// Jobs that run, by registry.
    busy: HashMap<Arc<str>, usize>,
    running: usize,
    /// How many of the jobs that do not run have been wanted since when.
    waiting_since: BTreeMap<Duration, usize>,
    waiting: usize,
    serial: u64,
}

impl<T: Clone> Queue<T> {
    /// An empty queue. `may_go_on(running, wanted)` says whether a job under way does what is wanted now: a copy that
    /// may use other credentials by now goes on, a copy whose destination is to be deleted does not.
    pub fn new(may_go_on: fn(&T, &T) -> bool) -> Self {
        Self {
            may_go_on,
            lines: BTreeMap::new(),
            shares: HashMap::new(),
            resting: BTreeMap::new(),
            busy: HashMap::new(),
            running: 0,
            waiting_since: BTreeMap::new(),
            waiting: 0,
            serial: 0,
        }
    }

    /// Makes `wanted` everything that the owner, one of the tenant's, wants: new jobs join, those that are not wanted
    /// any more leave. Returns the running ones to cancel, each once; what is wanted in the place of such a job starts
    /// after its end. Of jobs with equal destinations the first counts.
    pub fn sync(
        &mut self,
        tenant: &Tenant,
        owner: &Arc<str>,
        wanted: Vec<Job<T>>,
        now: Duration,
    ) -> Vec<Key> {
        let round = self.next_serial();
        // A new line joins behind all others, so that leaving and coming back gains nothing.
        let mut line = self.lines.remove(owner).unwrap_or_else(|| self.new_line(tenant, round));
        let mut cancel = Vec::new();
        for job in wanted {
            let Job { key: Key { destination, .. }, hosts, what } = job;
            let hosts = line.hosts(&destination, hosts);
            let Some(entry) = line.jobs.get_mut(&destination) else {
                self.enter(&mut line, &destination, QueuedJob::new(hosts, what, now, round));
                continue;
            };
            if entry.round == round {
                continue;
            }
            entry.round = round;
            let fits = (self.may_go_on)(&entry.what, &what);
            match &mut entry.state {
                JobState::Running { .. } | JobState::Resting { .. } if fits => {
                    (entry.hosts, entry.what) = (hosts, what);
                }
                JobState::Running { taken } => {
                    let next = Some(Next { hosts, what, since: now });
                    entry.state = JobState::Cancelled { taken: taken.clone(), next };
                    cancel.push(destination);
                }
                JobState::Cancelled { next, .. } => {
                    let since = next.as_ref().map_or(now, |next| next.since);
                    *next = Some(Next { hosts, what, since });
                }
                JobState::Ready { .. } if fits && entry.hosts == hosts => entry.what = what,
                JobState::Ready { .. } | JobState::Resting { .. } => {
                    let (failures, since) = if fits { (entry.failures, entry.since) } else { (0, now) };
                    self.leave(&mut line, &destination);
                    let entry = QueuedJob { failures, ..QueuedJob::new(hosts, what, since, round) };
                    self.enter(&mut line, &destination, entry);
                }
            }
        }
        let mut leaving = Vec::new();
        for (destination, entry) in line.jobs.iter_mut().filter(|(_, entry)| entry.round != round) {
            match &mut entry.state {
                JobState::Ready { .. } | JobState::Resting { .. } => leaving.push(Arc::clone(destination)),
                JobState::Running { taken } => {
                    entry.state = JobState::Cancelled { taken: taken.clone(), next: None };
                    cancel.push(Arc::clone(destination));
                }
                JobState::Cancelled { next, .. } => *next = None,
            }
        }
        for destination in leaving {
            self.leave(&mut line, &destination);
        }
        self.put_back(owner, line);
        cancel.sort_unstable();
        cancel.into_iter().map(|destination| Key { owner: Arc::clone(owner), destination }).collect()
    }

    /// The owner wants nothing any more. Returns the running jobs to cancel.
    pub fn forget(&mut self, owner: &Arc<str>) -> Vec<Key> {
        let Some(tenant) = self.lines.get(owner).map(|line| line.tenant.clone()) else { return Vec::new() };
        self.sync(&tenant, owner, Vec::new(), Duration::ZERO)
    }

    /// The jobs to start now, which run from here on. A free worker goes to the tenant with the fewest running jobs, of
    /// several to the one that was served longest ago; of its owners to one by the same rule, and there to the job that
    /// has been ready for longest. `closed` says of a registry that it is down or asked to be left alone.
    pub fn start(&mut self, now: Duration, limits: &Limits, closed: &dyn Fn(&str) -> bool) -> Vec<Job<T>> {
        self.wake(now);
        let mut started = Vec::new();
        if self.running >= limits.workers {
            return started;
        }
        let place = |owner: &Arc<str>, line: &Line<T>| (line.running, line.turn, Arc::clone(owner));
        let mut owners: HashMap<Tenant, BTreeSet<_>> = HashMap::new();
        for (owner, line) in self.lines.iter().filter(|(_, line)| line.has_ready()) {
            owners.entry(line.tenant.clone()).or_default().insert(place(owner, line));
        }
        let rank = |tenant: &Tenant, shares: &HashMap<Tenant, Share>| {
            let share = shares.get(tenant).copied().unwrap_or_default();
            (share.running, share.turn, tenant.clone())
        };
        let mut turns: BTreeSet<_> = owners.keys().map(|tenant| rank(tenant, &self.shares)).collect();
        let mut shut: HashMap<Arc<str>, bool> = HashMap::new();
        while self.running < limits.workers {
            let Some((_, _, tenant)) = turns.pop_first() else { break };
            let Some(waiting) = owners.get_mut(&tenant) else { continue };
            // Registries only fill up meanwhile, so an owner that finds nothing is not asked again.
            let Some((_, _, owner)) = waiting.pop_first() else { continue };
            let turn = self.next_serial();
            let Some(line) = self.lines.get_mut(&owner) else { continue };
            let busy = &self.busy;
            let open = |host: &Arc<str>| {
                busy.get(host).copied().unwrap_or_default() < limits.per_registry
                    && !*shut.entry(Arc::clone(host)).or_insert_with(|| closed(host))
            };
            let Some((destination, entry)) = line.take_first(open) else {
                turns.insert(rank(&tenant, &self.shares));
                continue;
            };
            let taken = entry.hosts.clone();
            let since = entry.since;
            let key = Key { owner: Arc::clone(&owner), destination };
            started.push(Job { key, hosts: taken.to_vec(), what: entry.what.clone() });
            entry.state = JobState::Running { taken: taken.clone() };
            line.running += 1;
            line.turn = turn;
            if line.has_ready() {
                waiting.insert(place(&owner, line));
            }
            let share = self.shares.entry(tenant.clone()).or_default();
            (share.running, share.turn) = (share.running + 1, turn);
            turns.insert(rank(&tenant, &self.shares));
            self.no_longer_waiting(since);
            self.running += 1;
            for host in &*taken {
                *self.busy.entry(Arc::clone(host)).or_default() += 1;
            }
        }
        started
    }

    /// A job that was started is over. `jitter` in 0..1 spreads the jobs that failed together.
    pub fn ended(&mut self, key: &Key, outcome: Ended, now: Duration, jitter: f64) {
        let Some(mut line) = self.lines.remove(&key.owner) else { return };
        self.settle(&mut line, key, outcome, now, jitter);
        self.put_back(&key.owner, line);
    }

    fn new_line(&mut self, tenant: &Tenant, turn: u64) -> Line<T> {
        self.shares.entry(tenant.clone()).or_insert(Share { turn, ..Share::default() }).lines += 1;
        Line::new(tenant.clone(), turn)
    }

    /// A line without jobs goes, and with its last line the tenant.
    fn put_back(&mut self, owner: &Arc<str>, line: Line<T>) {
        if !line.jobs.is_empty() {
            self.lines.insert(Arc::clone(owner), line);
            return;
        }
        if let Some(share) = self.shares.get_mut(&line.tenant) {
            share.lines = share.lines.saturating_sub(1);
            if share.lines == 0 {
                self.shares.remove(&line.tenant);
            }
        }
    }

    fn settle(&mut self, line: &mut Line<T>, key: &Key, outcome: Ended, now: Duration, jitter: f64) {
        let Some(entry) = line.jobs.get_mut(&key.destination) else { return };
        let next = match &mut entry.state {
            JobState::Ready { .. } | JobState::Resting { .. } => return,
            JobState::Running { taken } => {
                let taken = taken.clone();
                self.release(&taken);
                None
            }
            JobState::Cancelled { taken, next } => {
                let (taken, next) = (taken.clone(), next.take());
                self.release(&taken);
                Some(next)
            }
        };
        line.running = line.running.saturating_sub(1);
        if let Some(share) = self.shares.get_mut(&line.tenant) {
            share.running = share.running.saturating_sub(1);
        }
        match (next, outcome) {
            (None, Ended::Failed { wait }) => {
                entry.failures = entry.failures.saturating_add(1);
                let due = now + backoff(entry.failures, wait, jitter);
                self.serial += 1;
                entry.state = JobState::Resting { due, serial: self.serial };
                self.resting.insert((due, self.serial), key.clone());
                let since = entry.since;
                self.now_waiting(since);
            }
            (Some(Some(next)), _) if outcome != Ended::Done || !(self.may_go_on)(&entry.what, &next.what) => {
                let round = entry.round;
                line.jobs.remove(&key.destination);
                let entry = QueuedJob::new(next.hosts, next.what, next.since, round);
                self.enter(line, &key.destination, entry);
            }
            _ => {
                line.jobs.remove(&key.destination);
            }
        }
    }

    /// There is news about the job: where it rests after a failure, it need not any more.
    pub fn hurry(&mut self, key: &Key) {
        let serial = self.next_serial();
        let Some(line) = self.lines.get_mut(&key.owner) else { return };
        if let Some(rest) = line.resting(&key.destination) {
            self.resting.remove(&rest);
            line.make_ready(&key.destination, serial);
        }
    }

    /// The moment at which the next back-off ends, or `now` if one has ended. `None`: nothing waits for time to pass.
    pub fn next_due(&self, now: Duration) -> Option<Duration> {
        self.resting.first_key_value().map(|(&(due, _), _)| due.max(now))
    }

    /// Jobs that do not run, those in back-off included.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn running(&self) -> usize {
        self.running
    }

    /// For how long the oldest of the waiting jobs has been wanted.
    pub fn oldest(&self, now: Duration) -> Option<Duration> {
        self.waiting_since.first_key_value().map(|(since, _)| now.saturating_sub(*since))
    }

    /// How often the job has failed in a row.
    pub fn failures(&self, key: &Key) -> u32 {
        let entry = self.lines.get(&key.owner).and_then(|line| line.jobs.get(&key.destination));
        entry.map_or(0, |entry| entry.failures)
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Jobs whose back-off is over join behind those that are ready: what keeps failing must not be first each time.
    fn wake(&mut self, now: Duration) {
        while let Some(first) = self.resting.first_entry().filter(|first| first.key().0 <= now) {
            let key = first.remove();
            let serial = self.next_serial();
            if let Some(line) = self.lines.get_mut(&key.owner) {
                line.make_ready(&key.destination, serial);
            }
        }
    }

    fn enter(&mut self, line: &mut Line<T>, destination: &Arc<str>, entry: QueuedJob<T>) {
        let serial = self.next_serial();
        self.now_waiting(entry.since);
        line.jobs.insert(Arc::clone(destination), entry);
        line.make_ready(destination, serial);
    }

    fn leave(&mut self, line: &mut Line<T>, destination: &Arc<str>) {
        if let Some(rest) = line.resting(destination) {
            self.resting.remove(&rest);
        }
        if let Some(entry) = line.remove_waiting(destination) {
            self.no_longer_waiting(entry.since);
        }
    }

    fn now_waiting(&mut self, since: Duration) {
        *self.waiting_since.entry(since).or_default() += 1;
        self.waiting += 1;
    }

    fn no_longer_waiting(&mut self, since: Duration) {
        self.waiting = self.waiting.saturating_sub(1);
        if let Some(count) = self.waiting_since.get_mut(&since) {
            *count -= 1;
            if *count == 0 {
                self.waiting_since.remove(&since);
            }
        }
    }

    fn release(&mut self, taken: &Hosts) {
        self.running = self.running.saturating_sub(1);
        for host in &**taken {
            if let Some(count) = self.busy.get_mut(host) {
                *count -= 1;
                if *count == 0 {
                    self.busy.remove(host);
                }
            }
        }
    }
}

/// How long a job rests after so many failures in a row.
fn backoff(failures: u32, wait: Option<Duration>, jitter: f64) -> Duration {
    let pause = BACKOFF.pause(failures.saturating_sub(1), jitter);
    pause.max(wait.unwrap_or_default().min(LONGEST_WAIT))
}
