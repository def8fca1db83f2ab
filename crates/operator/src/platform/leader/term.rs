//! The time during which this replica leads, as the rest of the operator sees it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long work may go on after its term has ended. A term ends two seconds before the lease does, so what is
/// dropped after this time is gone before another replica starts.
pub(super) const GRACE: Duration = Duration::from_millis(1500);

/// Whether this replica leads.
#[derive(Debug, Clone)]
pub enum Leadership {
    /// Another replica leads, named here if it is known, or none does.
    Standby {
        holder: Option<Arc<str>>,
    },
    Leading(Term),
}

/// One spell of leadership. It ends once and for all; a later one is another `Term`.
#[derive(Clone)]
pub struct Term {
    number: i32,
    ended: CancellationToken,
    scopes: TaskTracker,
    origin: Instant,
    /// Milliseconds after `origin`: until then the lease protects what is done.
    until: Arc<AtomicU64>,
}

impl Term {
    pub(super) fn new(number: i32, origin: Instant, until: Duration) -> Self {
        let term = Self {
            number,
            ended: CancellationToken::new(),
            scopes: TaskTracker::new(),
            origin,
            until: Arc::default(),
        };
        term.extend(until);
        term
    }

    /// Grows with every change of leadership in the cluster.
    pub fn number(&self) -> i32 {
        self.number
    }

    /// Whether the lease still protects what is done now. The token is cancelled by a task that may itself be late,
    /// after the process was frozen for instance; this looks at the clock. To be asked right before a write.
    pub fn holds(&self) -> bool {
        let now = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        !self.ended.is_cancelled() && now < self.until.load(Ordering::Acquire)
    }

    /// Cancelled when the term ends.
    pub fn token(&self) -> &CancellationToken {
        &self.ended
    }

    pub(super) fn extend(&self, until: Duration) {
        self.until.store(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::Release);
    }

    pub(super) fn end(&self) {
        self.ended.cancel();
        self.scopes.close();
    }

    /// Waits until nothing runs any more on behalf of this term, which takes [`GRACE`] at most.
    pub(super) async fn finished(&self) {
        self.scopes.wait().await;
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("number", &self.number)
            .field("holds", &self.holds())
            .finish_non_exhaustive()
    }
}

/// A handle to leadership for what acts under it.
#[derive(Debug, Clone)]
pub struct Leader {
    state: watch::Receiver<Leadership>,
}

impl Leader {
    pub(super) fn new(state: watch::Receiver<Leadership>) -> Self {
        Self { state }
    }

    /// The present term, while this replica leads.
    pub fn term(&self) -> Option<Term> {
        match &*self.state.borrow() {
            Leadership::Leading(term) if term.holds() => Some(term.clone()),
            Leadership::Leading(_) | Leadership::Standby { .. } => None,
        }
    }

    /// Runs `work` once in every term of this replica, until the election is over. Work watches the term's token and
    /// winds up when it is cancelled; what has not ended shortly after is dropped where it stands.
    pub async fn while_leading<Work, Run>(mut self, mut work: Work)
    where
        Work: FnMut(Term) -> Run,
        Run: Future<Output = ()>,
    {
        while let Some(term) = self.next_term().await {
            let run = work(term.clone());
            let bounded = async {
                tokio::select! {
                    () = run => {}
                    () = overrun(&term) => {
                        tracing::warn!(term = term.number, "work did not stop when leadership ended and was dropped");
                    }
                }
            };
            term.scopes.track_future(bounded).await;
            term.ended.cancelled().await;
        }
    }

    async fn next_term(&mut self) -> Option<Term> {
        let fresh =
            |state: &Leadership| matches!(state, Leadership::Leading(term) if !term.ended.is_cancelled());
        match &*self.state.wait_for(fresh).await.ok()? {
            Leadership::Leading(term) => Some(term.clone()),
            Leadership::Standby { .. } => None,
        }
    }
}

async fn overrun(term: &Term) {
    term.ended.cancelled().await;
    tokio::time::sleep(GRACE).await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn election() -> (watch::Sender<Leadership>, Leader) {
        let (sender, receiver) = watch::channel(Leadership::Standby { holder: None });
        (sender, Leader::new(receiver))
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_holds_until_its_time_is_up_even_if_nobody_ended_it() {
        let term = Term::new(1, Instant::now(), 8 * SECOND);
        tokio::time::advance(7 * SECOND).await;
        assert!(term.holds());
        term.extend(10 * SECOND);
        tokio::time::advance(2 * SECOND).await;
        assert!(term.holds());
        tokio::time::advance(SECOND).await;
        assert!(!term.holds());
    }

    #[tokio::test(start_paused = true)]
    async fn work_runs_once_per_term_and_ends_with_it() {
        let (state, leader) = election();
        let running = Arc::new(AtomicUsize::new(0));
        let started = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(leader.clone().while_leading({
            let (running, started) = (running.clone(), started.clone());
            move |term| {
                let (running, started) = (running.clone(), started.clone());
                async move {
                    started.fetch_add(1, Ordering::SeqCst);
                    running.fetch_add(1, Ordering::SeqCst);
                    term.token().cancelled().await;
                    running.fetch_sub(1, Ordering::SeqCst);
                }
            }
        }));
        for (number, terms_so_far) in [(1, 1), (2, 2), (3, 3)] {
            let term = Term::new(number, Instant::now(), 8 * SECOND);
            state.send_replace(Leadership::Leading(term.clone()));
            tokio::time::sleep(SECOND).await;
            assert_eq!((running.load(Ordering::SeqCst), started.load(Ordering::SeqCst)), (1, terms_so_far));
            assert_eq!(leader.term().map(|term| term.number()), Some(number));
            term.end();
            state.send_replace(Leadership::Standby { holder: None });
            term.finished().await;
            assert_eq!(running.load(Ordering::SeqCst), 0);
            assert!(leader.term().is_none());
        }
        drop(state);
        task.await.expect("the scope ends with the election");
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_ignores_the_end_is_dropped_within_the_grace_time() {
        let (state, leader) = election();
        let task = tokio::spawn(leader.while_leading(|_| std::future::pending()));
        let term = Term::new(1, Instant::now(), 8 * SECOND);
        state.send_replace(Leadership::Leading(term.clone()));
        tokio::time::sleep(SECOND).await;
        let ended = Instant::now();
        term.end();
        term.finished().await;
        assert_eq!(ended.elapsed().as_millis(), GRACE.as_millis());
        task.abort();
    }
}
