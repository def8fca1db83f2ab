//! What one namespace may take of the webhook at once, so that a namespace that asks for too much waits for itself and
//! not the others for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::limits::Limits;

/// Namespaces that are remembered before those without a request are forgotten.
const REMEMBERED: usize = 256;

/// While other namespaces have requests, one namespace gets this part of the processors.
const PROCESSOR_SHARE: u32 = 8;

/// Processor time that a namespace may take at once, so that no ordinary rollout ever waits.
const BURST: Duration = Duration::from_millis(50);

/// Other namespaces count as active for this long after a request.
const ACTIVE: Duration = Duration::from_millis(100);

/// The share of one namespace.
#[derive(Debug)]
pub struct Share {
    /// Requests being decided.
    pub(super) deciding: Semaphore,
    /// Planning is all computation: one request of a namespace at a time leaves the other processors to the others.
    pub(super) planning: Semaphore,
    /// Places being asked about.
    pub(super) probes: Semaphore,
    /// Secrets being read. The API server limits the operator as a whole.
    pub(super) reads: Semaphore,
    /// Bytes of requests in memory that may still be taken.
    bodies: AtomicUsize,
    processors: Mutex<ProcessorTime>,
}

/// Processor time that a namespace has taken beyond its share, at some moment.
#[derive(Debug)]
struct ProcessorTime {
    taken: Duration,
    at: Instant,
    /// Time in which a second of processor time is earned.
    earned_in: Duration,
}

impl ProcessorTime {
    fn new(processors: u32, now: Instant) -> Self {
        let earned_in = Duration::from_secs(1) * PROCESSOR_SHARE / processors.max(1);
        Self { taken: Duration::ZERO, at: now, earned_in }
    }

    fn charge(&mut self, spent: Duration, now: Instant) {
        let earned = now.saturating_duration_since(self.at).div_duration_f64(self.earned_in);
        self.taken = self.taken.saturating_sub(Duration::from_secs_f64(earned)) + spent;
        self.at = now;
    }

    /// When the next request may be decided while other namespaces are active.
    fn free_at(&self) -> Instant {
        self.at + self.earned_in.mul_f64(self.taken.saturating_sub(BURST).as_secs_f64())
    }
}

/// Bytes of a request, given back when dropped.
#[derive(Debug)]
pub(super) struct ReservedBytes<'a> {
    share: &'a Share,
    bytes: usize,
}

impl Share {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            deciding: Semaphore::new(limits.deciding_per_namespace),
            planning: Semaphore::new(1),
            probes: Semaphore::new(limits.probes_per_namespace),
            reads: Semaphore::new(limits.reads_per_namespace),
            bodies: AtomicUsize::new(limits.bodies_per_namespace),
            processors: Mutex::new(ProcessorTime::new(limits.processors, Instant::now())),
        }
    }

    /// Counts processor time against the share.
    pub(super) fn charge(&self, spent: Duration) {
        self.processors.lock().charge(spent, Instant::now());
    }

    /// When the share has processor time left.
    pub(super) fn free_at(&self) -> Instant {
        self.processors.lock().free_at()
    }

    /// Counts a request's memory against the share; `None` if there is not so much left.
    pub(super) fn hold(&self, bytes: usize) -> Option<ReservedBytes<'_>> {
        let take = |left: usize| left.checked_sub(bytes);
        self.bodies.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(ReservedBytes { share: self, bytes })
    }
}

impl Drop for ReservedBytes<'_> {
    fn drop(&mut self) {
        self.share.bodies.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// The shares of all namespaces.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<NamespaceShare>);

#[derive(Debug, Default)]
struct NamespaceShare {
    shares: HashMap<Box<str>, Arc<Share>>,
    /// Of the latest request.
    latest: Option<Arc<Share>>,
    /// When the latest two requests that followed each other were of different namespaces.
    switched: Option<Instant>,
}

impl NamespaceShare {
    fn share(&mut self, namespace: &str, limits: &Limits) -> Arc<Share> {
        if let Some(share) = self.shares.get(namespace) {
            return Arc::clone(share);
        }
        if self.shares.len() >= REMEMBERED {
            self.shares.retain(|_, share| Arc::strong_count(share) > 1);
        }
        let share = Arc::new(Share::new(limits));
        self.shares.insert(namespace.into(), Arc::clone(&share));
        share
    }
}

impl Shares {
    pub(super) fn of(&self, namespace: &str, limits: &Limits) -> Arc<Share> {
        let mut known = self.0.lock();
        let share = known.share(namespace, limits);
        if !known.latest.as_ref().is_some_and(|latest| Arc::ptr_eq(latest, &share)) {
            known.latest = Some(Arc::clone(&share));
            known.switched = Some(Instant::now());
        }
        share
    }

    /// Whether several namespaces have requests at present.
    pub(super) fn are_contended(&self) -> bool {
        self.0.lock().switched.is_some_and(|switched| switched.elapsed() < ACTIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_one_share_while_it_has_requests() {
        let (shares, limits) = (Shares::default(), Limits::default());
        let first = shares.of("team", &limits);
        assert!(Arc::ptr_eq(&first, &shares.of("team", &limits)));
        assert!(!Arc::ptr_eq(&first, &shares.of("other", &limits)));
        for number in 0..4 * REMEMBERED {
            shares.of(&number.to_string(), &limits);
        }
        assert!(shares.0.lock().shares.len() <= REMEMBERED);
        assert!(Arc::ptr_eq(&first, &shares.of("team", &limits)), "it is in use");
    }

    #[test]
    fn processor_time_beyond_the_share_is_waited_for() {
        let start = Instant::now();
        let mut time = ProcessorTime::new(2, start);
        time.charge(BURST, start);
        assert_eq!(time.free_at(), start, "a burst costs nothing");
        time.charge(Duration::from_millis(10), start);
        assert_eq!(time.free_at() - start, Duration::from_millis(40));
        let later = start + Duration::from_millis(40);
        time.charge(Duration::ZERO, later);
        assert_eq!(time.free_at(), later);
        time.charge(Duration::ZERO, start + Duration::from_mins(1));
        time.charge(BURST, start + Duration::from_mins(1));
        assert_eq!(time.free_at(), start + Duration::from_mins(1), "what is not used is not saved up");
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_contend_while_their_requests_alternate() {
        let (shares, limits) = (Shares::default(), Limits::default());
        shares.of("team", &limits);
        shares.of("other", &limits);
        assert!(shares.are_contended());
        tokio::time::advance(ACTIVE).await;
        shares.of("other", &limits);
        assert!(!shares.are_contended());
    }

    #[test]
    fn memory_is_given_back() {
        let limits = Limits { bodies_per_namespace: 100, ..Limits::default() };
        let share = Share::new(&limits);
        let held = share.hold(60).unwrap();
        assert!(share.hold(41).is_none());
        assert!(share.hold(40).is_some());
        drop(held);
        assert!(share.hold(100).is_some());
    }
}
