//! From a request to its answer: log, faults, login, CSRF, routes.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::State as Extract;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::robots::{self, Caller};
use super::state::{Effect, Logged, State};
use super::{Shared, projects, pull, registries};

const BASE: &str = "/api/v2.0/";
/// How long a failed login takes, and how long its user is locked.
const LOCK: Duration = Duration::from_millis(1500);
const LARGEST_BODY: usize = 1 << 20;
const MOST_PER_PAGE: usize = 100;

/// A request, taken apart.
pub(super) struct Call {
    pub(super) method: Method,
    /// Segments below the base path, decoded once.
    pub(super) segments: Vec<String>,
    pub(super) query: Vec<(String, String)>,
    pub(super) caller: Caller,
    pub(super) headers: HeaderMap,
    body: Vec<u8>,
}

/// An answer.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Option<Value>,
    pub(super) headers: Vec<(&'static str, String)>,
}

impl Answer {
    pub(super) fn empty(status: u16) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, body: None, headers: Vec::new() }
    }

    pub(super) fn json(body: Value) -> Self {
        Self { body: Some(body), ..Self::empty(200) }
    }

    pub(super) fn created(location: String) -> Self {
        Self { headers: vec![("location", location)], ..Self::empty(201) }
    }

    pub(super) fn error(status: u16, message: impl Into<String>) -> Self {
        let code = match status {
            400 => "BAD_REQUEST",
            401 => "UNAUTHORIZED",
            403 => "FORBIDDEN",
            404 => "NOT_FOUND",
            405 => "METHOD_NOT_ALLOWED",
            409 => "CONFLICT",
            412 => "PRECONDITION",
            422 => "UNPROCESSABLE_ENTITY",
            429 => "TOO_MANY_REQUEST",
            _ => "UNKNOWN",
        };
        Self::error_with(status, code, message)
    }

    pub(super) fn error_with(status: u16, code: &str, message: impl Into<String>) -> Self {
        let message: String = if status == 500 { "internal server error".to_owned() } else { message.into() };
        let body = json!({"errors": [{"code": code, "message": message}]});
        Self { body: Some(body), ..Self::empty(status) }
    }
}

/// A JSON object. Fields of objects within it are found by `outer/inner`.
pub(super) struct Fields(Value);

impl Fields {
    fn get(&self, path: &str) -> Option<&Value> {
        self.0.pointer(&format!("/{path}"))
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.get(path)?.as_str()
    }

    pub(super) fn flag(&self, path: &str) -> Option<bool> {
        self.get(path)?.as_bool()
    }

    pub(super) fn list(&self, path: &str) -> &[Value] {
        self.get(path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn number(&self, path: &str) -> Option<i64> {
        self.get(path)?.as_i64()
    }
}

impl Call {
    /// The body, if it is JSON and says so.
    pub(super) fn json(&self) -> Result<Fields, Answer> {
        let unprocessable = || Answer::error(422, "the body is not a JSON object");
        let kind = self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if !kind.is_some_and(|kind| kind.starts_with("application/json")) {
            return Err(unprocessable());
        }
        let body = serde_json::from_slice(&self.body).ok().filter(Value::is_object);
        body.map(Fields).ok_or_else(unprocessable)
    }

    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether a name passes the filters of this list: part of it, exactly, or by `q`.
    pub(super) fn selects(&self, name: &str) -> bool {
        let has = |part: &str| name.to_lowercase().contains(&part.to_lowercase());
        let by_name = self.parameter("name").is_none_or(has);
        let by_query = self.parameter("q").is_none_or(|query| match query.strip_prefix("name=") {
            Some(value) => value.strip_prefix('~').map_or(name == value, has),
            None => true,
        });
        by_name && by_query
    }

    /// The page that was asked for, sorted by a field or, with a minus, against it.
    pub(super) fn page(&self, mut all: Vec<Value>) -> Answer {
        if let Some(sort) = self.parameter("sort") {
            let field = sort.trim_start_matches('-');
            all.sort_by_cached_key(|one| one[field].to_string());
            if sort.starts_with('-') {
                all.reverse();
            }
        }
        let number = |name: &str, default: usize| match self.parameter(name) {
            None => Some(default),
            Some(text) => text.parse().ok(),
        };
        let (Some(page), Some(size)) = (number("page", 1), number("page_size", 10)) else {
            return Answer::error(422, "page and page_size are numbers");
        };
        if size > MOST_PER_PAGE || page == 0 {
            return Answer::error(422, format!("page_size is at most {MOST_PER_PAGE}, page at least 1"));
        }
        let total = all.len();
        let shown: Vec<_> = all.into_iter().skip((page - 1) * size).take(size).collect();
        let link = |page: usize, rel: &str| {
            let path = self.segments.join("/");
            format!("<{BASE}{path}?page={page}&page_size={size}>; rel=\"{rel}\"")
        };
        let previous = (page > 1).then(|| link(page - 1, "prev"));
        let next = (page * size < total).then(|| link(page + 1, "next"));
        let links: Vec<_> = [previous, next].into_iter().flatten().collect();
        let mut answer = Answer::json(Value::Array(shown));
        answer.headers.push(("x-total-count", total.to_string()));
        if !links.is_empty() {
            answer.headers.push(("link", links.join(" , ")));
        }
        answer
    }

    /// Whether segments of digits are names.
    pub(super) fn names(&self) -> bool {
        self.headers.get("x-is-resource-name").is_some_and(|value| value == "true")
    }
}

pub(super) async fn answer(Extract(shared): Extract<Arc<Shared>>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    let (delay, effect) = {
        let mut state = shared.lock();
        let effect = state.strike(&parts.method, &path);
        (state.delay, effect)
    };
    let _pending = Pending::of(&shared);
    sleep(delay).await;
    let body = to_bytes(body, LARGEST_BODY).await.unwrap_or_default().to_vec();
    let answer = match effect {
        Some(Effect::Status(status)) => finish(Answer::error(status, "a fault"), &parts.headers),
        Some(Effect::BadGateway) => page(StatusCode::BAD_GATEWAY, "<html>502 Bad Gateway</html>"),
        Some(Effect::Page) => page(StatusCode::OK, "<html>welcome</html>"),
        Some(Effect::Truncated) => page(StatusCode::OK, "[{\"id\": 1, \"na"),
        Some(Effect::Redirect(to)) => {
            let mut answer = page(StatusCode::MOVED_PERMANENTLY, "");
            answer
                .headers_mut()
                .insert(header::LOCATION, to.parse().unwrap_or(HeaderValue::from_static("/")));
            answer
        }
        Some(Effect::Stall(time)) => {
            sleep(time).await;
            page(StatusCode::GATEWAY_TIMEOUT, "")
        }
        None => {
            if path.starts_with("/v2/") {
                pull::answer(&shared, &parts.method, &path, &parts.headers).await
            } else {
                let answer = serve(&shared, &parts.method, &path, &parts.headers, body).await;
                finish(answer, &parts.headers)
            }
        }
    };
    let has = |name: HeaderName| parts.headers.contains_key(name);
    shared.lock().log.push(Logged {
        method: parts.method.to_string(),
        path,
        status: answer.status().as_u16(),
        cookie: has(header::COOKIE),
        names: has(HeaderName::from_static("x-is-resource-name")),
    });
    answer
}

/// A request under way; its caller may hang up at any moment.
struct Pending(Arc<Shared>);

impl Pending {
    fn of(shared: &Arc<Shared>) -> Self {
        shared.lock().pending += 1;
        Self(shared.clone())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.lock().pending -= 1;
    }
}

async fn serve(shared: &Shared, method: &Method, path: &str, headers: &HeaderMap, body: Vec<u8>) -> Answer {
    let unsafe_method = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    let cookie = headers.get(header::COOKIE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if unsafe_method && cookie.contains("sid=") && !headers.contains_key("x-harbor-csrf-token") {
        let mut answer = Answer::error(403, "CSRF token not found in request");
        answer.headers.push(("x-harbor-csrf-token", "double".to_owned()));
        answer.headers.push(("set-cookie", "_gorilla_csrf=double; Path=/".to_owned()));
        return answer;
    }
    let caller = if let Some(caller) = login(shared, headers) {
        caller
    } else {
        sleep(LOCK).await;
        Caller::Anonymous
    };
    let route = path.split_once('?').map_or(path, |(route, _)| route);
    if route == "/service/token" {
        return pull::token(shared, path, headers);
    }
    let Some(route) = route.strip_prefix(BASE) else {
        return Answer::error(404, format!("path {route} was not found"));
    };
    let segments = route.split('/').map(decode).collect();
    let query = query_of(path);
    let call = Call { method: method.clone(), segments, query, caller, headers: headers.clone(), body };
    let mut state = shared.lock();
    if unsafe_method && state.read_only {
        return Answer::error_with(403, "DENIED", "the system is in read only mode, writing is prohibited");
    }
    route_to(&mut state, &call)
}

fn route_to(state: &mut State, call: &Call) -> Answer {
    let segments: Vec<&str> = call.segments.iter().map(String::as_str).collect();
    let get = call.method == Method::GET;
    match segments.as_slice() {
        ["ping"] if get => Answer::json(json!("Pong")),
        ["health"] if get => {
            let names = ["core", "database", "jobservice", "portal", "redis", "registry", "registryctl"];
            let parts: Vec<_> = names.iter().map(|name| json!({"name": name, "status": "healthy"})).collect();
            Answer::json(json!({"status": "healthy", "components": parts}))
        }
        ["systeminfo"] if get && matches!(call.caller, Caller::Admin) => Answer::json(
            json!({"auth_mode": "db_auth", "harbor_version": "v2.9.5", "read_only": state.read_only}),
        ),
        ["systeminfo"] if get => Answer::json(json!({"auth_mode": "db_auth"})),
        ["robots"] => robots::answer(state, call),
        ["quotas"] if get => projects::quotas(state, call).unwrap_or_else(|refusal| refusal),
        ["replication", "adapters"] if get => match call.caller.must("system", "registry", "list") {
            Ok(()) => Answer::json(json!(registries::ADAPTERS)),
            Err(refusal) => refusal,
        },
        ["registries", rest @ ..] => registries::answer(state, call, rest),
        ["projects", rest @ ..] => projects::answer(state, call, rest),
        _ => Answer::error(404, format!("path {BASE}{} was not found", segments.join("/"))),
    }
}

/// Who calls; `None` if the login is wrong, which takes a while.
pub(super) fn login(shared: &Shared, headers: &HeaderMap) -> Option<Caller> {
    let basic = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let pair =
        basic.and_then(|value| value.strip_prefix("Basic ")).and_then(|text| STANDARD.decode(text).ok());
    let Some(pair) = pair.and_then(|bytes| String::from_utf8(bytes).ok()) else {
        return Some(Caller::Anonymous);
    };
    let (user, password) = pair.split_once(':').unwrap_or((&pair, ""));
    let mut state = shared.lock();
    if state.locked.get(user).is_some_and(|until| Instant::now() < *until) {
        return Some(Caller::Anonymous);
    }
    if user == "admin" && password == state.password {
        return Some(Caller::Admin);
    }
    if let Some(robot) = state.robots.get(user).filter(|robot| robot.secret == password) {
        return Some(Caller::Robot(robot.clone()));
    }
    state.locked.insert(user.to_owned(), Instant::now() + LOCK);
    None
}

impl State {
    /// The fault that strikes this request.
    fn strike(&mut self, method: &Method, path: &str) -> Option<Effect> {
        let fault = self.faults.iter_mut().find(|fault| {
            let used_up = fault.times == Some(0);
            !used_up && fault.method.is_none_or(|one| one == method.as_str()) && path.contains(fault.path)
        })?;
        if let Some(times) = &mut fault.times {
            *times -= 1;
        }
        Some(fault.effect.clone())
    }
}

pub(super) fn finish(answer: Answer, request: &HeaderMap) -> Response<Body> {
    let Answer { status, body, headers } = answer;
    let mut response = match body {
        None => Response::new(Body::empty()),
        Some(Value::String(text)) => Response::new(Body::from(text)),
        Some(body) => {
            let mut response = Response::new(Body::from(format!("{body}\n")));
            let kind =
                if status.is_success() { "application/json" } else { "application/json; charset=utf-8" };
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            response
        }
    };
    *response.status_mut() = status;
    let all = response.headers_mut();
    let id = request.get("x-request-id").cloned();
    let made = HeaderValue::from_static("00000000-0000-4000-8000-000000000000");
    all.insert("x-request-id", id.unwrap_or(made));
    all.append(header::SET_COOKIE, HeaderValue::from_static("sid=double; Path=/; HttpOnly"));
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            all.append(name, value);
        }
    }
    response
}

fn page(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
}

/// The parameters of a path.
pub(super) fn query_of(path: &str) -> Vec<(String, String)> {
    let query = path.split_once('?').map_or("", |(_, query)| query);
    let url = reqwest::Url::parse(&format!("http://double/?{query}"));
    url.map(|url| url.query_pairs().into_owned().collect()).unwrap_or_default()
}

/// Undoes percent-encoding, once.
pub(super) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let hex = text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let (b'%', Some(hex)) = (byte, hex) {
            decoded.push(hex);
            at += 3;
        } else {
            decoded.push(*byte);
            at += 1;
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
