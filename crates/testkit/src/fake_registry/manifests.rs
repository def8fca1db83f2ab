//! Manifests, tags and referrers.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::State;
use super::auth::form;
use super::handler::{Asked, Reply};
use super::store;
use crate::images::media_type::INDEX;

pub(super) fn answer(state: &mut State, repository: &str, reference: &str, asked: &Asked<'_>) -> Reply {
    match asked.method {
        "GET" | "HEAD" => match state.store.manifest(repository, reference) {
            Some((digest, stored)) => Reply::content(StatusCode::OK, &stored.media_type, stored.bytes)
                .header("docker-content-digest", &digest),
            None => Reply::error(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", "manifest unknown"),
        },
        "PUT" => put(state, repository, reference, asked),
        "DELETE" => delete(state, repository, reference),
        _ => Reply::status(StatusCode::METHOD_NOT_ALLOWED),
    }
}

fn put(state: &mut State, repository: &str, reference: &str, asked: &Asked<'_>) -> Reply {
    if reference.contains(':') && !store::matches(reference, &asked.body) {
        return Reply::error(StatusCode::BAD_REQUEST, "DIGEST_INVALID", "the digest is another");
    }
    let Ok(document) = serde_json::from_slice::<Value>(&asked.body) else {
        return Reply::error(StatusCode::BAD_REQUEST, "MANIFEST_INVALID", "not JSON");
    };
    if let Some(missing) = missing(state, repository, &document) {
        return Reply::error(StatusCode::NOT_FOUND, "MANIFEST_BLOB_UNKNOWN", &missing);
    }
    let kind = asked.header("content-type");
    let digest = state.store.put_manifest(repository, reference, kind, asked.body.clone());
    Reply::status(StatusCode::CREATED)
        .header("docker-content-digest", &digest)
        .header("location", &format!("/v2/{repository}/manifests/{digest}"))
}

/// A part that the manifest names and the repository does not hold.
fn missing(state: &State, repository: &str, document: &Value) -> Option<String> {
    let list = |name: &str| document.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let digest = |part: &Value| part.get("digest").and_then(Value::as_str).unwrap_or_default().to_owned();
    let blobs = list("layers")
        .into_iter()
        .filter(|layer| layer.get("urls").is_none())
        .chain(document.get("config").cloned());
    let lacks_blob = |name: &String| state.store.blob(repository, name).is_none();
    // Build caches list their layers in an index, and distribution 2.8 takes that.
    let lacks_entry = |name: &String| state.store.manifest(repository, name).is_none() && lacks_blob(name);
    blobs
        .map(|part| digest(&part))
        .find(lacks_blob)
        .or_else(|| list("manifests").iter().map(digest).find(lacks_entry))
}

fn delete(state: &mut State, repository: &str, reference: &str) -> Reply {
    let deleted = if reference.contains(':') {
        state.store.delete_manifest(repository, reference)
    } else if state.behaviour.delete_tags {
        state.store.delete_tag(repository, reference)
    } else {
        return Reply::error(
            StatusCode::BAD_REQUEST,
            "DIGEST_INVALID",
            "provided digest did not match uploaded content",
        );
    };
    if deleted {
        Reply::status(StatusCode::ACCEPTED)
    } else {
        Reply::error(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", "manifest unknown")
    }
}

pub(super) fn tags(state: &State, repository: &str, query: &str) -> Reply {
    let Some(all) = state.store.tags(repository) else {
        return Reply::error(StatusCode::NOT_FOUND, "NAME_UNKNOWN", "repository name not known to registry");
    };
    let fields = form(query);
    let field = |name: &str| fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str());
    let wanted = field("n").and_then(|count| count.parse().ok()).unwrap_or(usize::MAX);
    let count = state.behaviour.tags_per_page.min(wanted);
    let rest: Vec<String> =
        all.into_iter().filter(|tag| field("last").is_none_or(|last| tag.as_str() > last)).collect();
    let page: Vec<&String> = rest.iter().take(count).collect();
    let reply = Reply::json(StatusCode::OK, &json!({"name": repository, "tags": page}));
    match page.last() {
        Some(last) if rest.len() > page.len() => {
            reply.header("link", &format!("</v2/{repository}/tags/list?last={last}&n={count}>; rel=\"next\""))
        }
        _ => reply,
    }
}

pub(super) fn referrers(state: &State, repository: &str, digest: &str) -> Reply {
    if !state.behaviour.referrers {
        return Reply::status(StatusCode::NOT_FOUND);
    }
    let referring = state.store.manifests(repository).into_iter().filter_map(|(own, stored)| {
        let document: Value = serde_json::from_slice(&stored.bytes).ok()?;
        let subject = document.get("subject")?.get("digest")?.as_str()?;
        (subject == digest).then(|| {
            let artifact_type = document.get("artifactType").cloned().unwrap_or(Value::Null);
            json!({"mediaType": stored.media_type, "digest": own, "size": stored.bytes.len(), "artifactType": artifact_type})
        })
    });
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": referring.collect::<Vec<_>>()});
    Reply::content(StatusCode::OK, INDEX, index.to_string().into())
}
