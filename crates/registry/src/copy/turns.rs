//! One after the other, where a tag is read, changed and written.
//!
//! Copies of one image from several sources run side by side and may all add something to the same tag of the destination.
//! Those of other processes are not seen.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use fairlead_domain::reference::{HostKey, Repository};
use tokio::sync::OwnedMutexGuard;

use super::ledger::host_of;

/// Host, path and tag.
type Key = (HostKey, String, String);

/// Who is at work on which tags.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Key, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits until nobody else is at work on this tag. Nobody else is while the guard lives.
    pub(super) async fn take(&self, repository: &Repository, tag: &str) -> OwnedMutexGuard<()> {
        let key = (host_of(repository), repository.path().to_owned(), tag.to_owned());
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| turn.strong_count() > 0);
            let turn = turns.get(&key).and_then(Weak::upgrade).unwrap_or_default();
            turns.insert(key, Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use fairlead_domain::reference::Reference;

    use super::*;

    #[tokio::test]
    async fn those_who_want_the_same_tag_wait_and_nothing_is_kept_of_them() {
        let turns = Arc::new(Turns::default());
        let repository = Reference::parse("r.example/app").unwrap().repository();
        let first = turns.take(&repository, "one").await;
        drop(turns.take(&repository, "two").await);
        let waiting = {
            let (turns, repository) = (Arc::clone(&turns), repository.clone());
            tokio::spawn(async move { drop(turns.take(&repository, "one").await) })
        };
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.unwrap();
        drop(turns.take(&repository, "three").await);
        assert_eq!(turns.0.lock().unwrap().len(), 1, "only the last one, until somebody else comes");
    }
}
