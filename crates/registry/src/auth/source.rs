//! Getting a token from the server that issues them.

use fairlead_domain::keyring::Credential;
use reqwest::{
    Method, Request, StatusCode, Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use tokio::time::Instant;

use super::{basic, cache::TokenKey, memory::TokenServer, realm, scope::Scope, token::Token};
use crate::{
    answer::Answer,
    bounds,
    context::Context,
    error::{Detail, Problem},
    exchange::exchange,
    peer::Trial,
    registry::{Registries, Registry},
    transport::failure::Failure,
};

/// The user name by which docker's credential helpers mark a password as an identity token.
const IDENTITY_TOKEN_USER: &[u8] = b"<token>";
/// How we introduce ourselves to token servers, which show it in their lists of sessions.
const CLIENT_ID: &str = "fairlead";

/// Everything needed to get one token.
#[derive(Clone, Copy)]
pub(super) struct TokenSource<'a> {
    pub(super) registries: &'a Registries,
    pub(super) registry: &'a Registry,
    pub(super) server: &'a TokenServer,
    pub(super) scopes: &'a [Scope],
}

impl TokenSource<'_> {
    pub(super) fn key(&self, credential: Option<&Credential>) -> TokenKey {
        TokenKey {
            realm: self.server.url.to_string(),
            service: self.server.service.clone(),
            scope: self.scope_text(),
            credential: credential.map(Credential::id),
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
        let Some(credential) = credential else {
            return self.ask(self.by_get(None)?, None, context).await?.token(context).await;
        };
        let base = self.registry.endpoint.base();
        if !realm::may_have_password(base, &self.server.url, &self.registry.settings.token_hosts) {
            let host = self.server.url.host_str().unwrap_or_default();
            return Err(Problem::Unauthorised(
                format!(
                    "its token server {host} is not part of it and gets no password; \
                     if it is, list it in registries.<host>.tokenHosts"
                )
                .into(),
            ));
        }
        if credential.username() == IDENTITY_TOKEN_USER {
            let form = [("grant_type", "refresh_token".as_bytes()), ("refresh_token", credential.password())];
            return self.ask(self.by_post(&form)?, Some(credential), context).await?.token(context).await;
        }
        let answer = self.ask(self.by_get(Some(credential))?, Some(credential), context).await?;
        // Servers that only know the newer form of the exchange do not know the older one's method or path.
        if !matches!(answer.status(), StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            return answer.token(context).await;
        }
        let form = [
            ("grant_type", "password".as_bytes()),
            ("username", credential.username()),
            ("password", credential.password()),
        ];
        let newer = self.ask(self.by_post(&form)?, Some(credential), context).await?;
        if newer.status().is_success() { newer.token(context).await } else { answer.token(context).await }
    }

    async fn ask(
        &self,
        request: Request,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<Answer, Problem> {
        let account = credential.map(Credential::id);
        let transport = &self.registry.transport;
        if self.server.at_home {
            let trial = || self.registry.trial();
            let peer = &self.registry.peer;
            return Ok(exchange(peer, transport.home(), transport, request, account, context, &trial).await?);
        }
        let judged = transport.judge(&self.server.url, self.server.reach).await;
        judged.map_err(|forbidden| of_token_server(Problem::of_failure(Failure::Forbidden(forbidden))))?;
        let client = transport.away(&self.server.url, self.server.reach)?;
        let peer = self.registries.token_server(&self.server.url);
        let trial = || Trial { client: client.clone(), url: origin(&self.server.url), other_scheme: None };
        let answer = exchange(&peer, client, transport, request, account, context, &trial).await;
        answer.map_err(|fault| of_token_server(fault.problem))
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
            request.headers_mut().insert(AUTHORIZATION, header);
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
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        *request.body_mut() = Some(form.finish().into());
        Ok(request)
    }
}

fn origin(url: &Url) -> Url {
    url.join("/").unwrap_or_else(|_| url.clone())
}

/// A token server's failure must not read as the registry's.
fn of_token_server(problem: Problem) -> Problem {
    let told = |detail: &Detail| {
        Detail::from(format!("its token server: {}", detail.as_str().unwrap_or("no answer")))
    };
    match problem {
        Problem::Unreachable(detail) => Problem::Unreachable(told(&detail)),
        Problem::TimedOut(detail) => Problem::TimedOut(told(&detail)),
        Problem::Tls(detail) => Problem::Tls(told(&detail)),
        other => other,
    }
}

impl Answer {
    async fn token(self, context: &Context) -> Result<Token, Problem> {
        if !self.status().is_success() {
            return Err(self.into_problem("its token server", context).await);
        }
        let body = self.bytes("the token", bounds::TOKEN_ANSWER, context).await?;
        Token::read(&body, Instant::now())
    }
}
