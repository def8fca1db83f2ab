//! Blobs and their uploads.

use axum::http::StatusCode;

use super::State;
use super::auth::form;
use super::handler::{Asked, Reply};
use super::store;

pub(super) fn answer(state: &mut State, repository: &str, digest: &str, asked: &Asked<'_>) -> Reply {
    let unknown = || Reply::error(StatusCode::NOT_FOUND, "BLOB_UNKNOWN", "blob unknown to registry");
    match asked.method {
        "GET" | "HEAD" => {
            let Some(blob) = state.store.blob(repository, digest) else {
                return unknown();
            };
            let size = blob.len();
            let range = range_start(asked.header("range"));
            match range {
                Some(start) if start < size => {
                    let part = blob.slice(start..);
                    Reply::content(StatusCode::PARTIAL_CONTENT, "application/octet-stream", part)
                        .header("content-range", &format!("bytes {start}-{}/{size}", size - 1))
                }
                Some(_) => Reply::status(StatusCode::RANGE_NOT_SATISFIABLE),
                None => Reply::content(StatusCode::OK, "application/octet-stream", blob),
            }
            .header("docker-content-digest", digest)
        }
        "DELETE" if state.store.delete_blob(repository, digest) => Reply::status(StatusCode::ACCEPTED),
        "DELETE" => unknown(),
        _ => Reply::status(StatusCode::METHOD_NOT_ALLOWED),
    }
}

fn range_start(header: &str) -> Option<usize> {
    header.strip_prefix("bytes=")?.split('-').next()?.parse().ok()
}

pub(super) fn upload(state: &mut State, repository: &str, name: &str, asked: &Asked<'_>) -> Reply {
    let fields = form(asked.query);
    let field = |name: &str| fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str());
    match asked.method {
        "POST" => {
            if let (Some(digest), Some(from), true) = (field("mount"), field("from"), state.behaviour.mount)
                && let Some(blob) = state.store.blob(from, digest)
            {
                state.store.put_blob(repository, digest, blob);
                return created(repository, digest);
            }
            let name = state.store.open_upload();
            accepted(state, repository, &name)
        }
        "PATCH" => append(state, repository, name, asked),
        "GET" if state.store.upload(name).is_some() => {
            accepted(state, repository, name).with_status(StatusCode::NO_CONTENT)
        }
        "PUT" => finish(state, repository, name, field("digest").unwrap_or_default(), asked),
        "DELETE" if state.store.close_upload(name).is_some() => Reply::status(StatusCode::NO_CONTENT),
        _ => unknown(),
    }
}

fn append(state: &mut State, repository: &str, name: &str, asked: &Asked<'_>) -> Reply {
    let smallest = state.behaviour.smallest_chunk;
    let Some(upload) = state.store.upload(name) else {
        return unknown();
    };
    let start = asked.header("content-range").split('-').next().and_then(|start| start.parse::<usize>().ok());
    if start.is_some_and(|start| start != upload.len()) {
        return accepted(state, repository, name).with_status(StatusCode::RANGE_NOT_SATISFIABLE);
    }
    if smallest.is_some_and(|smallest| (asked.body.len() as u64) < smallest) {
        return Reply::error(StatusCode::BAD_REQUEST, "SIZE_INVALID", "the chunk is too small");
    }
    upload.extend_from_slice(&asked.body);
    accepted(state, repository, name)
}

fn finish(state: &mut State, repository: &str, name: &str, digest: &str, asked: &Asked<'_>) -> Reply {
    let Some(upload) = state.store.upload(name) else {
        return unknown();
    };
    upload.extend_from_slice(&asked.body);
    let whole = upload.clone().freeze();
    if !store::matches(digest, &whole) {
        return Reply::error(StatusCode::BAD_REQUEST, "DIGEST_INVALID", "the content has another digest");
    }
    state.store.close_upload(name);
    state.store.put_blob(repository, digest, whole);
    created(repository, digest)
}

fn unknown() -> Reply {
    Reply::error(StatusCode::NOT_FOUND, "BLOB_UPLOAD_UNKNOWN", "no such upload")
}

fn created(repository: &str, digest: &str) -> Reply {
    Reply::status(StatusCode::CREATED)
        .header("location", &format!("/v2/{repository}/blobs/{digest}"))
        .header("docker-content-digest", digest)
}

fn accepted(state: &mut State, repository: &str, name: &str) -> Reply {
    let smallest = state.behaviour.smallest_chunk;
    let length = state.store.upload(name).map_or(0, |upload| upload.len());
    let mut reply = Reply::status(StatusCode::ACCEPTED)
        .header("location", &format!("/v2/{repository}/blobs/uploads/{name}?_state=x"))
        .header("range", &format!("0-{}", length.saturating_sub(1)));
    if let Some(smallest) = smallest {
        reply = reply.header("oci-chunk-min-length", &smallest.to_string());
    }
    reply
}
