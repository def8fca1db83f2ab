//! Progress of a copy.

use std::sync::atomic::{AtomicU64, Ordering};

use fairlead_domain::digest::Digest;

use super::Copied;

/// How a blob came to be at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobOutcome {
    Sent,
    /// Mounted from another repository of the destination's registry.
    Mounted,
    /// It was there already.
    Present,
}

/// Something that happened in a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A blob is part of the image.
    BlobFound {
        digest: Digest,
        size: u64,
    },
    /// Bytes of a blob read so far. Goes back when a transfer is resumed.
    BlobMoved {
        digest: Digest,
        done: u64,
        size: u64,
    },
    BlobDone {
        digest: Digest,
        size: u64,
        outcome: BlobOutcome,
    },
    /// The name at the destination is about to be written.
    Publishing {
        digest: Digest,
    },
    /// The image can be pulled from the destination.
    Published {
        digest: Digest,
        changed: bool,
    },
}

/// Receives the events of a copy, in no particular order among blobs. Must not block.
pub trait Observer: Send + Sync {
    fn observe(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync> Observer for F {
    fn observe(&self, event: &Event) {
        self(event);
    }
}

/// Counts of one copy.
#[derive(Debug, Default)]
pub(super) struct CopyCounts {
    sent: AtomicU64,
    bytes: AtomicU64,
    mounted: AtomicU64,
    present: AtomicU64,
    manifests: AtomicU64,
}

impl CopyCounts {
    pub(super) fn blob(&self, outcome: BlobOutcome, size: u64) {
        match outcome {
            BlobOutcome::Sent => {
                self.bytes.fetch_add(size, Ordering::Relaxed);
                &self.sent
            }
            BlobOutcome::Mounted => &self.mounted,
            BlobOutcome::Present => &self.present,
        }
        .fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn manifest(&self) {
        self.manifests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn finish(&self, digest: Digest, source_digest: Digest, changed: bool) -> Copied {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Copied {
            digest,
            source_digest,
            changed,
            blobs_sent: read(&self.sent),
            bytes_sent: read(&self.bytes),
            blobs_mounted: read(&self.mounted),
            blobs_present: read(&self.present),
            manifests: read(&self.manifests),
        }
    }
}
