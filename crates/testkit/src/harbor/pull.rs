//! Pulls through proxy projects, with what Harbor 2.9.5 does while an upstream is well, gone, limited or unhealthy.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use serde_json::{Value, json};

use super::Shared;
use super::http::{Answer, finish, login, query_of};
use super::robots::Caller;
use super::state::{Cached, Content, HeldRegistry, State};

const DIGEST: &str = "docker-content-digest";
/// Harbor's limit on a manifest, and more than a test puts into a layer.
const LARGEST: usize = 64 << 20;

/// What a path below `/v2/` asks for.
struct Asked<'a> {
    project: &'a str,
    /// Below the project.
    repository: &'a str,
    /// `manifests` or `blobs`.
    kind: &'a str,
    /// A tag or a digest.
    reference: &'a str,
}

/// The answer to a pull.
#[derive(Clone)]
struct Pulled {
    content: Content,
    /// Of the content, also where only its headers were asked for.
    length: u64,
    digest: String,
    /// Fetched for this request, by its tag.
    cold: bool,
}

/// A token for what the scope names, if its project is public or the caller an administrator.
pub(super) fn token(shared: &Shared, path: &str, headers: &HeaderMap) -> Answer {
    let query = query_of(path);
    let scope = query.iter().find(|(name, _)| name == "scope").map(|(_, scope)| scope.as_str());
    let project = scope
        .and_then(|scope| scope.strip_prefix("repository:"))
        .and_then(|name| name.split_once('/'))
        .map(|(project, _)| project);
    let admin = matches!(login(shared, headers), Some(Caller::Admin));
    let state = shared.lock();
    let granted = project.filter(|name| state.project(name).is_some_and(|one| one.public || admin));
    // Without a right there is a token all the same; it opens nothing.
    Answer::json(json!({"token": granted.unwrap_or("-")}))
}

pub(super) async fn answer(
    shared: &Shared,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Response<Body> {
    match pull(shared, method, path, headers).await {
        Ok(pulled) => {
            let Content { media_type, bytes } = pulled.content;
            let body = if *method == Method::HEAD { Body::empty() } else { Body::from(bytes) };
            // A cold pull by tag is answered with an empty digest.
            let digest = if pulled.cold { String::new() } else { pulled.digest };
            let response = Response::builder()
                .header(header::CONTENT_TYPE, media_type)
                .header(header::CONTENT_LENGTH, pulled.length)
                .header(header::ETAG, &digest)
                .header(DIGEST, digest);
            response.body(body).unwrap_or_default()
        }
        Err(answer) => finish(answer, headers),
    }
}

async fn pull(shared: &Shared, method: &Method, path: &str, headers: &HeaderMap) -> Result<Pulled, Answer> {
    let rest = path.strip_prefix("/v2/").unwrap_or_default();
    if *method != Method::GET && *method != Method::HEAD {
        return Err(Answer::error_with(403, "DENIED", "can not push artifact to a proxy project"));
    }
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
    let admin = matches!(login(shared, headers), Some(Caller::Admin));
    if rest.is_empty() {
        return Err(if admin || bearer.is_some() { Answer::json(json!({})) } else { challenge("", headers) });
    }
    let asked = Asked::parse(rest).ok_or_else(|| Answer::error(404, format!("path {path} was not found")))?;
    let endpoint = {
        let state = shared.lock();
        let Some(project) = state.project(asked.project) else {
            // Harbor does not say that a project is absent.
            return Err(if admin { Answer::empty(401) } else { challenge(rest, headers) });
        };
        if !admin && bearer != Some(asked.project) {
            return Err(challenge(rest, headers));
        }
        project.registry.and_then(|id| state.registries.get(&id)).cloned()
    };
    let endpoint = endpoint.ok_or_else(|| asked.not_found())?;
    if endpoint.kind == "docker-hub" && !asked.repository.contains('/') {
        let to =
            format!("/v2/{}/library/{}/{}/{}", asked.project, asked.repository, asked.kind, asked.reference);
        return Err(Answer { headers: vec![("location", to)], ..Answer::empty(301) });
    }
    let local = asked.local(&shared.lock());
    if let Some(local) = local.as_ref().filter(|_| asked.reference.contains(':')) {
        return Ok(local.clone());
    }
    // Of an endpoint that is not healthy nothing is asked.
    if endpoint.status != "healthy" {
        return local.ok_or_else(|| asked.not_found());
    }
    // A tag is compared with the upstream each time, and fetched again only if it has moved.
    let compared = if local.is_some() { &Method::HEAD } else { method };
    let mut fetched = fetch(&shared.http, &endpoint, &asked, compared, headers).await;
    match (&fetched, local.as_ref()) {
        (Ok(found), Some(local)) if found.digest == local.digest => return Ok(local.clone()),
        (Ok(_), Some(_)) => fetched = fetch(&shared.http, &endpoint, &asked, method, headers).await,
        _ => {}
    }
    match fetched {
        Ok(mut fetched) => {
            if *method == Method::GET {
                let is_new = shared.lock().hold(&asked, &fetched);
                fetched.cold = is_new && !asked.reference.contains(':');
            }
            Ok(fetched)
        }
        Err(Some(StatusCode::NOT_FOUND)) => Err(asked.not_found()),
        Err(status) => local.ok_or_else(|| match status {
            Some(StatusCode::TOO_MANY_REQUESTS) => Answer::error(429, "too many requests to upstream"),
            _ => asked.not_found(),
        }),
    }
}

/// What the upstream has, or the status that it answers with.
async fn fetch(
    http: &reqwest::Client,
    endpoint: &HeldRegistry,
    asked: &Asked<'_>,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Pulled, Option<StatusCode>> {
    let url = format!("{}/v2/{}/{}/{}", endpoint.url, asked.repository, asked.kind, asked.reference);
    let mut request = http.request(method.clone(), url);
    for accept in headers.get_all(header::ACCEPT) {
        request = request.header(header::ACCEPT, accept);
    }
    if let Some(credential) = &endpoint.credential {
        request = request.basic_auth(&credential.key, Some(&credential.secret));
    }
    let answer = request.send().await.map_err(|_| None)?;
    if !answer.status().is_success() {
        return Err(Some(answer.status()));
    }
    let text =
        |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let media_type = text("content-type").unwrap_or_else(|| "application/octet-stream".to_owned());
    let digest = text(DIGEST).unwrap_or_else(|| asked.reference.to_owned());
    let length = text("content-length").and_then(|length| length.parse().ok()).unwrap_or_default();
    let content = answer.bytes().await.ok().filter(|content| content.len() <= LARGEST).ok_or(None)?;
    Ok(Pulled { content: Content { media_type, bytes: content.to_vec() }, length, digest, cold: false })
}

impl<'a> Asked<'a> {
    fn parse(rest: &'a str) -> Option<Self> {
        let (name, kind, reference) = ["manifests", "blobs"].into_iter().find_map(|kind| {
            let (name, reference) = rest.split_once(&format!("/{kind}/"))?;
            Some((name, kind, reference))
        })?;
        let (project, repository) = name.split_once('/')?;
        Some(Self { project, repository, kind, reference })
    }

    fn key(&self) -> (String, String) {
        (self.project.to_owned(), self.repository.to_owned())
    }

    fn local(&self, state: &State) -> Option<Pulled> {
        let held = state.cached.get(&self.key())?;
        let digest = held.tags.get(self.reference).map_or(self.reference, String::as_str);
        let content = held.content.get(digest)?.clone();
        let length = content.bytes.len() as u64;
        Some(Pulled { content, length, digest: digest.to_owned(), cold: false })
    }

    fn not_found(&self) -> Answer {
        let Self { project, repository, kind, reference } = self;
        Answer::error(404, format!("{kind} {project}/{repository} {reference} not found"))
    }
}

impl State {
    /// Keeps what was pulled, and says whether it was not here before. The record of the repository comes later.
    fn hold(&mut self, asked: &Asked<'_>, pulled: &Pulled) -> bool {
        let is_known = self.cached.contains_key(&asked.key());
        let held: &mut Cached = self.cached.entry(asked.key()).or_default();
        let cold = held.content.insert(pulled.digest.clone(), pulled.content.clone()).is_none();
        if !asked.reference.contains(':') {
            held.tags.insert(asked.reference.to_owned(), pulled.digest.clone());
        }
        if !is_known {
            self.late.push(asked.key());
        }
        cold
    }
}

/// Asks for a token, as Harbor does from callers without a login.
fn challenge(rest: &str, headers: &HeaderMap) -> Answer {
    let host = headers.get(header::HOST).and_then(|host| HeaderValue::to_str(host).ok()).unwrap_or_default();
    let scope = Asked::parse(rest)
        .map(|asked| format!(",scope=\"repository:{}/{}:pull\"", asked.project, asked.repository));
    let value = format!(
        "Bearer realm=\"http://{host}/service/token\",service=\"harbor-registry\"{}",
        scope.unwrap_or_default()
    );
    let body: Value =
        json!({"errors": [{"code": "UNAUTHORIZED", "message": "unauthorized to access repository"}]});
    Answer { body: Some(body), headers: vec![("www-authenticate", value)], ..Answer::empty(401) }
}
