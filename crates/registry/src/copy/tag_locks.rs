//! Locks for tags that are read, changed and written.
//!
//! Concurrent copies of one image from several sources may add to the same tag of the destination. Other processes are
//! not covered.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use fairlead_domain::reference::{HostKey, Repository};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// Host, path and tag.
type TagKey = (HostKey, String, String);

#[derive(Debug, Default)]
pub(super) struct TagLocks(Mutex<HashMap<TagKey, Weak<tokio::sync::Mutex<()>>>>);

impl TagLocks {
    pub(super) async fn lock(&self, repository: &Repository, tag: &str) -> OwnedMutexGuard<()> {
        let key = (repository.host().key(), repository.path().to_owned(), tag.to_owned());
        let lock = {
            let mut locks = self.0.lock();
            locks.retain(|_, lock| lock.strong_count() > 0);
            let lock = locks.get(&key).and_then(Weak::upgrade).unwrap_or_default();
            locks.insert(key, Arc::downgrade(&lock));
            lock
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use fairlead_domain::reference::Reference;

    use super::*;

    #[tokio::test]
    async fn copies_that_change_the_same_tag_wait_and_leave_nothing_behind() {
        let locks = Arc::new(TagLocks::default());
        let repository = Reference::parse("r.example/app").unwrap().repository();
        let first = locks.lock(&repository, "one").await;
        drop(locks.lock(&repository, "two").await);
        let waiting = {
            let (locks, repository) = (Arc::clone(&locks), repository.clone());
            tokio::spawn(async move { drop(locks.lock(&repository, "one").await) })
        };
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.unwrap();
        drop(locks.lock(&repository, "three").await);
        assert_eq!(locks.0.lock().len(), 1, "only the last one, until the next lock");
    }
}
