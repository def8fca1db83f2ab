//! One request, one answer, with manners: the budget is asked first, and everybody learns from how it went.

use std::{sync::Arc, time::SystemTime};

use reqwest::{Client, Method, Request};
use tokio::time::{Instant, timeout_at};

use crate::{
    answer::{Answer, Rest},
    context::Context,
    error::{Detail, Problem},
    manners::{
        gate::{Account, Permit},
        quota::Quota,
    },
    peer::{Answered, Peer, Trial},
    transport::{Transport, failure::Failure},
};

/// A failure with what only those who might try again need to know.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) problem: Problem,
    /// The connection failed in a way that passes by itself.
    pub(crate) passing: bool,
    /// What answered speaks no TLS.
    pub(crate) no_tls: bool,
    /// It was ours: what we were sending broke off.
    ours: bool,
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
        let ours = matches!(failure, Failure::Unsent(_));
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
    client: &Client,
    transport: &Transport,
    request: Request,
    account: Account,
    context: &Context,
    trial: &(dyn Fn() -> Trial + Sync),
) -> Result<Answer, Fault> {
    context.queue();
    let permit = peer.enter(account, context).await?;
    let reads = *request.method() == Method::GET;
    let started = Instant::now();
    match send(client, request, context).await {
        Ok(response) => {
            let quota = Quota::read(response.headers(), SystemTime::now());
            let status = response.status();
            let goes_on = reads && status.is_success();
            peer.answered(&Answered { status, quota: &quota, account, goes_on, started, trial });
            let reach = transport.reach(&response);
            let rest = goes_on.then(|| Rest::new(peer, trial(), &response));
            Ok(Answer::new(response, quota, reach, permit, rest))
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

/// Sends a request to a place that a registry pointed to. What happens there is not held against the registry, but the
/// connection counts as one of the registry's.
pub(crate) async fn visit(
    client: &Client,
    transport: &Transport,
    request: Request,
    permit: Permit,
    context: &Context,
) -> Result<Answer, Fault> {
    let response = send(client, request, context).await?;
    let reach = transport.reach(&response);
    Ok(Answer::new(response, Quota::default(), reach, permit, None))
}

async fn send(client: &Client, request: Request, context: &Context) -> Result<reqwest::Response, Fault> {
    match timeout_at(context.send(), client.execute(request)).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(Failure::of(&error).into()),
        Err(_) => Err(Problem::TimedOut(Detail::none()).into()),
    }
}
