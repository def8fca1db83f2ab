//! Names that do not meet: tests run side by side, in several processes, against one cluster.

use std::hash::{BuildHasher, RandomState};

/// A number that no other process has. Every `RandomState` is seeded anew from the operating system.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// `prefix` with a random end, fit for names of Kubernetes objects.
pub fn unique(prefix: &str) -> String {
    format!("{prefix}-{:08x}", random() & 0xffff_ffff)
}
