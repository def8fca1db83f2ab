//! Single-flight by key: callers that want the same share one piece of work.
//!
//! It runs in a task of its own: a caller whose time is up leaves, and the result still serves the next.

use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

type UnderWay<K, V> = HashMap<K, watch::Receiver<Option<V>>>;

#[derive(Debug)]
pub(super) struct SingleFlight<K, V> {
    under_way: Arc<Mutex<UnderWay<K, V>>>,
}

impl<K, V> Default for SingleFlight<K, V> {
    fn default() -> Self {
        Self { under_way: Arc::default() }
    }
}

impl<K, V> SingleFlight<K, V>
where
    K: Clone + Eq + Hash + Send + Sync + Debug + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Joins the work under way for `key`, or starts it.
    pub(super) fn join<F>(&self, key: &K, work: impl FnOnce() -> F) -> Joined<V>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut under_way = lock(&self.under_way);
        if let Some(outcome) = under_way.get(key) {
            return Joined(outcome.clone());
        }
        let (told, outcome) = watch::channel(None);
        // Outside of a runtime nothing can be started; callers get `NoResult::Lost`.
        if let Ok(runtime) = Handle::try_current() {
            under_way.insert(key.clone(), outcome.clone());
            let guard = WorkGuard { under_way: Arc::clone(&self.under_way), key: key.clone() };
            let work = work();
            runtime.spawn(async move {
                let value = work.await;
                drop(guard);
                told.send_replace(Some(value));
            });
        }
        Joined(outcome)
    }
}

/// A place among the callers that wait.
#[derive(Debug)]
pub(super) struct Joined<V>(watch::Receiver<Option<V>>);

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoResult {
    /// The caller's time is up; the work goes on.
    TimeIsUp,
    /// The work ended without one.
    Lost,
}

impl<V: Clone> Joined<V> {
    pub(super) async fn wait(mut self, deadline: Instant) -> Result<V, NoResult> {
        match timeout_at(deadline, self.0.wait_for(Option::is_some)).await {
            Ok(Ok(value)) => value.clone().ok_or(NoResult::Lost),
            Ok(Err(_)) => Err(NoResult::Lost),
            Err(_) => Err(NoResult::TimeIsUp),
        }
    }
}

/// Takes the work off the list, also when it ends by a panic.
struct WorkGuard<K: Eq + Hash, V> {
    under_way: Arc<Mutex<UnderWay<K, V>>>,
    key: K,
}

impl<K: Eq + Hash, V> Drop for WorkGuard<K, V> {
    fn drop(&mut self) {
        lock(&self.under_way).remove(&self.key);
    }
}

fn lock<K, V>(under_way: &Mutex<UnderWay<K, V>>) -> MutexGuard<'_, UnderWay<K, V>> {
    under_way.lock()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(1)
    }

    #[tokio::test(start_paused = true)]
    async fn many_callers_share_one_piece_of_work_and_may_leave_it() {
        let flights = SingleFlight::<u8, u8>::default();
        let started = Arc::new(AtomicUsize::new(0));
        let join = || {
            let started = Arc::clone(&started);
            flights.join(&1, || async move {
                started.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_secs(2)).await;
                7
            })
        };
        let impatient = join();
        let patient = join();
        assert_eq!(impatient.wait(soon()).await, Err(NoResult::TimeIsUp));
        assert_eq!(patient.wait(Instant::now() + Duration::from_secs(5)).await, Ok(7));
        assert_eq!(started.load(Ordering::SeqCst), 1);
        drop(join());
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(started.load(Ordering::SeqCst), 2, "what has ended is begun anew");
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_panics_is_begun_anew() {
        let flights = SingleFlight::<u8, u8>::default();
        let broken = flights.join(&1, || async { panic!("oh") });
        assert_eq!(broken.wait(soon()).await, Err(NoResult::Lost));
        assert_eq!(flights.join(&1, || async { 3 }).wait(soon()).await, Ok(3));
    }
}
