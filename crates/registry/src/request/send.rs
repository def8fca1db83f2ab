//! One request, one answer, with manners: the budget is asked first, and everybody learns from how it went.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::Method;
use tokio::time::{Instant, sleep, timeout_at};

use super::response::{ApiResponse, Rest};
use crate::error::{Detail, Problem};
use crate::limits::budget::{Account, Permit};
use crate::limits::quota::Quota;
use crate::limits::retry;
use crate::limits::server::{ResponseReport, Server, Trial};
use crate::request::context::Context;
use crate::transport::failure::Failure;
use crate::transport::http::{Pool, Request, Response};

/// A failure with what only those who might try again need to know.
#[derive(Clone, Debug)]
pub(crate) struct SendError {
    pub(crate) problem: Problem,
    /// The connection failed in a way that passes by itself.
    passing: bool,
    /// What answered speaks no TLS.
    pub(crate) no_tls: bool,
    /// It was ours: what we were sending broke off, or we do not contact that address. It says nothing about the server.
    ours: bool,
}

impl SendError {
    /// The same fault of a server that the registry sent us to.
    pub(crate) fn of(self, whose: &str) -> Self {
        Self { problem: self.problem.of(whose), ..self }
    }

    /// After how long the same request may fare better, if that is likely.
    pub(crate) fn passes_in(&self) -> Option<Duration> {
        self.passing.then_some(Duration::ZERO)
    }
}

impl From<Problem> for SendError {
    fn from(problem: Problem) -> Self {
        Self { problem, passing: false, no_tls: false, ours: false }
    }
}

impl From<Failure> for SendError {
    fn from(failure: Failure) -> Self {
        let passing = matches!(failure, Failure::Unreachable(_));
        let no_tls = matches!(failure, Failure::NotTls(_));
        let ours = matches!(failure, Failure::Unsent(_) | Failure::OffLimits(_));
        Self { problem: Problem::of_failure(failure), passing, no_tls, ours }
    }
}

impl From<SendError> for Problem {
    fn from(fault: SendError) -> Self {
        fault.problem
    }
}

/// Sends a request to a server whose health and budget are kept.
pub(crate) async fn exchange(
    server: &Arc<Server>,
    pool: &Pool,
    request: Request,
    account: Account,
    context: &Context,
    trial: &(dyn Fn() -> Trial + Sync),
) -> Result<ApiResponse, SendError> {
    context.queue();
    let permit = server.enter(account, context).await?;
    let (reads, question) = (request.method == Method::GET, question(&request));
    let started = Instant::now();
    match send(pool, request, context).await {
        Ok((response, due)) => {
            let quota = Quota::read(response.headers(), SystemTime::now());
            let (status, opened) = (response.status(), response.opened());
            let goes_on = reads && status.is_success();
            server.answered(&ResponseReport {
                status,
                opened,
                quota: &quota,
                account,
                question,
                goes_on,
                started,
                trial,
            });
            let rest = goes_on.then(|| Rest::new(server, trial(), question, &response));
            Ok(ApiResponse::new(response, quota, permit, due, rest))
        }
        Err(fault) => {
            // A registry that speaks no TLS is there; how to speak to it is the caller's decision.
            if !fault.no_tls && !fault.ours {
                server.failed(&fault.problem, started, trial);
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
) -> Result<ApiResponse, SendError> {
    let (response, due) = send(pool, request, context).await?;
    // It is told to the caller, but teaches nothing about the registry's own quota.
    let quota = Quota::read(response.headers(), SystemTime::now());
    Ok(ApiResponse::new(response, quota, permit, due, None))
}

/// Does something again, after growing pauses, while its outcome is one that `passes_in` a moment.
pub(crate) async fn with_retries<T, A>(
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
async fn send(pool: &Pool, request: Request, context: &Context) -> Result<(Response, Instant), SendError> {
    let due = context.send();
    match timeout_at(due, pool.send(request)).await {
        Ok(Ok(response)) => Ok((response, due)),
        Ok(Err(failure)) => Err(failure.into()),
        Err(_) => Err(Problem::TimedOut(Detail::none()).into()),
    }
}
