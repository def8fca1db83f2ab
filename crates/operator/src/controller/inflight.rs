//! Work in flight: bounded, known by key, with an outcome even after a panic.

use std::collections::HashMap;
use std::hash::Hash;

use tokio::task::{AbortHandle, Id, JoinSet};

/// Tasks by key. All end when this is dropped.
#[derive(Debug)]
pub struct Inflight<K, T> {
    tasks: JoinSet<T>,
    keys: HashMap<Id, K>,
    limit: usize,
}

impl<K: Clone + Eq + Hash, T: Send + 'static> Inflight<K, T> {
    pub fn new(limit: usize) -> Self {
        Self { tasks: JoinSet::new(), keys: HashMap::new(), limit }
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether a task of this key is under way.
    pub fn contains<Q: Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: std::borrow::Borrow<Q>,
    {
        self.keys.values().any(|known| known.borrow() == key)
    }

    pub fn is_full(&self) -> bool {
        self.keys.len() >= self.limit
    }

    /// Starts a task.
    pub fn start(&mut self, key: K, task: impl Future<Output = T> + Send + 'static) -> AbortHandle {
        let handle = self.tasks.spawn(task);
        self.keys.insert(handle.id(), key);
        handle
    }

    /// The next task that ends, with its outcome: none if it panicked or was aborted. Waits for ever while there is
    /// none.
    pub async fn next(&mut self) -> (K, Option<T>) {
        loop {
            let (id, outcome) = match self.tasks.join_next_with_id().await {
                Some(Ok((id, outcome))) => (id, Some(outcome)),
                Some(Err(error)) => {
                    if error.is_panic() {
                        tracing::error!(%error, "a task panicked; this is a bug");
                    }
                    (error.id(), None)
                }
                None => std::future::pending().await,
            };
            if let Some(key) = self.keys.remove(&id) {
                return (key, outcome);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_frees_its_place_and_its_key() {
        let mut inflight = Inflight::<u8, u8>::new(1);
        inflight.start(1, async { panic!("oh") });
        assert!(inflight.is_full() && inflight.contains(&1));
        assert_eq!(inflight.next().await, (1, None));
        assert!(!inflight.contains(&1));
        inflight.start(2, async { 7 });
        assert_eq!(inflight.next().await, (2, Some(7)));
        assert!(inflight.is_empty());
    }
}
