//! The jobs of one owner, indexed by the registries that they need: with sixty thousand jobs for a registry that is
//! down, finding one for another registry must not mean looking at all of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::tenant::Tenant;

/// Registries of a job, each once.
pub(super) type Hosts = Arc<[Arc<str>]>;

/// What a tenant has of the workers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Share {
    pub(super) running: usize,
    /// When it was served last, as a number that only grows.
    pub(super) turn: u64,
    /// Owners with jobs.
    pub(super) lines: usize,
}

#[derive(Debug)]
pub(super) struct Line<T> {
    pub(super) tenant: Tenant,
    pub(super) jobs: HashMap<Arc<str>, QueuedJob<T>>,
    /// Destinations of ready jobs by the registries they need, in the order in which they became ready.
    lanes: BTreeMap<Hosts, BTreeMap<u64, Arc<str>>>,
    pub(super) running: usize,
    /// When it was served last, as a number that only grows.
    pub(super) turn: u64,
}

#[derive(Debug)]
pub(super) struct QueuedJob<T> {
    pub(super) hosts: Hosts,
    pub(super) what: T,
    /// Since when it has been wanted.
    pub(super) since: Duration,
    pub(super) failures: u32,
    /// The last round in which it was wanted.
    pub(super) round: u64,
    pub(super) state: JobState<T>,
}

#[derive(Debug)]
pub(super) enum JobState<T> {
    Ready {
        serial: u64,
    },
    Resting {
        due: Duration,
        serial: u64,
    },
    Running {
        taken: Hosts,
    },
    /// It still runs, and was asked to stop; `next` is what is wanted in its place.
    Cancelled {
        taken: Hosts,
        next: Option<Next<T>>,
    },
}

#[derive(Debug)]
pub(super) struct Next<T> {
    pub(super) hosts: Hosts,
    pub(super) what: T,
    pub(super) since: Duration,
}

impl<T> QueuedJob<T> {
    pub(super) fn new(hosts: Hosts, what: T, since: Duration, round: u64) -> Self {
        Self { hosts, what, since, failures: 0, round, state: JobState::Ready { serial: 0 } }
    }
}

impl<T> Line<T> {
    pub(super) fn new(tenant: Tenant, turn: u64) -> Self {
        Self { tenant, jobs: HashMap::new(), lanes: BTreeMap::new(), running: 0, turn }
    }

    /// Each registry once; jobs that need the same ones share the list.
    pub(super) fn hosts(&self, destination: &Arc<str>, written: Vec<Arc<str>>) -> Hosts {
        if let Some(known) = self.jobs.get(destination).filter(|known| *known.hosts == *written) {
            return Arc::clone(&known.hosts);
        }
        let mut distinct: Vec<Arc<str>> = Vec::with_capacity(written.len());
        for host in written {
            if !distinct.contains(&host) {
                distinct.push(host);
            }
        }
        match self.lanes.get_key_value(distinct.as_slice()) {
            Some((known, _)) => Arc::clone(known),
            None => distinct.into(),
        }
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.lanes.is_empty()
    }

    pub(super) fn make_ready(&mut self, destination: &Arc<str>, serial: u64) {
        let Some(entry) = self.jobs.get_mut(destination) else { return };
        entry.state = JobState::Ready { serial };
        let lane = self.lanes.entry(Arc::clone(&entry.hosts)).or_default();
        lane.insert(serial, Arc::clone(destination));
    }

    /// Where a resting job stands among all resting jobs.
    pub(super) fn resting(&self, destination: &Arc<str>) -> Option<(Duration, u64)> {
        match self.jobs.get(destination)?.state {
            JobState::Resting { due, serial } => Some((due, serial)),
            _ => None,
        }
    }

    pub(super) fn remove_waiting(&mut self, destination: &Arc<str>) -> Option<QueuedJob<T>> {
        let entry = self.jobs.remove(destination)?;
        if let JobState::Ready { serial } = entry.state {
            self.leave_lane(&entry.hosts, serial);
        }
        Some(entry)
    }

    /// Takes the first ready job out of its lane for which every registry is open.
    pub(super) fn take_first(
        &mut self,
        mut open: impl FnMut(&Arc<str>) -> bool,
    ) -> Option<(Arc<str>, &mut QueuedJob<T>)> {
        let first = |lane: &BTreeMap<u64, Arc<str>>| lane.first_key_value().map(|(serial, _)| *serial);
        let usable = self.lanes.iter().filter(|(hosts, _)| hosts.iter().all(&mut open));
        let (serial, hosts) =
            usable.filter_map(|(hosts, lane)| Some((first(lane)?, Arc::clone(hosts)))).min()?;
        let destination = self.leave_lane(&hosts, serial)?;
        let entry = self.jobs.get_mut(&destination)?;
        Some((destination, entry))
    }

    fn leave_lane(&mut self, hosts: &Hosts, serial: u64) -> Option<Arc<str>> {
        let lane = self.lanes.get_mut(hosts)?;
        let destination = lane.remove(&serial);
        if lane.is_empty() {
            self.lanes.remove(hosts);
        }
        destination
    }
}
