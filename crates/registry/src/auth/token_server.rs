//! Requests for tokens.

use std::sync::Arc;
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
use crate::limits::server::{Trial, TrialTarget};
use crate::registry::{Registries, Registry};
use crate::request::context::Context;
use crate::request::response::ApiResponse;
use crate::request::send::{SendError, send_limited, with_retries};
use crate::size_limits;
use crate::transport::failure::Failure;
use crate::transport::http::Request;

/// The user name with which docker's credential helpers mark a password as an identity token.
const IDENTITY_TOKEN_USER: &[u8] = b"<token>";
/// The token server's name in messages: its failures must not read as the registry's.
const TOKEN_SERVER: &str = "its token server";
/// Token servers show it in their lists of sessions.
const CLIENT_ID: &str = "fairlead";

/// Everything that one token needs.
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
        let context = &context.urgent(size_limits::TOKEN_TIME);
        let Some(credential) = credential else {
            return Ok(self.get(None, context).await?);
        };
        let base = self.registry.endpoint.base();
        let plain_http = Host::parse(&realm::authority(&self.server.url))
            .is_ok_and(|host| self.registries.settings_of(&host).plain_http);
        let token_hosts = &self.registry.settings.token_hosts;
        realm::may_have_password(base, &self.server.url, token_hosts, plain_http)
            .map_err(|withheld| Problem::Unauthorised(withheld.to_string().into()))?;
        if credential.username() == IDENTITY_TOKEN_USER {
            let form = [("grant_type", "refresh_token".as_bytes()), ("refresh_token", credential.password())];
            return Ok(self.send(self.by_post(&form)?, Some(credential), context).await?);
        }
        // Servers that only support the newer OAuth 2 form reject the older form's method or path.
        let denial = match self.get(Some(credential), context).await {
            Err(denial) if denial.is_by(&[StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED]) => denial,
            outcome => return Ok(outcome?),
        };
        let form = [
            ("grant_type", "password".as_bytes()),
            ("username", credential.username()),
            ("password", credential.password()),
        ];
        match self.send(self.by_post(&form)?, Some(credential), context).await {
            Err(newer) if newer.status.is_some() => Err(denial.problem),
            outcome => Ok(outcome?),
        }
    }

    /// Requests a token in the older form, a GET, with retries.
    async fn get(&self, credential: Option<&Credential>, context: &Context) -> Result<Token, Denial> {
        let retry_after = |outcome: &Result<Token, Denial>| outcome.as_ref().err()?.retry_after;
        let attempt = || async { self.send(self.by_get(credential)?, credential, context).await };
        with_retries(context, retry_after, attempt).await
    }

    async fn send(
        &self,
        request: Request,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<Token, Denial> {
        let response = self.send_limited(request, credential, context).await?;
        let (status, retry_after) = (response.status(), response.retry_after());
        if !status.is_success() {
            let secrets = SentSecrets { credential, header: None };
            let problem = match response.into_problem(TOKEN_SERVER, secrets, context).await {
                // This is not the registry's answer: whether the image is there is not known.
                Problem::Rejected { detail, .. } | Problem::NotFound(detail) => Problem::Malformed(detail),
                problem => problem,
            };
            return Err(Denial { problem, retry_after, status: Some(status) });
        }
        let body = response.bytes("the token", size_limits::TOKEN_ANSWER, context).await;
        let body = body.map_err(|problem| {
            // A body that broke off may be whole the next time.
            let retry_after = matches!(problem, Problem::Unreachable(_)).then_some(Duration::ZERO);
            Denial { retry_after, ..problem.of(TOKEN_SERVER).into() }
        })?;
        Ok(Token::read(&body, Instant::now())?)
    }

    async fn send_limited(
        &self,
        request: Request,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<ApiResponse, SendError> {
        let account = credential.map(Credential::id);
        let transport = &self.registry.transport;
        if self.server.at_home {
            let Registry { server, trial, .. } = self.registry;
            return send_limited(server, transport.home(), request, account, context, trial).await;
        }
        let judged = transport.judge(&self.server.url, self.server.reach).await;
        judged.map_err(|forbidden| Problem::of_failure(Failure::Forbidden(forbidden)).of(TOKEN_SERVER))?;
        let pool = transport.away(&self.server.url, self.server.reach);
        let server = self.registry.token_server(&self.server.url);
        let target = TrialTarget::Url(origin(&self.server.url));
        let trial = Arc::new(Trial { pool: pool.unpooled(), target });
        let response = send_limited(&server, pool, request, account, context, &trial).await;
        response.map_err(|error| error.of(TOKEN_SERVER))
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

/// Why no token was issued.
struct Denial {
    problem: Problem,
    /// After which pause a retry makes sense, if at all.
    retry_after: Option<Duration>,
    /// The status of the server's refusal.
    status: Option<StatusCode>,
}

impl Denial {
    fn is_by(&self, statuses: &[StatusCode]) -> bool {
        self.status.is_some_and(|status| statuses.contains(&status))
    }
}

impl From<Problem> for Denial {
    fn from(problem: Problem) -> Self {
        Self { problem, retry_after: None, status: None }
    }
}

impl From<SendError> for Denial {
    fn from(error: SendError) -> Self {
        Self { retry_after: error.retry_after(), problem: error.problem, status: None }
    }
}

impl From<Denial> for Problem {
    fn from(denial: Denial) -> Self {
        denial.problem
    }
}
