//! As whom a registry is asked.
//!
//! Several credentials may match, and what a registry wants to know about us it says only when it is asked. What it wanted
//! before is brought along. That is a guess, which may come from another repository: where it does not do, the request is
//! sent bare, as it would have been had nothing been known. This one may be served to anybody, or by other rules.
//! A credential that was refused is not sent again, and a refusal stays one unless the registry itself says otherwise.

use std::sync::atomic::Ordering;

use fairlead_domain::keyring::Credential;
use hyper::{Method, StatusCode};

use crate::auth::challenge_cache::ChallengeCache;
use crate::auth::redact::SentSecrets;
use crate::auth::scope::Scope;
use crate::auth::{Authorization, Claim, Denied, Refusal};
use crate::error::Problem;
use crate::repository::{RepositoryClient, UNDECIDED, storage};
use crate::request::ApiRequest;
use crate::request::context::Context;
use crate::request::response::ApiResponse;
use crate::request::send::visit;
use crate::transport::http::Request;
use crate::transport::redirect;

/// Rounds of challenge and answer: one to learn what is wanted, one more if a token turned out to be too old.
const MOST_ROUNDS: usize = 3;

impl RepositoryClient {
    /// Sends a request and returns its answer if that is a success.
    pub(crate) async fn call(
        &self,
        outgoing: &ApiRequest,
        context: &Context,
    ) -> Result<ApiResponse, Problem> {
        let mut scopes = self.scopes.to_vec();
        scopes.extend(outgoing.extra_scope());
        let mut call = Call {
            remote: self,
            outgoing,
            context,
            scopes: &scopes,
            denied: Vec::new(),
            was_sent: false,
            was_bare: false,
        };
        match call.with_each_credential().await {
            Err(problem) if call.guess_may_be_wrong(&problem) => Box::pin(call.bare(problem)).await,
            outcome => outcome,
        }
    }
}

/// One request on its way to an answer.
struct Call<'a> {
    remote: &'a RepositoryClient,
    outgoing: &'a ApiRequest,
    context: &'a Context,
    scopes: &'a [Scope],
    /// For whom there was no token of the kind that the registry wanted before.
    denied: Vec<(Option<&'a Credential>, Box<Denied>)>,
    was_sent: bool,
    /// Whether it was sent without a word about who sends it.
    was_bare: bool,
}

impl<'a> Call<'a> {
    /// Tries credentials until one works, the one that did before first; if none does, the first failure is told that says
    /// more than that a login is not known.
    async fn with_each_credential(&mut self) -> Result<ApiResponse, Problem> {
        let credentials: &'a [Credential] = self.remote.credentials();
        if credentials.is_empty() {
            return Box::pin(self.call_as(None)).await;
        }
        let chosen = self.remote.chosen.of(self.outgoing.method());
        let proven = chosen.load(Ordering::Relaxed);
        let preferred =
            if proven == UNDECIDED { self.remote.chosen.reading.load(Ordering::Relaxed) } else { proven };
        let mut order: Vec<(usize, &Credential)> = credentials.iter().enumerate().collect();
        order.sort_by_key(|(position, _)| *position != preferred);
        let mut told = None;
        for (position, credential) in order {
            let problem = match Box::pin(self.call_as(Some(credential))).await {
                Ok(answer) => {
                    chosen.store(position, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(problem) => problem,
            };
            let another_may_do = match &problem {
                Problem::Unauthorised(_) | Problem::Forbidden(_) => true,
                // One that has worked is believed when it does not find something.
                other => position != proven && other.depends_on_credential(),
            };
            told = Some(weightier(told, problem));
            if !another_may_do || !self.outgoing.is_repeatable() {
                break;
            }
        }
        Err(told.unwrap_or_else(|| Problem::Unauthorised("no credential is left to try".into())))
    }

    /// Sends the request with what the registry is known to want.
    async fn call_as(&mut self, credential: Option<&'a Credential>) -> Result<ApiResponse, Problem> {
        // An entry that only names a place holds nothing that could be sent.
        let credential = credential.filter(|credential| !credential.is_blank());
        let claim = self.claim(credential);
        let authorization = if self.reads() && self.remote.chosen.nobody.load(Ordering::Relaxed) {
            Authorization::Nothing
        } else {
            let state = &self.remote.state;
            state.authenticator.prepare(&state.registries, &self.remote.registry, claim, self.context).await
        };
        if let Authorization::Denied(denied) = authorization {
            let problem = denied.problem.clone();
            self.denied.push((credential, denied));
            return Err(problem);
        }
        self.was_sent = true;
        self.was_bare |= authorization.header().is_none();
        self.converse(claim, authorization).await
    }

    /// Whether a failure may come from what the registry wanted for something else.
    fn guess_may_be_wrong(&self, problem: &Problem) -> bool {
        let refused = matches!(problem, Problem::Unauthorised(_) | Problem::Forbidden(_));
        // A login that may not write has been told so; nobody wants to write without it instead.
        let is_open = !self.was_sent || (refused && self.reads() && !self.was_bare);
        is_open && self.outgoing.is_repeatable() && !self.context.has_passed()
    }

    /// Sends the request bare after all that was brought along was `refused`. A challenge is answered where it leads to
    /// something that was not refused yet.
    async fn bare(&mut self, refused: Problem) -> Result<ApiResponse, Problem> {
        let first = self.remote.credentials().iter().find(|credential| !credential.is_blank());
        let answer =
            self.remote.patiently(self.outgoing, &Authorization::Nothing, first, self.context).await?;
        if answer.status().is_success() {
            self.remote.chosen.nobody.fetch_or(self.reads(), Ordering::Relaxed);
            return Ok(answer);
        }
        let secrets = SentSecrets { credential: first, header: None };
        if !self.is_challenge(&answer) {
            let problem = self.problem(answer, secrets).await;
            // Registries hide from strangers what a login would show.
            let is_hidden = first.is_some() && problem.is_absence();
            return Err(if is_hidden { refused } else { problem });
        }
        let refusal = Refusal::of(answer, secrets, self.context).await;
        let mut told = self.was_sent.then(|| refused.clone());
        for (credential, denied) in std::mem::take(&mut self.denied) {
            let claim = self.claim(credential);
            let problem = match self.respond(claim, &Authorization::Denied(denied), &refusal).await {
                Ok(authorization) => match self.converse(claim, authorization).await {
                    Ok(answer) => return Ok(answer),
                    Err(problem) => problem,
                },
                Err(problem) => problem,
            };
            told = Some(weightier(told, problem));
        }
        Err(told.unwrap_or(refused))
    }

    /// Sends the request, and again with what the registry asks for, as long as there is something better to send.
    async fn converse(
        &self,
        claim: Claim<'_>,
        mut authorization: Authorization,
    ) -> Result<ApiResponse, Problem> {
        let mut round = 1;
        loop {
            let answer =
                self.remote.patiently(self.outgoing, &authorization, claim.credential, self.context).await?;
            if answer.status().is_success() {
                return Ok(answer);
            }
            let secrets = SentSecrets { credential: claim.credential, header: authorization.header() };
            let is_last = round == MOST_ROUNDS || !self.outgoing.is_repeatable();
            let refusal = if self.is_challenge(&answer) && !is_last {
                Refusal::of(answer, secrets, self.context).await
            } else {
                let is_at_home = self.is_at_home(&answer);
                let problem = self.problem(answer, secrets).await;
                let may_be_hidden = matches!(problem, Problem::NotFound(_)) && is_at_home && !is_last;
                let asked = if may_be_hidden { self.at_the_door(claim, &authorization).await? } else { None };
                asked.ok_or(problem)?
            };
            authorization = self.respond(claim, &authorization, &refusal).await?;
            round += 1;
        }
    }

    /// What the registry asks for before it is known what for, if somebody with a login was told that something is not there
    /// and it has not been said how to log in: some registries hide from strangers what a login would show. It is asked
    /// once.
    async fn at_the_door(&self, claim: Claim<'_>, sent: &Authorization) -> Result<Option<Refusal>, Problem> {
        let registry = &self.remote.registry;
        let has_told_nothing = claim.credential.is_some() && matches!(sent, Authorization::Nothing);
        if !has_told_nothing || !registry.with_challenges(|challenges| challenges.may_hide_its_wish()) {
            return Ok(None);
        }
        let permit = registry.server.enter(claim.credential.map(Credential::id), self.context).await?;
        let request = Request::new(Method::GET, registry.api("")?);
        // Some registries have nothing to say there. That says nothing about how they are.
        let answer = visit(registry.transport.home(), request, permit, self.context).await?;
        let secrets = SentSecrets { credential: claim.credential, header: None };
        let status = answer.status();
        if self.is_challenge(&answer) {
            let refusal = Refusal::of(answer, secrets, self.context).await;
            return Ok(refusal.is_answerable().then_some(refusal));
        }
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(self.problem(answer, secrets).await);
        }
        registry.with_challenges(ChallengeCache::learn_open);
        Ok(None)
    }

    async fn respond(
        &self,
        claim: Claim<'_>,
        sent: &Authorization,
        refusal: &Refusal,
    ) -> Result<Authorization, Problem> {
        let (state, registry) = (&self.remote.state, &self.remote.registry);
        let respond =
            state.authenticator.respond(&state.registries, registry, claim, sent, refusal, self.context);
        respond.await
    }

    fn claim<'b>(&self, credential: Option<&'b Credential>) -> Claim<'b>
    where
        'a: 'b,
    {
        Claim { credential, scopes: self.scopes }
    }

    fn reads(&self) -> bool {
        matches!(*self.outgoing.method(), Method::GET | Method::HEAD)
    }

    fn is_at_home(&self, answer: &ApiResponse) -> bool {
        redirect::same_origin(self.remote.registry.endpoint.base(), answer.url())
    }

    fn is_challenge(&self, answer: &ApiResponse) -> bool {
        self.is_at_home(answer) && answer.status() == StatusCode::UNAUTHORIZED
    }

    async fn problem(&self, answer: ApiResponse, secrets: SentSecrets<'_>) -> Problem {
        let whose = if self.is_at_home(&answer) { String::new() } else { storage(answer.url()) };
        answer.into_problem(&whose, secrets, self.context).await
    }
}

/// A login that is not known hides what another one learnt: that nothing is there, or nobody answers.
fn weightier(told: Option<Problem>, problem: Problem) -> Problem {
    match (told, problem) {
        (Some(told @ Problem::Unauthorised(_)), Problem::Unauthorised(_)) => told,
        (None | Some(Problem::Unauthorised(_)), problem) => problem,
        (Some(told), _) => told,
    }
}
