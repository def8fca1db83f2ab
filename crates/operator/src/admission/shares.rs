//! What one namespace may take of the webhook at once, so that a namespace that asks for too much waits for itself and
//! not the others for it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::limits::Limits;

/// Namespaces that are remembered before those without a request are forgotten.
const REMEMBERED: usize = 256;

/// The share of one namespace, for as long as it has requests.
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
}

/// Bytes of a request, given back when dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
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
        }
    }

    /// Counts a request's memory against the share; `None` if there is not so much left.
    pub(super) fn hold(&self, bytes: usize) -> Option<Held<'_>> {
        let take = |left: usize| left.checked_sub(bytes);
        self.bodies.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(Held { share: self, bytes })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.share.bodies.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// The shares of namespaces that have requests.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<HashMap<Box<str>, Weak<Share>>>);

impl Shares {
    pub(super) fn of(&self, namespace: &str, limits: &Limits) -> Arc<Share> {
        let mut shares = self.0.lock();
        if let Some(known) = shares.get(namespace).and_then(Weak::upgrade) {
            return known;
        }
        if shares.len() >= REMEMBERED {
            shares.retain(|_, share| share.strong_count() > 0);
        }
        let share = Arc::new(Share::new(limits));
        shares.insert(namespace.into(), Arc::downgrade(&share));
        share
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
        assert!(shares.0.lock().len() <= REMEMBERED);
        assert!(Arc::ptr_eq(&first, &shares.of("team", &limits)), "it is in use");
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
