//! From a request to its answer: log, faults, access, content.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use hyper::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::fault::{Effect, Route};
use super::log::Logged;
use super::{Shared, State, Strangers, blobs, manifests};

/// Tests send no more than this in one request.
const LARGEST_BODY: usize = 1 << 30;

/// The connection a request came on.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) number: usize,
    /// How the registry is addressed on it.
    pub(super) url: String,
    /// Breaks it.
    pub(super) cut: Notify,
}

/// What a path means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Base,
    Token,
    Manifest {
        repository: String,
        reference: String,
    },
    Blob {
        repository: String,
        digest: String,
    },
    /// The upload's name is empty where one is to be opened.
    Upload {
        repository: String,
        name: String,
    },
    Tags {
        repository: String,
    },
    Referrers {
        repository: String,
        digest: String,
    },
    Unknown,
}

impl Target {
    fn of(path: &str) -> Self {
        if path == "/token" {
            return Self::Token;
        }
        let Some(rest) = path.strip_prefix("/v2/") else {
            return Self::Unknown;
        };
        if rest.is_empty() {
            return Self::Base;
        }
        let cut = |sign: &str| {
            rest.rsplit_once(sign).map(|(repository, last)| (repository.to_owned(), last.to_owned()))
        };
        if let Some((repository, name)) = cut("/blobs/uploads/") {
            return Self::Upload { repository, name };
        }
        if let Some((repository, reference)) = cut("/manifests/") {
            return Self::Manifest { repository, reference };
        }
        if let Some((repository, digest)) = cut("/blobs/") {
            return Self::Blob { repository, digest };
        }
        if let Some((repository, digest)) = cut("/referrers/") {
            return Self::Referrers { repository, digest };
        }
        match rest.strip_suffix("/tags/list") {
            Some(repository) => Self::Tags { repository: repository.to_owned() },
            None => Self::Unknown,
        }
    }

    pub(super) fn route(&self) -> Option<Route> {
        Some(match self {
            Self::Base => Route::Base,
            Self::Token => Route::Token,
            Self::Manifest { .. } => Route::Manifests,
            Self::Blob { .. } => Route::Blobs,
            Self::Upload { .. } => Route::Uploads,
            Self::Tags { .. } => Route::Tags,
            Self::Referrers { .. } => Route::Referrers,
            Self::Unknown => return None,
        })
    }

    pub(super) fn repository(&self) -> Option<&str> {
        match self {
            Self::Manifest { repository, .. }
            | Self::Blob { repository, .. }
            | Self::Upload { repository, .. }
            | Self::Tags { repository }
            | Self::Referrers { repository, .. } => Some(repository),
            Self::Base | Self::Token | Self::Unknown => None,
        }
    }
}

/// An answer in the making.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Reply {
    pub(super) fn status(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new(), body: Bytes::new() }
    }

    pub(super) fn content(status: StatusCode, media_type: &str, body: Bytes) -> Self {
        Self { body, ..Self::status(status) }.header("content-type", media_type)
    }

    pub(super) fn json(status: StatusCode, value: &Value) -> Self {
        Self::content(status, "application/json", Bytes::from(value.to_string()))
    }

    pub(super) fn error(status: StatusCode, code: &str, message: &str) -> Self {
        Self::json(status, &json!({"errors": [{"code": code, "message": message}]}))
    }

    pub(super) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    pub(super) fn header(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
            self.headers.insert(HeaderName::from_static(name), value);
        }
        self
    }
}

/// A request as the registry's parts see it.
pub(super) struct Asked<'a> {
    pub(super) method: &'a str,
    pub(super) query: &'a str,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: Bytes,
}

impl Asked<'_> {
    /// A header's text; empty if it was not sent.
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

pub(super) async fn handle(
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let (method, path) = (parts.method.as_str(), parts.uri.path());
    let query = parts.uri.query().unwrap_or_default();
    let target = Target::of(path);
    let effects = {
        let sent =
            parts.headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut state = shared.lock();
        let request = Logged {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            headers: parts.headers.clone(),
            version: parts.version,
            user: state.tokens.user_of(sent),
            at: Instant::now(),
            connection: connection.number,
        };
        let effects = state.faults.iter_mut().find_map(|fault| fault.strike(&request, &target));
        state.log.begin(request);
        effects.unwrap_or_default()
    };
    let _under_way = UnderWay(Arc::clone(&shared));
    if let Some(reply) = interrupt(&effects, &connection).await {
        return render(reply, method, &effects, &connection);
    }
    let Ok(body) = to_bytes(Body::new(body), LARGEST_BODY).await else {
        return render(Reply::status(StatusCode::BAD_REQUEST), method, &effects, &connection);
    };
    let asked = Asked { method, query, headers: &parts.headers, body };
    let reply = answer(&shared, &connection, &target, &asked);
    render(reply, method, &effects, &connection)
}

/// Counts a request as under way until it is answered or given up.
struct UnderWay(Arc<Shared>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.lock().log.end();
    }
}

fn answer(shared: &Shared, connection: &Connection, target: &Target, asked: &Asked<'_>) -> Reply {
    let mut state = shared.lock();
    if *target == Target::Token {
        let State { auth, tokens, .. } = &mut *state;
        return auth.token(tokens, asked);
    }
    if let Some(refusal) = state.auth.refuse(&state.tokens, &connection.url, target, asked) {
        let is_stranger = asked.header("authorization").is_empty();
        match state.behaviour.strangers {
            Strangers::MayRead(name) if is_stranger && reads_under(name, target, asked) => {}
            Strangers::Misled if is_stranger && *target != Target::Base => {
                return Reply::status(StatusCode::NOT_FOUND);
            }
            _ => return refusal,
        }
    }
    match target {
        Target::Base => Reply::json(StatusCode::OK, &json!({})),
        Target::Manifest { repository, reference } => {
            manifests::answer(&mut state, repository, reference, asked)
        }
        Target::Tags { repository } => manifests::tags(&state, repository, asked.query),
        Target::Referrers { repository, digest } => manifests::referrers(&state, repository, digest),
        Target::Blob { repository, digest } => blobs::answer(&mut state, repository, digest, asked),
        Target::Upload { repository, name } => blobs::upload(&mut state, repository, name, asked),
        Target::Token | Target::Unknown => Reply::status(StatusCode::NOT_FOUND),
    }
}

fn reads_under(name: &str, target: &Target, asked: &Asked<'_>) -> bool {
    matches!(asked.method, "GET" | "HEAD")
        && target.repository().is_some_and(|repository| repository.starts_with(name))
}

/// Effects that take the place of an answer. A connection that is cut or hangs never comes back from here.
async fn interrupt(effects: &[Effect], connection: &Connection) -> Option<Reply> {
    for effect in effects {
        match effect {
            Effect::Delay(time) => tokio::time::sleep(*time).await,
            Effect::Hang => std::future::pending::<()>().await,
            Effect::Drop => {
                connection.cut.notify_one();
                std::future::pending::<()>().await;
            }
            Effect::Status(status) => {
                let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                return Some(Reply::error(status, "FAULT", "as the test asked"));
            }
            Effect::Answer(status, media_type, body) => {
                let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                return Some(Reply::content(status, media_type, Bytes::from(body.clone())));
            }
            Effect::Redirect(location) => {
                return Some(Reply::status(StatusCode::TEMPORARY_REDIRECT).header("location", location));
            }
            _ => {}
        }
    }
    None
}

fn render(
    mut reply: Reply,
    method: &str,
    effects: &[Effect],
    connection: &Arc<Connection>,
) -> Response<Body> {
    let (mut broken, mut drip) = (None, None);
    for effect in effects {
        match effect {
            Effect::Header(name, value) => reply = reply.header(name, value),
            Effect::Corrupt => {
                let mut changed = reply.body.to_vec();
                if let Some(first) = changed.first_mut() {
                    *first ^= 0xff;
                }
                reply.body = changed.into();
            }
            Effect::Shorten(length) => reply.body.truncate(*length),
            Effect::Truncate(length) => broken = Some((*length, true)),
            Effect::Stall(length) => broken = Some((*length, false)),
            Effect::Drip(pause) => drip = Some(*pause),
            _ => {}
        }
    }
    let promised = reply.body.len();
    if !reply.headers.contains_key("content-length") {
        reply = reply.header("content-length", &promised.to_string());
    }
    for effect in effects {
        if let Effect::WithoutHeader(name) = effect {
            reply.headers.remove(*name);
        }
    }
    let body = match (broken, drip) {
        _ if method == "HEAD" => Body::empty(),
        (None, None) => Body::from(reply.body),
        (None, Some(pause)) => dripping(reply.body, pause),
        (Some((length, cut)), _) => {
            interrupted(reply.body.slice(..length.min(promised)), cut, Arc::clone(connection))
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers;
    response
}

/// A body that takes its time.
fn dripping(body: Bytes, pause: Duration) -> Body {
    Body::from_stream(stream::unfold(body, move |mut left| async move {
        tokio::time::sleep(pause).await;
        let next = (!left.is_empty()).then(|| left.split_to(1))?;
        Some((Ok::<_, std::io::Error>(next), left))
    }))
}

/// A body that ends before its time: by a broken connection or by silence.
fn interrupted(start: Bytes, cut: bool, connection: Arc<Connection>) -> Body {
    // The pause lets the first part reach the client before the end does.
    let end = async move {
        if cut {
            tokio::time::sleep(Duration::from_millis(20)).await;
            connection.cut.notify_one();
        }
        std::future::pending::<Result<Bytes, std::io::Error>>().await
    };
    Body::from_stream(stream::once(async { Ok(start) }).chain(stream::once(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_understood_whatever_a_repository_is_called() {
        let named = |path: &str| (Target::of(path).route(), Target::of(path).repository().map(str::to_owned));
        for (path, route, repository) in [
            ("/v2/", Some(Route::Base), None),
            ("/token", Some(Route::Token), None),
            ("/v2/a/b/manifests/latest", Some(Route::Manifests), Some("a/b")),
            ("/v2/manifests/manifests/1", Some(Route::Manifests), Some("manifests")),
            ("/v2/a/blobs/sha256:0", Some(Route::Blobs), Some("a")),
            ("/v2/a/blobs/uploads/", Some(Route::Uploads), Some("a")),
            ("/v2/a/blobs/uploads/upload-1", Some(Route::Uploads), Some("a")),
            ("/v2/a/tags/list", Some(Route::Tags), Some("a")),
            ("/v2/a/referrers/sha256:0", Some(Route::Referrers), Some("a")),
            ("/elsewhere", None, None),
        ] {
            assert_eq!(named(path), (route, repository.map(str::to_owned)), "{path}");
        }
    }
}
