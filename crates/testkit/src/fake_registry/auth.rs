//! Who is let in, and the tokens that let them in.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::handler::{Asked, Reply, Target};
use super::issuer::Issuer;

/// The way a registry asks who is there.
#[derive(Clone, Debug, Default)]
pub enum Auth {
    #[default]
    Open,
    /// Users and passwords, sent with each request.
    Basic(HashMap<String, String>),
    /// Tokens, given for a user and password or for nothing.
    Bearer(Bearer),
}

/// A registry with a token endpoint.
#[derive(Clone, Debug)]
pub struct Bearer {
    /// Empty: every caller gets a token.
    pub users: HashMap<String, String>,
    /// Identity tokens that are taken in place of a password.
    pub refresh_tokens: Vec<String>,
    /// Whether a caller without a credential gets tokens to pull with, too.
    pub anonymous_pull: bool,
    /// The address named in challenges; by default `/token` of the registry itself.
    pub realm: Option<String>,
    /// Takes POST only, as newer token servers do.
    pub post_only: bool,
    pub lifetime: Option<Duration>,
    /// The name of every repository in scopes is preceded by this, as behind some proxies.
    pub scope_prefix: String,
    /// Signs the tokens, for registries that are not this one.
    pub issuer: Option<Arc<Issuer>>,
}

/// Tokens that were given.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    good: HashMap<String, Token>,
    given: usize,
}

impl Tokens {
    pub(super) fn revoke(&mut self) {
        self.good.clear();
    }

    /// Whose password or token a header holds.
    pub(super) fn user_of(&self, authorization: &str) -> String {
        let token = authorization.strip_prefix("Bearer ").and_then(|token| self.good.get(token));
        let user = token.map(|token| token.user.clone());
        user.or_else(|| Some(password_of(authorization)?.0)).unwrap_or_default()
    }
}

#[derive(Clone, Debug)]
struct Token {
    user: String,
    scopes: Vec<String>,
    ends: Option<Instant>,
}

impl Default for Bearer {
    fn default() -> Self {
        Self {
            users: HashMap::new(),
            refresh_tokens: Vec::new(),
            anonymous_pull: true,
            realm: None,
            post_only: false,
            lifetime: None,
            scope_prefix: String::new(),
            issuer: None,
        }
    }
}

impl Bearer {
    /// Tokens for every caller.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tokens for this user and the others added, and for no others.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.users.insert(name.to_owned(), password.to_owned());
        self.anonymous_pull = false;
        self
    }
}

impl Auth {
    pub fn basic(name: &str, password: &str) -> Self {
        Self::Basic(HashMap::from([(name.to_owned(), password.to_owned())]))
    }

    pub fn bearer(bearer: Bearer) -> Self {
        Self::Bearer(bearer)
    }

    /// The refusal of a request, or nothing if it may pass.
    pub(super) fn refuse(
        &self,
        tokens: &Tokens,
        url: &str,
        target: &Target,
        asked: &Asked<'_>,
    ) -> Option<Reply> {
        let sent = asked.header("authorization");
        match self {
            Self::Open => None,
            Self::Basic(users) => {
                if password_of(sent).is_some_and(|(user, password)| users.get(&user) == Some(&password)) {
                    return None;
                }
                Some(unauthorized("Basic realm=\"fake, with a comma\""))
            }
            Self::Bearer(bearer) => {
                let needed = bearer.scope(asked.method, target);
                let token = sent.strip_prefix("Bearer ").and_then(|token| tokens.good.get(token));
                let fresh = token.filter(|token| token.ends.is_none_or(|ends| ends > Instant::now()));
                if fresh.is_some_and(|token| needed.as_ref().is_none_or(|needed| token.covers(needed))) {
                    return None;
                }
                let realm = bearer.realm.clone().unwrap_or_else(|| format!("{url}/token"));
                let scope = needed.map(|needed| format!(",scope=\"{needed}\"")).unwrap_or_default();
                let error = if sent.is_empty() { "" } else { ",error=\"invalid_token\"" };
                Some(unauthorized(&format!("Bearer realm=\"{realm}\",service=\"fake\"{scope}{error}")))
            }
        }
    }

    /// Answers a request for a token.
    pub(super) fn token(&self, tokens: &mut Tokens, asked: &Asked<'_>) -> Reply {
        let Self::Bearer(bearer) = self else {
            return Reply::status(StatusCode::NOT_FOUND);
        };
        let sent = asked.header("authorization");
        let mut scopes = Vec::new();
        let mut field = HashMap::new();
        let posted = String::from_utf8_lossy(&asked.body);
        for (name, value) in form(if asked.method == "POST" { &posted } else { asked.query }) {
            match name.as_str() {
                "scope" => scopes.extend(value.split(' ').map(str::to_owned)),
                _ => drop(field.insert(name, value)),
            }
        }
        let known = |user: Option<&String>, password: Option<&String>| {
            bearer.users.is_empty()
                || user.is_some_and(|user| bearer.users.get(user) == password && password.is_some())
        };
        let allowed = match (asked.method, field.get("grant_type").map(String::as_str)) {
            ("GET", _) if bearer.post_only => return Reply::status(StatusCode::METHOD_NOT_ALLOWED),
            ("GET", _) => match password_of(sent) {
                Some((user, password)) => known(Some(&user), Some(&password)),
                None => bearer.users.is_empty() || bearer.anonymous_pull,
            },
            ("POST", Some("password")) => known(field.get("username"), field.get("password")),
            ("POST", Some("refresh_token")) => {
                field.get("refresh_token").is_some_and(|token| bearer.refresh_tokens.contains(token))
            }
            _ => return Reply::status(StatusCode::METHOD_NOT_ALLOWED),
        };
        if !allowed {
            return unauthorized("Basic realm=\"tokens\"");
        }
        tokens.given += 1;
        let service = field.get("service").map(String::as_str).unwrap_or_default();
        let signed =
            bearer.issuer.as_ref().and_then(|issuer| issuer.token(service, &scopes, bearer.lifetime).ok());
        let token = signed.unwrap_or_else(|| format!("token-{}", tokens.given));
        let ends = bearer.lifetime.map(|lifetime| Instant::now() + lifetime);
        let user = password_of(sent).map(|(user, _)| user).or(field.get("username").cloned());
        tokens.good.insert(token.clone(), Token { user: user.unwrap_or_default(), scopes, ends });
        let mut answer = json!({"token": token, "access_token": token});
        if let (Some(lifetime), Some(fields)) = (bearer.lifetime, answer.as_object_mut()) {
            fields.insert("expires_in".to_owned(), json!(lifetime.as_secs_f64()));
        }
        Reply::json(StatusCode::OK, &answer)
    }
}

impl Bearer {
    /// What a token must allow for this request.
    fn scope(&self, method: &str, target: &Target) -> Option<String> {
        let actions = match method {
            "GET" | "HEAD" => "pull",
            "DELETE" => "delete",
            _ => "pull,push",
        };
        target.repository().map(|name| format!("repository:{}{name}:{actions}", self.scope_prefix))
    }
}

impl Token {
    fn covers(&self, needed: &str) -> bool {
        let Some((resource, actions)) = needed.rsplit_once(':') else {
            return false;
        };
        actions.split(',').all(|action| {
            self.scopes.iter().filter_map(|scope| scope.rsplit_once(':')).any(|(held, granted)| {
                held == resource && granted.split(',').any(|granted| granted == action)
            })
        })
    }
}

fn unauthorized(challenge: &str) -> Reply {
    Reply::error(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "authentication required")
        .header("www-authenticate", challenge)
}

pub(super) fn password_of(header: &str) -> Option<(String, String)> {
    let decoded = STANDARD.decode(header.strip_prefix("Basic ")?).ok()?;
    let text = String::from_utf8(decoded).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// The fields of a query or a form.
pub(super) fn form(text: &str) -> Vec<(String, String)> {
    let decode = |part: &str| {
        let mut bytes = Vec::new();
        let mut rest = part.bytes();
        while let Some(byte) = rest.next() {
            match byte {
                b'+' => bytes.push(b' '),
                b'%' => {
                    let digits: String = rest.by_ref().take(2).map(char::from).collect();
                    bytes.extend(u8::from_str_radix(&digits, 16));
                }
                byte => bytes.push(byte),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}
