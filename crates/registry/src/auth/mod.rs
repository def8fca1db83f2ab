//! Authentication to registries.
//!
//! The registry decides how, by a challenge. It is answered with a password (Basic), or with a token that the
//! registry's token server issued for the password (Bearer). Passwords go to no other server ([`realm`]), tokens are
//! shared and reused ([`token_cache`]), and requests are prepared from the last challenge ([`challenge_cache`]).

pub mod challenge;
pub(crate) mod challenge_cache;
mod negotiate;
pub mod realm;
pub(crate) mod redact;
pub mod scope;
mod token;
mod token_cache;
mod token_server;

use fairlead_domain::keyring::Credential;
use hyper::header::HeaderValue;
use tokio::time::timeout_at;
use url::Url;

use self::challenge::{Bearer, Challenge};
use self::challenge_cache::Scheme;
use self::redact::SentSecrets;
use self::scope::{Scope, combined};
use self::token::Token;
use self::token_cache::{CachedToken, TokenCache, TokenKey};
use self::token_server::TokenRequest;
use crate::error::{Detail, Problem};
use crate::registry::{Registries, Registry};
use crate::request::context::Context;
use crate::request::response::ApiResponse;
use crate::transport::address::Reach;
use crate::transport::redirect;

/// How a request is authenticated.
#[derive(Clone, Debug)]
pub(crate) enum Authorization {
    Nothing,
    Password(HeaderValue),
    Token(Box<Presented>),
    /// Not at all, because no token of the kind in the last challenge was issued.
    Denied(Box<Denied>),
}

/// A token that was not issued.
#[derive(Clone, Debug)]
pub(crate) struct Denied {
    key: TokenKey,
    pub(crate) problem: Problem,
}

/// A token and what it was requested for.
#[derive(Clone, Debug)]
pub(crate) struct Presented {
    token: Token,
    key: TokenKey,
    is_new: bool,
}

impl Authorization {
    pub(crate) fn header(&self) -> Option<&HeaderValue> {
        match self {
            Self::Nothing | Self::Denied(_) => None,
            Self::Password(header) => Some(header),
            Self::Token(presented) => Some(&presented.token.header),
        }
    }
}

/// The credential of a request, and the rights it needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) credential: Option<&'a Credential>,
    pub(crate) scopes: &'a [Scope],
}

#[derive(Debug, Default)]
pub(crate) struct Authenticator {
    tokens: TokenCache,
}

impl Authenticator {
    /// Prepares a request from the last challenge, which may have been for another repository.
    pub(crate) async fn prepare(
        &self,
        registries: &Registries,
        registry: &Registry,
        claim: Claim<'_>,
        context: &Context,
    ) -> Authorization {
        match registry.challenges(|challenges| challenges.scheme()) {
            None => Authorization::Nothing,
            Some(Scheme::Basic) => claim.credential.map_or(Authorization::Nothing, password),
            Some(Scheme::Bearer(server)) => {
                let scopes = registry.challenges(|challenges| challenges.scopes(claim.scopes));
                let source = TokenRequest { registries, registry, server: &server, scopes: &scopes };
                match self.token(source, claim.credential, None, context).await {
                    Ok(presented) => Authorization::Token(Box::new(presented)),
                    Err(problem) => {
                        Authorization::Denied(Box::new(Denied { key: source.key(claim.credential), problem }))
                    }
                }
            }
        }
    }

    /// Answers the challenge that refused `sent`; returns the refusal if there is nothing better to send.
    pub(crate) async fn respond(
        &self,
        registries: &Registries,
        registry: &Registry,
        claim: Claim<'_>,
        sent: &Authorization,
        refusal: &Refusal,
        context: &Context,
    ) -> Result<Authorization, Problem> {
        match challenge::preferred(&refusal.offered) {
            None => Err(Problem::Unauthorised(unsupported_schemes(&refusal.offered))),
            Some(Challenge::Basic) => {
                registry.challenges(challenge_cache::ChallengeCache::learn_basic);
                match (claim.credential, sent) {
                    (None, _) => {
                        Err(Problem::Unauthorised("it wants a password, and no credential matches".into()))
                    }
                    (Some(_), Authorization::Password(_)) => Err(refusal.problem.clone()),
                    (Some(credential), _) => Ok(password(credential)),
                }
            }
            Some(Challenge::Bearer(bearer)) => {
                let base = registry.endpoint.base();
                let target = redirect::follow(base, &refusal.url, &bearer.realm, refusal.reach, 0)
                    .map_err(|why| Problem::malformed(format!("its token server cannot be used: {why}")))?;
                let server = registry.challenges(|challenges| {
                    challenges.learn_bearer(target, refusal.reach, bearer, claim.scopes)
                });
                let scopes = combined(claim.scopes, bearer.scope.as_deref());
                let source = TokenRequest { registries, registry, server: &server, scopes: &scopes };
                let wanted = source.key(claim.credential);
                let rejected = match sent {
                    // The same token would be refused again, and so would the same request for one.
                    Authorization::Token(sent) if sent.is_final(&wanted, bearer) => {
                        return Err(refusal.problem.clone());
                    }
                    Authorization::Denied(denied) if denied.key == wanted => {
                        return Err(denied.problem.clone());
                    }
                    Authorization::Token(sent) => Some(&sent.token),
                    _ => None,
                };
                let presented = self.token(source, claim.credential, rejected, context).await?;
                Ok(Authorization::Token(Box::new(presented)))
            }
            Some(Challenge::Other(scheme)) => Err(Problem::Unauthorised(scheme.as_str().into())),
        }
    }

    async fn token(
        &self,
        source: TokenRequest<'_>,
        credential: Option<&Credential>,
        rejected: Option<&Token>,
        context: &Context,
    ) -> Result<Presented, Problem> {
        let key = source.key(credential);
        let cached = self.tokens.get(&key, rejected, source.fetch(credential, context));
        match timeout_at(context.deadline, cached).await {
            Ok(cached) => cached.map(|CachedToken { token, is_new }| Presented { token, key, is_new }),
            Err(_) => Err(Problem::TimedOut("its token server was asked first".into())),
        }
    }
}

impl Presented {
    /// Whether a refusal of this token is final: it was issued just now for this very scope, or the registry says that
    /// the token is valid but its scope is not enough.
    fn is_final(&self, wanted: &TokenKey, challenge: &Bearer) -> bool {
        self.key == *wanted && (self.is_new || challenge.error.as_deref() == Some("insufficient_scope"))
    }
}

/// A 401 and its challenges.
#[derive(Debug)]
pub(crate) struct Refusal {
    offered: Vec<Challenge>,
    url: Url,
    reach: Option<Reach>,
    problem: Problem,
}

impl Refusal {
    /// Drops the permit of the response, because a request for a token takes one too.
    pub(crate) async fn of(response: ApiResponse, secrets: SentSecrets<'_>, context: &Context) -> Self {
        Self {
            offered: challenge::challenges(response.headers()),
            url: response.url().clone(),
            reach: response.reach(),
            problem: response.into_problem("", secrets, context).await,
        }
    }

    /// Whether it offers a scheme that is supported.
    pub(crate) fn is_answerable(&self) -> bool {
        challenge::preferred(&self.offered).is_some()
    }
}

fn password(credential: &Credential) -> Authorization {
    match basic(credential) {
        Some(header) => Authorization::Password(header),
        None => Authorization::Nothing,
    }
}

fn basic(credential: &Credential) -> Option<HeaderValue> {
    let text = zeroize::Zeroizing::new(format!("Basic {}", *credential.basic()));
    let mut header = HeaderValue::from_str(&text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

fn unsupported_schemes(offered: &[Challenge]) -> Detail {
    let names: Vec<&str> = offered
        .iter()
        .map(|challenge| match challenge {
            Challenge::Basic => "Basic",
            Challenge::Bearer(_) => "Bearer without a realm",
            Challenge::Other(scheme) => scheme,
        })
        .collect();
    if names.is_empty() {
        return "it does not say how to authenticate".into();
    }
    format!("unsupported authentication scheme: {}", names.join(", ")).into()
}
