//! Endpoints.

use axum::http::Method;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::http::{Answer, Call};
use super::state::{Credential, HeldRegistry, State, stored_url, word};

pub(super) const ADAPTERS: &[&str] = &[
    "ali-acr",
    "aws-ecr",
    "azure-acr",
    "docker-hub",
    "docker-registry",
    "github-ghcr",
    "google-gcr",
    "harbor",
    "jfrog-artifactory",
    "quay",
];

const LONGEST_NAME: usize = 64;

pub(super) fn answer(state: &mut State, call: &Call, rest: &[&str]) -> Answer {
    let action = match (&call.method, rest) {
        (&Method::GET, []) => "list",
        (&Method::GET, _) | (_, ["ping"]) => "read",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        _ => "delete",
    };
    if let Err(refusal) = call.caller.must("system", "registry", action) {
        return refusal;
    }
    let result = match (&call.method, rest) {
        (&Method::GET, []) => Ok(list(state, call)),
        (&Method::POST, []) => create(state, call),
        (&Method::POST, ["ping"]) => ping(state, call),
        (method, [id]) => with_id(state, call, method, id),
        (&Method::GET, [id, "info"]) => numbered(state, id).map(|one| {
            Answer::json(
                json!({"type": one.kind, "supported_resource_filters": [], "supported_triggers": []}),
            )
        }),
        _ => Err(Answer::error(405, "method not allowed")),
    };
    result.unwrap_or_else(|refusal| refusal)
}

fn list(state: &State, call: &Call) -> Answer {
    let shown = state.registries.values().filter(|one| call.selects(&one.name)).map(shown);
    call.page(shown.collect())
}

fn create(state: &mut State, call: &Call) -> Result<Answer, Answer> {
    let body = call.json()?;
    let text = |key: &str| body.text(key).unwrap_or_default().to_owned();
    let (name, kind, url) = (text("name"), text("type"), text("url"));
    if name.is_empty() || name.chars().count() > LONGEST_NAME {
        return Err(Answer::error(400, format!("name has 1 to {LONGEST_NAME} characters")));
    }
    let url = checked_url(&url)?;
    if !ADAPTERS.contains(&kind.as_str()) {
        return Err(Answer::error(500, "unknown adapter"));
    }
    let field = |key: &str| body.text(&format!("credential/{key}")).unwrap_or_default().to_owned();
    let credential =
        Credential { kind: field("type"), key: field("access_key"), secret: field("access_secret") };
    let credential = Some(credential).filter(|one| !one.key.is_empty());
    if !state.reaches(&kind, &url, credential.as_ref()) {
        return Err(unhealthy());
    }
    // A number is used up before the name is found to be taken.
    let (id, now) = (state.next_registry(), Timestamp::now());
    if state.registries.values().any(|one| one.name == name) {
        return Err(Answer::error(409, format!("registry {name} already exists")));
    }
    let registry = HeldRegistry {
        id,
        name,
        kind,
        url,
        credential,
        insecure: body.flag("insecure").unwrap_or_default(),
        description: text("description"),
        status: word(true).to_owned(),
        created: now,
        updated: now,
    };
    state.registries.insert(id, registry);
    Ok(Answer::created(format!("/api/v2.0/registries/{id}")))
}

/// Tests an upstream and stores nothing.
fn ping(state: &State, call: &Call) -> Result<Answer, Answer> {
    let body = call.json()?;
    let reached = if let Some(id) = body.number("id") {
        let one = state.registries.get(&id).ok_or_else(|| not_found(id))?;
        state.reaches(&one.kind, &one.url, one.credential.as_ref())
    } else {
        let text = |key: &str| body.text(key).unwrap_or_default().to_owned();
        let (kind, url) = (text("type"), text("url"));
        if kind.is_empty() || url.is_empty() {
            return Err(Answer::error(400, "type or url is missing"));
        }
        if !ADAPTERS.contains(&kind.as_str()) {
            return Err(Answer::error(500, "unknown adapter"));
        }
        let credential = Credential {
            kind: text("credential_type"),
            key: text("access_key"),
            secret: text("access_secret"),
        };
        state.reaches(&kind, &stored_url(&url), Some(&credential).filter(|one| !one.key.is_empty()))
    };
    if reached { Ok(Answer::empty(200)) } else { Err(unhealthy()) }
}

fn with_id(state: &mut State, call: &Call, method: &Method, id: &str) -> Result<Answer, Answer> {
    match *method {
        // The built-in entry of Harbor's own storage.
        Method::GET if id == "0" => Ok(Answer::json(json!({"id": 0, "name": "Local"}))),
        Method::GET => numbered(state, id).map(|one| Answer::json(shown(one))),
        Method::PUT => update(state, call, id),
        Method::DELETE => delete(state, id),
        _ => Err(Answer::error(405, "method not allowed")),
    }
}

fn update(state: &mut State, call: &Call, id: &str) -> Result<Answer, Answer> {
    let body = call.json()?;
    let mut changed = numbered(state, id)?.clone();
    let text = |key: &str| body.text(key).map(str::to_owned);
    if let Some(name) = text("name") {
        if state.registries.values().any(|one| one.id != changed.id && one.name == name) {
            return Err(Answer::error(409, format!("registry {name} already exists")));
        }
        changed.name = name;
    }
    if let Some(description) = text("description") {
        changed.description = description;
    }
    if let Some(url) = text("url") {
        changed.url = checked_url(&url)?;
    }
    if let Some(insecure) = body.flag("insecure") {
        changed.insecure = insecure;
    }
    // A nested credential is an unknown field here.
    let mut credential = changed.credential.take().unwrap_or_else(|| Credential {
        kind: String::new(),
        key: String::new(),
        secret: String::new(),
    });
    let Credential { kind, key, secret } = &mut credential;
    for (field, name) in [(kind, "credential_type"), (key, "access_key"), (secret, "access_secret")] {
        if let Some(value) = text(name) {
            *field = value;
        }
    }
    changed.credential = Some(credential).filter(|one| !one.key.is_empty());
    if !state.reaches(&changed.kind, &changed.url, changed.credential.as_ref()) {
        return Err(unhealthy());
    }
    word(true).clone_into(&mut changed.status);
    changed.updated = Timestamp::now();
    state.registries.insert(changed.id, changed);
    Ok(Answer::empty(200))
}

fn delete(state: &mut State, id: &str) -> Result<Answer, Answer> {
    let id = numbered(state, id)?.id;
    if state.projects.values().any(|one| !one.deleted && one.registry == Some(id)) {
        return Err(Answer::error(412, format!("registry {id} is referred to by a proxy cache project")));
    }
    if state.replicated.contains(&id) {
        return Err(Answer::error(412, format!("registry {id} is referred to by a replication policy")));
    }
    state.registries.remove(&id);
    Ok(Answer::empty(200))
}

fn numbered<'a>(state: &'a State, id: &str) -> Result<&'a HeldRegistry, Answer> {
    let id: i64 = id.parse().map_err(|_| Answer::error(422, format!("{id} is not a number")))?;
    state.registries.get(&id).ok_or_else(|| not_found(id))
}

fn not_found(id: i64) -> Answer {
    Answer::error(404, format!("registry {id} not found"))
}

fn unhealthy() -> Answer {
    Answer::error(400, "the registry is unhealthy")
}

fn checked_url(url: &str) -> Result<String, Answer> {
    let url = stored_url(url);
    if url.is_empty() || !(url.starts_with("http://") || url.starts_with("https://")) {
        return Err(Answer::error(400, "the url is not http or https"));
    }
    Ok(url)
}

fn shown(one: &HeldRegistry) -> Value {
    let mut body = Map::new();
    body.insert("id".to_owned(), json!(one.id));
    let credential = one.credential.as_ref().map_or_else(
        || json!({}),
        |one| json!({"type": one.kind, "access_key": one.key, "access_secret": "*****"}),
    );
    body.insert("credential".to_owned(), credential);
    let texts = [
        ("name", &one.name),
        ("type", &one.kind),
        ("url", &one.url),
        ("description", &one.description),
        ("status", &one.status),
    ];
    for (key, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        body.insert(key.to_owned(), json!(text));
    }
    if one.insecure {
        body.insert("insecure".to_owned(), json!(true));
    }
    body.insert("creation_time".to_owned(), json!(time(one.created)));
    body.insert("update_time".to_owned(), json!(time(one.updated)));
    Value::Object(body)
}

/// As a project shows the endpoint that it serves from.
pub(super) fn without_credential(one: &HeldRegistry) -> Value {
    let mut body = shown(one);
    if let Some(body) = body.as_object_mut() {
        body.remove("credential");
    }
    body
}

pub(super) fn time(time: Timestamp) -> String {
    format!("{time:.3}")
}
