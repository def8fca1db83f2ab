//! Projects and their repositories.

use axum::http::Method;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::http::{Answer, Call, decode};
use super::registries::{self, time};
use super::robots::Caller;
use super::state::{HeldProject, State};

/// Adapters that may serve proxy projects unless core is configured otherwise.
const PERMITTED: &[&str] = &[
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

pub(super) fn answer(state: &mut State, call: &Call, rest: &[&str]) -> Answer {
    let result = match (&call.method, rest) {
        (&Method::GET, []) => Ok(list(state, call)),
        // Any login will do.
        (&Method::HEAD, []) if matches!(call.caller, Caller::Anonymous) => {
            Err(Answer::error(401, "unauthorized"))
        }
        (&Method::HEAD, []) => {
            let name = call.parameter("project_name").unwrap_or_default();
            Ok(Answer::empty(if state.project(name).is_some() { 200 } else { 404 }))
        }
        (&Method::POST, []) => create(state, call),
        (method, [name]) => one(state, call, method, name),
        (&Method::GET, [name, "_deletable"]) => named(state, call, name).map(|project| {
            if is_empty(state, project) {
                Answer::json(json!({"deletable": true}))
            } else {
                Answer::json(json!({"message": "the project contains repositories, can not be deleted"}))
            }
        }),
        (&Method::GET, [name, "summary"]) => named(state, call, name).map(|project| {
            let count = state.repositories.values().filter(|one| one.project == project.name).count();
            let quota = json!({"hard": {"storage": -1}, "used": {"storage": 0}});
            let mut summary =
                Map::from_iter([("repo_count".to_owned(), json!(count)), ("quota".to_owned(), quota)]);
            let registry = project.registry.and_then(|id| state.registries.get(&id));
            summary.extend(registry.map(|one| ("registry".to_owned(), registries::without_credential(one))));
            Answer::json(Value::Object(summary))
        }),
        (&Method::GET, [name, "repositories"]) => list_repositories(state, call, name),
        (&Method::DELETE, [name, "repositories", repository]) => {
            delete_repository(state, call, name, repository)
        }
        // A slash that a proxy decoded makes another route.
        (_, [_, "repositories", ..]) => {
            Err(Answer::error(404, format!("path /api/v2.0/projects/{} was not found", rest.join("/"))))
        }
        _ => Err(Answer::error(405, "method not allowed")),
    };
    result.unwrap_or_else(|refusal| refusal)
}

fn list(state: &State, call: &Call) -> Answer {
    let sees_all = call.caller.must("system", "project", "list").is_ok();
    let public = call.parameter("public").and_then(|public| public.parse::<bool>().ok());
    let live = state.projects.values().filter(|one| !one.deleted && (sees_all || one.public));
    let live = live.filter(|one| public.is_none_or(|public| one.public == public));
    call.page(live.filter(|one| call.selects(&one.name)).map(|one| shown(state, one)).collect())
}

fn create(state: &mut State, call: &Call) -> Result<Answer, Answer> {
    call.caller.must("system", "project", "create")?;
    let body = call.json()?;
    let name = body.text("project_name").unwrap_or_default().to_owned();
    if !is_project_name(&name) {
        return Err(Answer::error(400, format!("invalid project name {name}")));
    }
    let public = match body.text("metadata/public") {
        None | Some("") => body.flag("public").unwrap_or_default(),
        Some("true") => true,
        Some("false") => false,
        Some(_) => return Err(Answer::error(400, "metadata.public is true or false")),
    };
    let registry = body.number("registry_id");
    if let Some(id) = registry {
        if id <= 0 {
            return Err(Answer::error(400, "registry_id is not positive"));
        }
        let one = state.registries.get(&id).ok_or_else(|| Answer::error(500, "no such registry"))?;
        if !PERMITTED.contains(&one.kind.as_str()) {
            return Err(Answer::error(400, format!("{} cannot serve a proxy cache project", one.kind)));
        }
    }
    if state.project(&name).is_some() {
        // The refused row has used up its number.
        let _ = state.next_project();
        return Err(Answer::error(409, format!("the project named {name} already exists")));
    }
    // Harbor plans a daily clean-up of what a proxy project has cached.
    if registry.is_some() && state.jobs_are_down {
        return Err(Answer::error(500, "the job service cannot be reached"));
    }
    let id = state.hold_project(&name, registry, public);
    let by_name = call.headers.get("x-resource-name-in-location").is_some_and(|value| value == "true");
    let last = if by_name { name } else { id.to_string() };
    Ok(Answer::created(format!("/api/v2.0/projects/{last}")))
}

fn one(state: &mut State, call: &Call, method: &Method, name: &str) -> Result<Answer, Answer> {
    let project = named(state, call, name)?.clone();
    match *method {
        Method::GET => Ok(Answer::json(shown(state, &project))),
        Method::PUT => {
            let body = call.json()?;
            // The link to an endpoint is not looked at.
            let public = match body.text("metadata/public") {
                None => project.public,
                Some("true") => true,
                Some("false") => false,
                Some(_) => return Err(Answer::error(400, "metadata.public is true or false")),
            };
            if let Some(stored) = state.projects.get_mut(&project.id) {
                (stored.public, stored.updated) = (public, Timestamp::now());
            }
            Ok(Answer::empty(200))
        }
        Method::DELETE => {
            if !is_empty(state, &project) {
                let message =
                    format!("the project {} contains repositories, can not be deleted", project.name);
                return Err(Answer::error(412, message));
            }
            if let Some(stored) = state.projects.get_mut(&project.id) {
                stored.deleted = true;
                stored.name = format!("{}#{}", project.name, project.id);
            }
            Ok(Answer::empty(200))
        }
        _ => Err(Answer::error(405, "method not allowed")),
    }
}

fn list_repositories(state: &mut State, call: &Call, name: &str) -> Result<Answer, Answer> {
    call.caller.must("project", "repository", "list")?;
    // Only a name counts here, never a number.
    if state.project(name).is_none() {
        return Err(not_found(name));
    }
    let mut found: Vec<_> = state.repositories.values().filter(|one| one.project == name).cloned().collect();
    found.sort_by_key(|one| std::cmp::Reverse(one.id));
    let shown = found.into_iter().map(|one| {
        json!({
            "id": one.id, "name": format!("{name}/{}", one.name), "artifact_count": 1, "pull_count": 0,
            "creation_time": time(one.created), "update_time": time(one.created),
        })
    });
    let answer = call.page(shown.collect());
    state.deliver_late(name);
    Ok(answer)
}

fn delete_repository(state: &mut State, call: &Call, name: &str, repository: &str) -> Result<Answer, Answer> {
    call.caller.must("project", "repository", "delete")?;
    // Harbor decodes this segment once more, so that both ways of writing a slash reach it.
    let repository = decode(repository);
    let found = state.repositories.values().find(|one| one.project == name && one.name == repository);
    let id = found.map(|one| one.id);
    let id = id.ok_or_else(|| Answer::error(404, format!("repository {name}/{repository} not found")))?;
    if state.immutable.contains(&(name.to_owned(), repository.clone())) {
        return Err(Answer::error(412, format!("repository {name}/{repository} has immutable tags")));
    }
    state.repositories.remove(&id);
    Ok(Answer::empty(200))
}

/// The project that a segment names. Digits are a number, unless the request says otherwise.
fn named<'a>(state: &'a State, call: &Call, segment: &str) -> Result<&'a HeldProject, Answer> {
    let action = match call.method {
        Method::PUT => "update",
        Method::DELETE => "delete",
        _ => "read",
    };
    call.caller.must("project", "project", action)?;
    let number = segment.parse::<i64>().ok().filter(|_| !call.names());
    let found = match number {
        Some(id) => state.projects.get(&id).filter(|one| !one.deleted),
        None => state.project(segment),
    };
    found.ok_or_else(|| not_found(segment))
}

/// What projects may store and do store; -1 is without limit.
pub(super) fn quotas(state: &State, call: &Call) -> Result<Answer, Answer> {
    call.caller.must("system", "quota", "list")?;
    let live = state.projects.values().filter(|one| !one.deleted);
    let shown = live.map(|one| {
        let used: usize = (state.cached.iter().filter(|((project, _), _)| *project == one.name))
            .flat_map(|(_, held)| held.content.values())
            .map(|content| content.bytes.len())
            .sum();
        json!({
            "id": one.id, "ref": {"id": one.id, "name": one.name, "owner_name": "admin"},
            "hard": {"storage": -1}, "used": {"storage": used},
        })
    });
    Ok(call.page(shown.collect()))
}

fn not_found(name: &str) -> Answer {
    Answer::error(404, format!("project {name} not found"))
}

fn is_empty(state: &State, project: &HeldProject) -> bool {
    !state.repositories.values().any(|one| one.project == project.name)
}

/// Lower-case letters and digits, with single `.`, `_` or `-` between them.
fn is_project_name(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    name.len() <= 255 && name.split(['.', '_', '-']).all(part)
}

fn shown(state: &State, project: &HeldProject) -> Value {
    let mut body = Map::new();
    let count = state.repositories.values().filter(|one| one.project == project.name).count();
    let mut metadata = Map::from_iter([("public".to_owned(), json!(project.public.to_string()))]);
    if project.registry.is_some() {
        metadata.insert("retention_id".to_owned(), json!(project.id.to_string()));
    }
    for (key, value) in [
        ("project_id", json!(project.id)),
        ("name", json!(project.name)),
        ("owner_id", json!(1)),
        ("owner_name", json!("admin")),
        ("repo_count", json!(count)),
        ("metadata", Value::Object(metadata)),
        ("cve_allowlist", json!({"id": project.id, "project_id": project.id, "items": []})),
        ("current_user_role_id", json!(1)),
        ("current_user_role_ids", json!([1])),
        ("creation_time", json!(time(project.created))),
        ("update_time", json!(time(project.updated))),
    ] {
        body.insert(key.to_owned(), value);
    }
    if let Some(registry) = project.registry {
        body.insert("registry_id".to_owned(), json!(registry));
    }
    Value::Object(body)
}
