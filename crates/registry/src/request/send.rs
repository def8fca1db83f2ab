//! Sends one request: waits for the budget first, and reports the outcome to the limits afterwards.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::Method;
use tokio::time::{Instant, sleep, timeout_at};

use super::context::Context;
use super::response::{ApiResponse, BodyReport};
use crate::error::{Detail, Problem};
use crate::limits::budget::{Account, Permit};
use crate::limits::quota::Quota;
use crate::limits::retry;
use crate::limits::server::{ResponseReport, Server, Trial};
use crate::transport::failure::Failure;
use crate::transport::http::{Pool, Request, Response};

/// A problem, with what decides about retries and the circuit breaker.
#[derive(Clone, Debug)]
pub(crate) struct SendError {
    pub(crate) problem: Problem,
    /// The connection failed in a way that usually passes.
    is_transient: bool,
    /// The server does not speak TLS.
    pub(crate) no_tls: bool,
    /// The reason is on our side: the body that was being sent broke off, or the address is not contacted.
    is_local: bool,
}

impl SendError {
    /// The same error of a server that the registry pointed to.
    pub(crate) fn of(self, whose: &str) -> Self {
        Self { problem: self.problem.of(whose), ..self }
    }

    /// After which pause a retry makes sense, if at all.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.is_transient.then_some(Duration::ZERO)
    }
}

impl From<Problem> for SendError {
    fn from(problem: Problem) -> Self {
        Self { problem, is_transient: false, no_tls: false, is_local: false }
    }
}

impl From<Failure> for SendError {
    fn from(failure: Failure) -> Self {
        let is_transient = matches!(failure, Failure::Unreachable(_));
        let no_tls = matches!(failure, Failure::NotTls(_));
        let is_local = matches!(failure, Failure::Unsent(_) | Failure::OffLimits(_));
        Self { problem: Problem::of_failure(failure), is_transient, no_tls, is_local }
    }
}

impl From<SendError> for Problem {
    fn from(error: SendError) -> Self {
        error.problem
    }
}

/// Sends a request to a server with limits of its own.
pub(crate) async fn send_limited(
    server: &Arc<Server>,
    pool: &Pool,
    request: Request,
    account: Account,
    context: &Context,
    trial: &Arc<Trial>,
) -> Result<ApiResponse, SendError> {
    context.queued();
    let permit = server.enter(account, context).await?;
    let (is_get, id) = (request.method == Method::GET, request_id(&request));
    let started = Instant::now();
    match send(pool, request, context).await {
        Ok((response, due)) => {
            let quota = Quota::read(response.headers(), SystemTime::now());
            let (status, opened) = (response.status(), response.opened());
            let has_body = is_get && status.is_success();
            let report =
                ResponseReport { status, opened, quota: &quota, account, request: id, has_body, started };
            server.answered(&report, trial);
            let body = has_body.then(|| BodyReport::new(server, trial, id, &response));
            Ok(ApiResponse::new(response, quota, permit, due, body))
        }
        Err(error) => {
            // A server without TLS is alive; the caller decides how to speak to it.
            if !error.no_tls && !error.is_local {
                server.failed(&error.problem, started, trial);
            }
            Err(error)
        }
    }
}

/// Identifies what is asked for.
fn request_id(request: &Request) -> u64 {
    let mut hasher = DefaultHasher::new();
    request.url.hash(&mut hasher);
    hasher.finish()
}

/// Sends a request to a host that the registry pointed to. Its outcome does not count against the registry; the
/// connection counts as one of the registry's.
pub(crate) async fn send_elsewhere(
    pool: &Pool,
    request: Request,
    permit: Permit,
    context: &Context,
) -> Result<ApiResponse, SendError> {
    let (response, due) = send(pool, request, context).await?;
    // For the caller only; it says nothing about the registry's own quota.
    let quota = Quota::read(response.headers(), SystemTime::now());
    Ok(ApiResponse::new(response, quota, permit, due, None))
}

/// Repeats an attempt with back-off while `retry_after` names a pause for its outcome.
pub(crate) async fn with_retries<T, A>(
    context: &Context,
    retry_after: impl Fn(&T) -> Option<Duration>,
    mut attempt: impl FnMut() -> A,
) -> T
where
    A: Future<Output = T>,
{
    let mut attempts = 1;
    loop {
        let outcome = attempt().await;
        let remaining = context.deadline.saturating_duration_since(Instant::now());
        let rest = retry_after(&outcome).filter(|_| context.may_repeat());
        let pause = rest.and_then(|rest| retry::pause(attempts, fastrand::f64(), rest, remaining));
        let Some(pause) = pause else { return outcome };
        // A response holds a permit, which must not be kept while waiting.
        drop(outcome);
        sleep(pause).await;
        attempts += 1;
    }
}

/// The response, and the time limit of the request.
async fn send(pool: &Pool, request: Request, context: &Context) -> Result<(Response, Instant), SendError> {
    let due = context.sent();
    match timeout_at(due, pool.send(request)).await {
        Ok(Ok(response)) => Ok((response, due)),
        Ok(Err(failure)) => Err(failure.into()),
        Err(_) => Err(Problem::TimedOut(Detail::none()).into()),
    }
}
