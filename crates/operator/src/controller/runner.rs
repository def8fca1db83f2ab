//! Runs one controller: terms, lists, wake-ups, restarts, liveness, counts.

use std::any::Any;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::{Instant, sleep, sleep_until};

use super::backoff::{Backoff, Retry};
use super::rounds::{RoundResult, Rounds};
use super::{Broken, Controller};
use crate::cluster::state::Changes;
use crate::platform::leader::{Leader, Term};
use crate::platform::telemetry::Heartbeat;

/// Between two attempts of a controller that breaks.
const RESTART: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30)).with_jitter(0.5);

/// One that ran for so long does not break all the time.
const STEADY: Duration = Duration::from_mins(1);

/// How often it is asked whether everything is listed.
const ASK: Duration = Duration::from_millis(100);

/// Lists take less than this; what takes longer is reported.
const PATIENCE: Duration = Duration::from_secs(10);

const BEAT: Duration = Duration::from_secs(5);

/// Runs a controller whenever this replica leads, until the election is over.
pub async fn run<C: Controller>(setup: Arc<C::Setup>, leader: Leader, heartbeat: Heartbeat, rounds: Rounds) {
    rounds.show(C::NAME);
    let terms = leader.while_leading(|term| {
        let (setup, rounds) = (Arc::clone(&setup), rounds.clone());
        async move {
            // Boxed, because the task would otherwise carry a large future along while another replica leads.
            term.token().run_until_cancelled(Box::pin(keep_going::<C>(&setup, &term, &rounds))).await;
            C::end(&setup);
        }
    });
    // One task polls both: a round that blocks its thread stops the beat.
    let beating = async {
        loop {
            heartbeat.beat();
            sleep(BEAT).await;
        }
    };
    tokio::select! {
        () = terms => {}
        () = beating => {}
    }
}

async fn keep_going<C: Controller>(setup: &Arc<C::Setup>, term: &Term, rounds: &Rounds) {
    let mut retry = Retry::new(RESTART);
    loop {
        let begun = Instant::now();
        match AssertUnwindSafe(work::<C>(setup, term, rounds)).catch_unwind().await {
            Ok(Err(Broken(error))) => {
                rounds.ended(C::NAME, RoundResult::Failed);
                tracing::warn!(controller = C::NAME, error, "controller failed and restarts");
            }
            Ok(Ok(never)) => match never {},
            Err(panic) => {
                rounds.ended(C::NAME, RoundResult::Panicked);
                let error = text_of(&*panic);
                tracing::error!(
                    controller = C::NAME,
                    error,
                    "controller panicked, which is a bug; it restarts"
                );
            }
        }
        C::end(setup);
        if begun.elapsed() > STEADY {
            retry.reset();
        }
        sleep(retry.failed()).await;
    }
}

async fn work<C: Controller>(
    setup: &Arc<C::Setup>,
    term: &Term,
    rounds: &Rounds,
) -> Result<Infallible, Broken> {
    // From here on no change is missed.
    let mut changes = C::changes(setup);
    let mut lists = Lists::default();
    while lists.are_awaited::<C>(setup) {
        sleep(ASK).await;
    }
    let mut state = C::begin(setup, term).await?;
    loop {
        let begun = Instant::now();
        let waited = lists.since.is_some();
        let mut until = if lists.are_awaited::<C>(setup) {
            begun + ASK
        } else {
            if waited {
                state.changed();
            }
            let next = state.round(term).await?;
            rounds.done(C::NAME, begun.elapsed());
            next
        };
        loop {
            tokio::select! {
                () = Changes::any(&mut changes) => {
                    state.changed();
                    until = until.min(begun + C::DEBOUNCE);
                }
                again = state.progress() => if again { break },
                () = sleep_until(until) => break,
            }
        }
    }
}

/// Whether everything is listed, and what is said about it.
#[derive(Default)]
struct Lists {
    since: Option<Instant>,
    reported: bool,
}

impl Lists {
    fn are_awaited<C: Controller>(&mut self, setup: &C::Setup) -> bool {
        let Some(why) = C::waits_for(setup) else {
            if self.reported {
                tracing::info!(controller = C::NAME, "controller works again");
            }
            *self = Self::default();
            return false;
        };
        let since = *self.since.get_or_insert_with(Instant::now);
        if !self.reported && since.elapsed() > PATIENCE {
            self.reported = true;
            tracing::warn!(controller = C::NAME, why, "controller waits; nothing is planned or written");
        }
        true
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
