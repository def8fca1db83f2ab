//! Getting a token from the server that issues them.

use std::time::Duration;

use bytes::Bytes;
use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Host;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, StatusCode};
use tokio::time::Instant;
use url::Url;

use super::challenge_cache::TokenServer;
use super::redact::SentSecrets;
use super::scope::Scope;
use super::token::Token;
use super::token_cache::TokenKey;
use super::{basic, realm};
use crate::error::Problem;
use crate::limits::server::Trial;
use crate::registry::{Registries, Registry};
use crate::request::context::Context;
use crate::request::response::ApiResponse;
use crate::request::send::{SendError, exchange, with_retries};
use crate::size_limits;
use crate::transport::failure::Failure;
use crate::transport::http::Request;

/// The user name by which docker's credential helpers mark a password as an identity token.
const IDENTITY_TOKEN_USER: &[u8] = b"<token>";
/// How the token server is called in messages: its failures must not read as the registry's.
const TOKEN_SERVER: &str = "its token server";
/// How we introduce ourselves to token servers, which show it in their lists of sessions.
const CLIENT_ID: &str = "fairlead";

/// Everything needed to get one token.
#[derive(Clone, Copy)]
pub(super) struct TokenRequest<'a> {
    pub(super) registries: &'a Registries,
    pub(super) registry: &'a Registry,
    pub(super) server: &'a TokenServer,
    pub(super) scopes: &'a [Scope],
}

impl TokenRequest<'_> {
    pub(super) fn key(&self, credential: Option<&Credential>) -> TokenKey {
        TokenKey {
            realm: self.server.url.to_string(),
            service: self.server.service.clone(),
            scope: self.scope_text(),
            credential: credential.map(Credential::id),
            cause: self.registry.cause(),
        }
    }

    fn scope_text(&self) -> String {
        self.scopes.iter().map(Scope::to_string).collect::<Vec<_>>().join(" ")
    }

    pub(super) async fn fetch(
        &self,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<Token, Problem> {
        let context = &context.hurried(size_limits::TOKEN_TIME);
        let Some(credential) = credential else {
            return Ok(self.get(None, context).await?);
        };
        let base = self.registry.endpoint.base();
        let plain_http = Host::parse(&realm::authority(&self.server.url))
            .is_ok_and(|host| self.registries.settings_of(&host).plain_http);
        let token_hosts = &self.registry.settings.token_hosts;
        realm::may_have_password(base, &self.server.url, token_hosts, plain_http)
            .map_err(|withheld| Problem::Unauthorised(withheld.to_string().into()))?;
        let whom = Some(credential);
        if credential.username() == IDENTITY_TOKEN_USER {
            let form = [("grant_type", "refresh_token".as_bytes()), ("refresh_token", credential.password())];
            return Ok(self.once(self.by_post(&form)?, whom, context).await?);
        }
        // Servers that only know the newer form of the exchange do not know the older one's method or path.
        let denial = match self.get(whom, context).await {
            Err(denial) if denial.is_by(&[StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED]) => denial,
            outcome => return Ok(outcome?),
        };
        let form = [
            ("grant_type", "password".as_bytes()),
            ("username", credential.username()),
            ("password", credential.password()),
        ];
        match self.once(self.by_post(&form)?, whom, context).await {
            Err(newer) if newer.status.is_some() => Err(denial.problem),
            outcome => Ok(outcome?),
        }
    }

    /// Asks in the older way, which changes nothing and is repeated as other such requests are.
    async fn get(&self, credential: Option<&Credential>, context: &Context) -> Result<Token, Denial> {
        let passes_in = |outcome: &Result<Token, Denial>| outcome.as_ref().err()?.passes_in;
        let attempt = || async { self.once(self.by_get(credential)?, credential, context).await };
        with_retries(context, passes_in, attempt).await
    }

    async fn once(
        &self,
        request: Request,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<Token, Denial> {
        let answer = self.ask(request, credential, context).await?;
        let (status, passes_in) = (answer.status(), answer.passes_in());
        if !status.is_success() {
            let secrets = SentSecrets { credential, header: None };
            let problem = match answer.into_problem(TOKEN_SERVER, secrets, context).await {
                // What the registry itself thinks of the request is not known, nor whether the image is there.
                Problem::Rejected { detail, .. } | Problem::NotFound(detail) => Problem::Malformed(detail),
                problem => problem,
            };
            return Err(Denial { problem, passes_in, status: Some(status) });
        }
        let body =
            answer.bytes("the token", size_limits::TOKEN_ANSWER, context).await.map_err(|problem| {
                // What broke off may be whole the next time.
                let passes_in = matches!(problem, Problem::Unreachable(_)).then_some(Duration::ZERO);
                Denial { passes_in, ..problem.of(TOKEN_SERVER).into() }
            })?;
        Ok(Token::read(&body, Instant::now())?)
    }

    async fn ask(
        &self,
        request: Request,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<ApiResponse, SendError> {
        let account = credential.map(Credential::id);
        let transport = &self.registry.transport;
        if self.server.at_home {
            let trial = || self.registry.trial();
            let server = &self.registry.server;
            return exchange(server, transport.home(), request, account, context, &trial).await;
        }
        let judged = transport.judge(&self.server.url, self.server.reach).await;
        judged.map_err(|forbidden| Problem::of_failure(Failure::Forbidden(forbidden)).of(TOKEN_SERVER))?;
        let pool = transport.away(&self.server.url, self.server.reach);
        let server = self.registry.token_server(&self.server.url);
        let trial = || Trial { pool: pool.unpooled(), url: origin(&self.server.url), other_scheme: None };
        let answer = exchange(&server, pool, request, account, context, &trial).await;
        answer.map_err(|fault| fault.of(TOKEN_SERVER))
    }

    fn by_get(&self, credential: Option<&Credential>) -> Result<Request, Problem> {
        let mut url = self.server.url.clone();
        {
            let mut query = url.query_pairs_mut();
            if let Some(service) = &self.server.service {
                query.append_pair("service", service);
            }
            for scope in self.scopes {
                query.append_pair("scope", &scope.to_string());
            }
            if let Some(account) =
                credential.and_then(|credential| std::str::from_utf8(credential.username()).ok())
            {
                query.append_pair("account", account);
            }
            query.append_pair("client_id", CLIENT_ID);
        }
        let mut request = Request::new(Method::GET, url);
        if let Some(credential) = credential {
            let header = basic(credential)
                .ok_or_else(|| Problem::Unauthorised("the password cannot be sent in a header".into()))?;
            request.headers.insert(AUTHORIZATION, header);
        }
        Ok(request)
    }

    fn by_post(&self, secrets: &[(&str, &[u8])]) -> Result<Request, Problem> {
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        for (name, value) in secrets {
            let value = std::str::from_utf8(value).map_err(|_| {
                Problem::Unauthorised("the password is not text and cannot be sent in a form".into())
            })?;
            form.append_pair(name, value);
        }
        if let Some(service) = &self.server.service {
            form.append_pair("service", service);
        }
        form.append_pair("client_id", CLIENT_ID);
        form.append_pair("scope", &self.scope_text());
        let mut request = Request::new(Method::POST, self.server.url.clone());
        request.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        request.body = Bytes::from(form.finish()).into();
        Ok(request)
    }
}

fn origin(url: &Url) -> Url {
    url.join("/").unwrap_or_else(|_| url.clone())
}

/// Why no token was given.
struct Denial {
    problem: Problem,
    /// After how long the same request may fare better, if that is likely.
    passes_in: Option<Duration>,
    /// With which the server refused.
    status: Option<StatusCode>,
}

impl Denial {
    fn is_by(&self, statuses: &[StatusCode]) -> bool {
        self.status.is_some_and(|status| statuses.contains(&status))
    }
}

impl From<Problem> for Denial {
    fn from(problem: Problem) -> Self {
        Self { problem, passes_in: None, status: None }
    }
}

impl From<SendError> for Denial {
    fn from(fault: SendError) -> Self {
        Self { passes_in: fault.passes_in(), problem: fault.problem, status: None }
    }
}

impl From<Denial> for Problem {
    fn from(denial: Denial) -> Self {
        denial.problem
    }
}
