//! Credential selection and handling of 401.
//!
//! Several credentials may match, and a registry says only in a challenge how it wants to be authenticated to. Requests
//! are prepared from its last challenge. That is a guess, since the challenge may have been for another repository:
//! where it fails, the request is repeated without credentials, and the challenge that follows is answered. A
//! credential that was refused is not sent again, and a refusal stands unless the registry itself says otherwise.

use std::sync::atomic::Ordering;

use fairlead_domain::keyring::Credential;
use hyper::{Method, StatusCode};

use super::challenge_cache::ChallengeCache;
use super::redact::SentSecrets;
use super::scope::Scope;
use super::{Authorization, Claim, Denied, Refusal};
use crate::error::Problem;
use crate::repository::{RepositoryClient, UNDECIDED, storage};
use crate::request::ApiRequest;
use crate::request::context::Context;
use crate::request::response::ApiResponse;
use crate::request::send::send_elsewhere;
use crate::transport::http::Request;
use crate::transport::redirect;

/// Rounds of challenge and answer: one to learn the challenge, one more if a token has expired.
const MOST_ROUNDS: usize = 3;

impl RepositoryClient {
    /// Sends a request and returns its response if that is a success.
    pub(crate) async fn call(&self, request: &ApiRequest, context: &Context) -> Result<ApiResponse, Problem> {
        let mut scopes = self.scopes.to_vec();
        scopes.extend(request.extra_scope.clone());
        let mut call = Call {
            remote: self,
            request,
            context,
            scopes: &scopes,
            denied: Vec::new(),
            was_sent: false,
            was_anonymous: false,
        };
        match call.with_each_credential().await {
            Err(problem) if call.guess_may_be_wrong(&problem) => Box::pin(call.anonymously(problem)).await,
            outcome => outcome,
        }
    }
}

struct Call<'a> {
    remote: &'a RepositoryClient,
    request: &'a ApiRequest,
    context: &'a Context,
    scopes: &'a [Scope],
    /// Credentials for which no token of the kind in the last challenge was issued.
    denied: Vec<(Option<&'a Credential>, Box<Denied>)>,
    was_sent: bool,
    was_anonymous: bool,
}

impl<'a> Call<'a> {
    /// Tries credentials until one works, the one that did before first. If none does, the first problem is returned
    /// that says more than that a credential is not known.
    async fn with_each_credential(&mut self) -> Result<ApiResponse, Problem> {
        let credentials: &'a [Credential] = self.remote.credentials();
        if credentials.is_empty() {
            return Box::pin(self.call_as(None)).await;
        }
        let working = &self.remote.working;
        let proven = if self.request.is_read() { &working.reading } else { &working.writing };
        let position_proven = proven.load(Ordering::Relaxed);
        let preferred = match position_proven {
            UNDECIDED => working.reading.load(Ordering::Relaxed),
            position => position,
        };
        let mut order: Vec<(usize, &Credential)> = credentials.iter().enumerate().collect();
        order.sort_by_key(|(position, _)| *position != preferred);
        let mut first = None;
        for (position, credential) in order {
            let problem = match Box::pin(self.call_as(Some(credential))).await {
                Ok(response) => {
                    proven.store(position, Ordering::Relaxed);
                    return Ok(response);
                }
                Err(problem) => problem,
            };
            let another_may_work = match &problem {
                Problem::Unauthorised(_) | Problem::Forbidden(_) => true,
                // A credential that worked before is believed when it does not find something.
                other => position != position_proven && other.depends_on_credential(),
            };
            first = Some(more_telling(first, problem));
            if !another_may_work || !self.request.is_repeatable() {
                break;
            }
        }
        Err(first.unwrap_or_else(|| Problem::Unauthorised("no credential is left to try".into())))
    }

    /// Sends the request, prepared from the registry's last challenge.
    async fn call_as(&mut self, credential: Option<&'a Credential>) -> Result<ApiResponse, Problem> {
        // An entry without user and password cannot be sent.
        let credential = credential.filter(|credential| !credential.is_blank());
        let claim = self.claim(credential);
        let is_open = self.request.is_read() && self.remote.working.anonymous.load(Ordering::Relaxed);
        let authorization = if is_open {
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
        self.was_anonymous |= authorization.header().is_none();
        self.answer_challenges(claim, authorization).await
    }

    /// Whether a failure may come from a challenge that was for something else.
    fn guess_may_be_wrong(&self, problem: &Problem) -> bool {
        let is_refused = matches!(problem, Problem::Unauthorised(_) | Problem::Forbidden(_));
        // A credential that may not write was refused for good: writing anonymously is not wanted.
        let is_open = !self.was_sent || (is_refused && self.request.is_read() && !self.was_anonymous);
        is_open && self.request.is_repeatable() && !self.context.has_passed()
    }

    /// Sends the request without credentials after all of them were `refused`. A challenge is answered if that leads to
    /// something that was not refused yet.
    async fn anonymously(&mut self, refused: Problem) -> Result<ApiResponse, Problem> {
        let first = self.remote.credentials().iter().find(|credential| !credential.is_blank());
        let nothing = Authorization::Nothing;
        let response = self.remote.send_retrying(self.request, &nothing, first, self.context).await?;
        if response.status().is_success() {
            self.remote.working.anonymous.fetch_or(self.request.is_read(), Ordering::Relaxed);
            return Ok(response);
        }
        let secrets = SentSecrets { credential: first, header: None };
        if !self.is_challenge(&response) {
            let problem = self.problem(response, secrets).await;
            // Registries hide from anonymous callers what a credential would show.
            let is_hidden = first.is_some() && problem.is_absence();
            return Err(if is_hidden { refused } else { problem });
        }
        let refusal = Refusal::of(response, secrets, self.context).await;
        let mut first_problem = self.was_sent.then(|| refused.clone());
        for (credential, denied) in std::mem::take(&mut self.denied) {
            let claim = self.claim(credential);
            let problem = match self.respond(claim, &Authorization::Denied(denied), &refusal).await {
                Ok(authorization) => match self.answer_challenges(claim, authorization).await {
                    Ok(response) => return Ok(response),
                    Err(problem) => problem,
                },
                Err(problem) => problem,
            };
            first_problem = Some(more_telling(first_problem, problem));
        }
        Err(first_problem.unwrap_or(refused))
    }

    /// Sends the request, and again with what a challenge asks for, as long as there is something better to send.
    async fn answer_challenges(
        &self,
        claim: Claim<'_>,
        mut authorization: Authorization,
    ) -> Result<ApiResponse, Problem> {
        let mut round = 1;
        loop {
            let sent =
                self.remote.send_retrying(self.request, &authorization, claim.credential, self.context);
            let response = sent.await?;
            if response.status().is_success() {
                return Ok(response);
            }
            let secrets = SentSecrets { credential: claim.credential, header: authorization.header() };
            let is_last = round == MOST_ROUNDS || !self.request.is_repeatable();
            let refusal = if self.is_challenge(&response) && !is_last {
                Refusal::of(response, secrets, self.context).await
            } else {
                let is_own = self.is_registrys_own(&response);
                let problem = self.problem(response, secrets).await;
                let may_be_hidden = matches!(problem, Problem::NotFound(_)) && is_own && !is_last;
                let hidden =
                    if may_be_hidden { self.hidden_challenge(claim, &authorization).await? } else { None };
                hidden.ok_or(problem)?
            };
            authorization = self.respond(claim, &authorization, &refusal).await?;
            round += 1;
        }
    }

    /// The challenge at `/v2/` of a registry that answered 404 to an anonymous request although there is a credential:
    /// some hide from anonymous callers what a credential would show. Requested once for each registry.
    async fn hidden_challenge(
        &self,
        claim: Claim<'_>,
        sent: &Authorization,
    ) -> Result<Option<Refusal>, Problem> {
        let registry = &self.remote.registry;
        let is_anonymous = claim.credential.is_some() && matches!(sent, Authorization::Nothing);
        if !is_anonymous || !registry.challenges(|challenges| challenges.may_be_hidden()) {
            return Ok(None);
        }
        let permit = registry.server.enter(claim.credential.map(Credential::id), self.context).await?;
        let request = Request::new(Method::GET, registry.api("")?);
        // Some registries do not serve this page, which says nothing about their health.
        let response = send_elsewhere(registry.transport.home(), request, permit, self.context).await?;
        let secrets = SentSecrets { credential: claim.credential, header: None };
        let status = response.status();
        if self.is_challenge(&response) {
            let refusal = Refusal::of(response, secrets, self.context).await;
            return Ok(refusal.is_answerable().then_some(refusal));
        }
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(self.problem(response, secrets).await);
        }
        registry.challenges(ChallengeCache::learn_open);
        Ok(None)
    }

    async fn respond(
        &self,
        claim: Claim<'_>,
        sent: &Authorization,
        refusal: &Refusal,
    ) -> Result<Authorization, Problem> {
        let (state, registry) = (&self.remote.state, &self.remote.registry);
        let authenticator = &state.authenticator;
        authenticator.respond(&state.registries, registry, claim, sent, refusal, self.context).await
    }

    fn claim<'b>(&self, credential: Option<&'b Credential>) -> Claim<'b>
    where
        'a: 'b,
    {
        Claim { credential, scopes: self.scopes }
    }

    fn is_registrys_own(&self, response: &ApiResponse) -> bool {
        redirect::same_origin(self.remote.registry.endpoint.base(), response.url())
    }

    fn is_challenge(&self, response: &ApiResponse) -> bool {
        self.is_registrys_own(response) && response.status() == StatusCode::UNAUTHORIZED
    }

    async fn problem(&self, response: ApiResponse, secrets: SentSecrets<'_>) -> Problem {
        let whose = if self.is_registrys_own(&response) { String::new() } else { storage(response.url()) };
        response.into_problem(&whose, secrets, self.context).await
    }
}

/// An unknown credential says less than what another one learnt: that nothing is there, or that there is no answer.
fn more_telling(first: Option<Problem>, problem: Problem) -> Problem {
    match (first, problem) {
        (Some(first @ Problem::Unauthorised(_)), Problem::Unauthorised(_)) => first,
        (None | Some(Problem::Unauthorised(_)), problem) => problem,
        (Some(first), _) => first,
    }
}
