//! One request, one answer, with manners: the budget is asked first, and everybody learns from how it went.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::{Duration, SystemTime},
};

use hyper::Method;
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    answer::{Answer, Rest},
    context::Context,
    error::{Detail, Problem},
    manners::{
        gate::{Account, Permit},
        quota::Quota,
        retry,
    },
    peer::{Answered, Peer, Trial},
    transport::{
        failure::Failure,
        http::{Pool, Request, Response},
    },
};

/// A failure with what only those who might try again need to know.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) problem: Problem,
    /// The connection failed in a way that passes by itself.
    passing: bool,
    /// What answered speaks no TLS.
    pub(crate) no_tls: bool,
    /// It was ours: what we were sending broke off, or we do not contact that address. It says nothing about the server.
    ours: bool,
}

impl Fault {
    /// The same fault of a server that the registry sent us to.
    pub(crate) fn of(self, whose: &str) -> Self {
        Self { problem: self.problem.of(whose), ..self }
    }

    /// After how long the same request may fare better, if that is likely.
    pub(crate) fn passes_in(&self) -> Option<Duration> {
        self.passing.then_some(Duration::ZERO)
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        Self { problem, passing: false, no_tls: false, ours: false }
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        let passing = matches!(failure, Failure::Unreachable(_));
        let no_tls = matches!(failure, Failure::NotTls(_));
        let ours = matches!(failure, Failure::Unsent(_) | Failure::OffLimits(_));
        Self { problem: Problem::of_failure(failure), passing, no_tls, ours }
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        fault.problem
    }
}

/// Sends a request to a server whose health and budget are kept.
pub(crate) async fn exchange(
    peer: &Arc<Peer>,
    pool: &Pool,
    request: Request,
    account: Account,
    context: &Context,
    trial: &(dyn Fn() -> Trial + Sync),
) -> Result<Answer, Fault> {
    context.queue();
    let permit = peer.enter(account, context).await?;
    let (reads, question) = (request.method == Method::GET, question(&request));
    let started = Instant::now();
    match send(pool, request, context).await {
        Ok((response, due)) => {
            let quota = Quota::read(response.headers(), SystemTime::now());
            let (status, opened) = (response.status(), response.opened());
            let goes_on = reads && status.is_success();
            peer.answered(&Answered {
                status,
                opened,
                quota: &quota,
                account,
                question,
                goes_on,
                started,
                trial,
            });
            let rest = goes_on.then(|| Rest::new(peer, trial(), question, &response));
            Ok(Answer::new(response, quota, permit, due, rest))
        }
        Err(fault) => {
            // A registry that speaks no TLS is there; how to speak to it is the caller's decision.
            if !fault.no_tls && !fault.ours {
                peer.failed(&fault.problem, started, trial);
            }
            Err(fault)
        }
    }
}

/// Tells what is asked for from all else, whoever asks and how often.
fn question(request: &Request) -> u64 {
    let mut hasher = DefaultHasher::new();
    request.url.hash(&mut hasher);
    hasher.finish()
}

/// Sends a request to a place that a registry pointed to. What happens there is not held against the registry, but the
/// connection counts as one of the registry's.
pub(crate) async fn visit(
    pool: &Pool,
    request: Request,
    permit: Permit,
    context: &Context,
) -> Result<Answer, Fault> {
    let (response, due) = send(pool, request, context).await?;
    // It is told to the caller, but teaches nothing about the registry's own quota.
    let quota = Quota::read(response.headers(), SystemTime::now());
    Ok(Answer::new(response, quota, permit, due, None))
}

/// Does something again, after growing pauses, while its outcome is one that `passes_in` a moment.
pub(crate) async fn repeatedly<T, A>(
    context: &Context,
    passes_in: impl Fn(&T) -> Option<Duration>,
    mut attempt: impl FnMut() -> A,
) -> T
where
    A: Future<Output = T>,
{
    let mut attempts = 1;
    loop {
        let outcome = attempt().await;
        let remaining = context.deadline.saturating_duration_since(Instant::now());
        let pause =
            passes_in(&outcome).and_then(|rest| retry::pause(attempts, fastrand::f64(), rest, remaining));
        let Some(pause) = pause else { return outcome };
        // An answer would keep its place in line meanwhile.
        drop(outcome);
        sleep(pause).await;
        attempts += 1;
    }
}

/// The answer, and when the request has had its time.
async fn send(pool: &Pool, request: Request, context: &Context) -> Result<(Response, Instant), Fault> {
    let due = context.send();
    match timeout_at(due, pool.send(request)).await {
        Ok(Ok(response)) => Ok((response, due)),
        Ok(Err(failure)) => Err(failure.into()),
        Err(_) => Err(Problem::TimedOut(Detail::none()).into()),
    }
}
