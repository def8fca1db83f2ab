//! A repository as one caller may use it: where it is, which credentials are tried, and what they are to be used for.
//!
//! Every operation is a method here, each in its own module. This module sends their requests: it finds the credential
//! that works, answers challenges, follows pointers and repeats what may be repeated.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use fairlead_domain::{keyring::Credential, reference::Repository};
use reqwest::{Method, StatusCode, header::LOCATION};
use tokio::time::{Instant, sleep};

use crate::{
    answer::Answer,
    auth::{
        Authorization, Claim, Refusal,
        scope::{Right, Scope},
    },
    client::Shared,
    context::Context,
    error::Problem,
    exchange::{Fault, exchange, visit},
    manners::retry,
    outgoing::{Outgoing, Place, Pointer},
    registry::Registry,
    transport::{
        failure::Failure,
        redirect::{self, Target},
    },
};

/// Rounds of challenge and answer: one to learn what is wanted, one more if a token turned out to be too old.
const MOST_ROUNDS: usize = 3;
const UNDECIDED: usize = usize::MAX;

/// A repository with the credentials of one caller. Clones share what was found out about the credentials.
#[derive(Clone, Debug)]
pub struct Remote {
    pub(crate) shared: Arc<Shared>,
    pub(crate) registry: Arc<Registry>,
    repository: Repository,
    credentials: Arc<[Credential]>,
    /// The credential that worked; once found, no other is tried.
    chosen: Arc<AtomicUsize>,
    scopes: Arc<[Scope]>,
}

impl Remote {
    pub(crate) fn new(
        shared: Arc<Shared>,
        registry: Arc<Registry>,
        repository: Repository,
        credentials: Arc<[Credential]>,
        right: Right,
    ) -> Self {
        let scopes = Arc::new([Scope::repository(repository.path(), right)]);
        let chosen = Arc::new(AtomicUsize::new(UNDECIDED));
        Self { shared, registry, repository, credentials, chosen, scopes }
    }

    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    pub(crate) fn credentials(&self) -> &[Credential] {
        &self.credentials
    }

    pub(crate) fn path(&self, rest: &str) -> String {
        format!("{}/{rest}", self.repository.path())
    }

    /// Judges an address found in an answer.
    pub(crate) fn pointer(&self, answer: &Answer, location: &str) -> Result<Pointer, Problem> {
        let base = self.registry.endpoint.base();
        let target = redirect::follow(base, answer.url(), location, answer.reach(), 0).map_err(|why| {
            Problem::malformed(format!("it points to an address that is not followed: {why}"))
        })?;
        Ok(Pointer { target, reach: answer.reach() })
    }

    /// Sends a request and returns its answer if that is a success. Credentials are tried in order until one works; if
    /// none does, the first one's failure is told.
    pub(crate) async fn call(&self, outgoing: &Outgoing, context: &Context) -> Result<Answer, Problem> {
        let chosen = self.chosen.load(Ordering::Relaxed);
        if self.credentials.is_empty() {
            return Box::pin(self.call_as(outgoing, None, context)).await;
        }
        if let Some(credential) = self.credentials.get(chosen) {
            return Box::pin(self.call_as(outgoing, Some(credential), context)).await;
        }
        let mut first = None;
        for (position, credential) in self.credentials.iter().enumerate() {
            match Box::pin(self.call_as(outgoing, Some(credential), context)).await {
                Ok(answer) => {
                    self.chosen.store(position, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(problem) if problem.depends_on_credential() && outgoing.is_repeatable() => {
                    first.get_or_insert(problem);
                }
                // What does not depend on the credential is told only if no credential was refused before.
                Err(problem) => return Err(first.unwrap_or(problem)),
            }
        }
        Err(first.unwrap_or_else(|| Problem::Unauthorised("no credential is left to try".into())))
    }

    async fn call_as(
        &self,
        outgoing: &Outgoing,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<Answer, Problem> {
        // An entry that only names a place holds nothing that could be sent.
        let credential = credential.filter(|credential| !credential.is_blank());
        let answer = self.authorised(outgoing, credential, context).await?;
        if answer.status().is_success() { Ok(answer) } else { Err(answer.into_problem("", context).await) }
    }

    /// Sends a request with what the registry wants to know about us.
    async fn authorised(
        &self,
        outgoing: &Outgoing,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<Answer, Problem> {
        let mut scopes = self.scopes.to_vec();
        scopes.extend(outgoing.extra_scope());
        let claim = Claim { credential, scopes: &scopes };
        let (authenticator, registries) = (&self.shared.authenticator, &self.shared.registries);
        let mut authorization = authenticator.prepare(registries, &self.registry, claim, context).await?;
        let mut round = 1;
        loop {
            let answer = self.patiently(outgoing, &authorization, credential, context).await?;
            let challenged = answer.status() == StatusCode::UNAUTHORIZED
                && redirect::same_origin(self.registry.endpoint.base(), answer.url());
            if !challenged || round == MOST_ROUNDS || !outgoing.is_repeatable() {
                return Ok(answer);
            }
            // The place in line is given up first: asking for a token takes one, too.
            let refusal = Refusal::of(&answer);
            let problem = answer.into_problem("", context).await;
            authorization = authenticator
                .respond(registries, &self.registry, claim, &authorization, &refusal, context)
                .await?
                .ok_or(problem)?;
            round += 1;
        }
    }

    /// Sends a request again if it failed in a way that passes and sending it twice does no harm.
    async fn patiently(
        &self,
        outgoing: &Outgoing,
        authorization: &Authorization,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<Answer, Problem> {
        let may_repeat = outgoing.may_be_retried();
        let mut attempt = 1;
        loop {
            let was_secure = self.registry.endpoint.base().scheme() == "https";
            let outcome = self.once(outgoing, authorization, credential, context).await;
            let passing = match &outcome {
                Err(fault) if fault.no_tls && was_secure && self.registry.endpoint.fall_back() => continue,
                Err(fault) => fault.passing,
                Ok(answer) => retry::is_passing(answer.status()),
            };
            let remaining = context.deadline.saturating_duration_since(Instant::now());
            match retry::pause(attempt, fastrand::f64(), remaining) {
                Some(pause) if passing && may_repeat => {
                    drop(outcome);
                    sleep(pause).await;
                    attempt += 1;
                }
                _ => return outcome.map_err(Problem::from),
            }
        }
    }

    /// Sends a request once, and after it to wherever the registry points.
    async fn once(
        &self,
        outgoing: &Outgoing,
        authorization: &Authorization,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<Answer, Fault> {
        let (mut target, mut reach) = match outgoing.place() {
            Place::Api(path) => (Target { url: self.registry.api(path)?, at_home: true }, None),
            Place::Pointed(pointer) => (pointer.target.clone(), pointer.reach),
        };
        let account = credential.map(Credential::id);
        let transport = &self.registry.transport;
        let mut permit = None;
        let mut hops = 0;
        loop {
            let request = outgoing.request(&target, authorization)?;
            let answer = if target.at_home {
                drop(permit.take());
                let trial = || self.registry.trial();
                exchange(&self.registry.peer, transport.home(), transport, request, account, context, &trial)
                    .await?
            } else {
                transport.judge(&target.url, reach).await.map_err(Failure::Forbidden)?;
                let permit = match permit.take() {
                    Some(permit) => permit,
                    None => self.registry.peer.enter(account, context).await?,
                };
                visit(
                    transport.away(&target.url, reach).map_err(Problem::from)?,
                    transport,
                    request,
                    permit,
                    context,
                )
                .await?
            };
            if !is_redirect(answer.status()) || !matches!(*outgoing.method(), Method::GET | Method::HEAD) {
                return Ok(answer);
            }
            let location = answer.header(LOCATION.as_str()).unwrap_or_default();
            let base = self.registry.endpoint.base();
            target = redirect::follow(base, answer.url(), location, answer.reach(), hops)
                .map_err(|why| Problem::malformed(format!("its redirect is not followed: {why}")))?;
            reach = answer.reach();
            hops += 1;
            permit = Some(answer.into_permit(context).await);
        }
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}
