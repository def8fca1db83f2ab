//! How far all copies together are, in bytes and images.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fairlead_domain::digest::Digest;
use fairlead_registry::copy::{Event, Observer};
use parking_lot::{Mutex, MutexGuard};

/// All copies together. Both numbers of bytes grow while manifests are read and blobs move, and shrink when a transfer
/// begins anew or a copy fails.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    done: AtomicU64,
    known: AtomicU64,
    copied: AtomicUsize,
    failed: AtomicUsize,
}

impl Progress {
    /// Takes note of a copy that came to its end.
    pub(crate) fn count(&self, good: bool) {
        let count = if good { &self.copied } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Images that were copied.
    pub(crate) fn copied(&self) -> usize {
        self.copied.load(Ordering::Relaxed)
    }

    /// Images that were not.
    pub(crate) fn failed(&self) -> usize {
        self.failed.load(Ordering::Relaxed)
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub(crate) fn known(&self) -> u64 {
        self.known.load(Ordering::Relaxed)
    }
}

/// Adds what happens in one copy to the progress of all.
#[derive(Debug)]
pub(crate) struct Meter {
    progress: Arc<Progress>,
    blobs: Mutex<HashMap<Digest, Blob>>,
}

#[derive(Clone, Copy, Debug)]
struct Blob {
    done: u64,
    size: u64,
}

impl Meter {
    pub(crate) fn new(progress: &Arc<Progress>) -> Self {
        Self { progress: Arc::clone(progress), blobs: Mutex::default() }
    }

    /// Nothing more will come: what is not done will not be.
    pub(crate) fn close(&self) {
        for (_, blob) in self.blobs().drain() {
            change(&self.progress.known, blob.size, blob.done);
        }
    }

    fn blobs(&self) -> MutexGuard<'_, HashMap<Digest, Blob>> {
        self.blobs.lock()
    }

    fn is_at(&self, digest: Digest, done: u64, size: u64) {
        let mut blobs = self.blobs();
        let blob = blobs.entry(digest).or_insert_with(|| {
            change(&self.progress.known, 0, size);
            Blob { done: 0, size }
        });
        let done = done.min(blob.size);
        change(&self.progress.done, blob.done, done);
        blob.done = done;
    }
}

impl Observer for Meter {
    fn observe(&self, event: &Event) {
        match *event {
            Event::BlobFound { digest, size } => self.is_at(digest, 0, size),
            Event::BlobMoved { digest, done, size } => self.is_at(digest, done, size),
            Event::BlobDone { digest, size, .. } => self.is_at(digest, size, size),
            Event::Publishing { .. } | Event::Published { .. } => {}
        }
    }
}

/// Replaces a part of a sum. Sums wrap around, so the order of concurrent changes does not matter.
fn change(sum: &AtomicU64, from: u64, to: u64) {
    sum.fetch_add(to.wrapping_sub(from), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use fairlead_registry::copy::BlobOutcome;

    use super::*;

    #[test]
    fn bytes_of_all_copies_add_up() {
        let progress = Arc::default();
        let (one, other) = (Meter::new(&progress), Meter::new(&progress));
        let (digest, size) = (Digest::sha256(b"x"), 100);
        let now = || (progress.done(), progress.known());
        one.observe(&Event::BlobFound { digest, size });
        other.observe(&Event::BlobFound { digest, size });
        assert_eq!(now(), (0, 200));
        one.observe(&Event::BlobMoved { digest, done: 60, size });
        other.observe(&Event::BlobDone { digest, size, outcome: BlobOutcome::Present });
        assert_eq!(now(), (160, 200));
        one.observe(&Event::BlobMoved { digest, done: 20, size });
        assert_eq!(now(), (120, 200), "a transfer that begins anew goes back");
        one.close();
        assert_eq!(now(), (120, 120), "what failed is no longer waited for");
    }
}
