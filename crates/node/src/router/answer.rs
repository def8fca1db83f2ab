//! Answers to the runtime.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use fairlead_domain::digest::Digest;
use fairlead_plan::node_config::{NodeConfig, Place};
use fairlead_registry::Problem;
use futures::{StreamExt as _, stream};
use hyper::ext::ReasonPhrase;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

use super::metrics::Outcome;
use super::mirror::{Blob, Served};
use super::request::{Asked, AskedObject};
use super::{Router, is_outage, label};

const DIGEST_HEADER: HeaderName = HeaderName::from_static("docker-content-digest");
/// By which an agent knows that it is a router that answers.
pub(super) const ROUTER_HEADER: HeaderName = HeaderName::from_static("fairlead-router");
const OCTETS: &str = "application/octet-stream";

impl Router {
    pub(super) fn answer(self: &Arc<Self>, asked: &Asked, place: &Place, served: Served) -> Response {
        match served {
            Served::Head(resolved) => {
                content(&resolved.media_type, resolved.digest.to_string(), Some(resolved.size), Body::empty())
            }
            Served::Manifest(manifest, _) => {
                let body = if asked.head { Body::empty() } else { manifest.bytes.clone().into() };
                let size = manifest.bytes.len() as u64;
                content(&manifest.media_type, manifest.digest.to_string(), Some(size), body)
            }
            Served::BlobHead(digest, size) => content(OCTETS, digest.to_string(), Some(size), Body::empty()),
            Served::Elsewhere(_, address) => redirect(address.as_str()),
            Served::Blob(blob) => {
                let (digest, size) = (blob.digest.to_string(), blob.size);
                content(OCTETS, digest, size, self.stream(place, *blob))
            }
        }
    }

    /// The pieces of a blob as they arrive. Its end comes only if it has its digest; otherwise the connection breaks
    /// off, and the runtime asks again.
    fn stream(self: &Arc<Self>, place: &Place, blob: Blob) -> Body {
        let Blob { digest, first, rest, context, .. } = blob;
        let (router, place) = (Arc::clone(self), place.clone());
        let passed_on = self.metrics.passed_on(place.host());
        let pieces = stream::unfold(Some((first, rest)), move |state| {
            let context = context.clone();
            async move {
                let (first, mut rest) = state?;
                let piece = match first {
                    Some(first) => Ok(Some(first)),
                    None => rest.next(&context).await,
                };
                match piece.transpose()? {
                    Ok(piece) => Some((Ok(piece), Some((None, rest)))),
                    Err(error) => Some((Err(error), None)),
                }
            }
        });
        let pieces = pieces.map(move |piece| {
            match &piece {
                Ok(piece) => {
                    passed_on.inc_by(piece.len() as u64);
                }
                Err(error) => router.broke_off(&place, digest, &error.problem),
            }
            piece.map_err(io::Error::other)
        });
        Body::from_stream(pieces)
    }

    fn broke_off(&self, place: &Place, digest: Digest, problem: &Problem) {
        tracing::warn!(mirror = place.name, %digest, %problem, "a layer broke off");
        self.metrics.count(Outcome::Failed, place.host());
        let mut memory = self.memory.lock();
        if matches!(problem, Problem::DigestMismatch(_)) {
            memory.spoiled(&place.name, digest, self.now());
        } else if is_outage(problem) {
            memory.failed(place.host(), self.now(), fastrand::f64());
        }
    }

    /// Makes the runtime ask the source itself: it goes on to the next host of its file, or is sent there where the
    /// file names none.
    pub(super) async fn leave_to_source(
        &self,
        config: &NodeConfig,
        asked: &Asked,
        insecure: bool,
    ) -> Response {
        if matches!(asked.object, AskedObject::Tag(_)) {
            self.memory.lock().left_to_source(&asked.name, self.now());
        }
        self.metrics.count(Outcome::Source, label(config, &asked.registry));
        // A file that could not be written yet may still name no source.
        let files = self.files.load();
        let is_only = |config: &NodeConfig| config.leads_to_router_only(&asked.registry);
        if !is_only(config) && files.as_deref().is_some_and(|files| !is_only(files)) {
            return error(404, "NAME_UNKNOWN", "this is left to the source");
        }
        let address = self.source_address(asked, insecure).await;
        let address = address.map(|base| base.join(&asked.path).map(String::from));
        match address {
            Ok(Ok(address)) => redirect(&address),
            Ok(Err(problem)) => error(502, "UNKNOWN", &problem.to_string()),
            Err(problem) => error(502, "UNKNOWN", &problem.to_string()),
        }
    }
}

pub(super) fn base() -> Response {
    ([(CONTENT_TYPE, "application/json"), (ROUTER_HEADER, env!("CARGO_PKG_VERSION"))], "{}").into_response()
}

/// containerd reports the status line of an answer and not its body, so the text stands in both.
pub(super) fn refused(message: &str) -> Response {
    let mut response = error(403, "DENIED", message);
    if let Ok(phrase) = ReasonPhrase::try_from(message.as_bytes().to_vec()) {
        response.extensions_mut().insert(phrase);
    }
    response
}

/// An error as the distribution specification has them.
pub(super) fn error(status: u16, code: &str, message: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = json!({"errors": [{"code": code, "message": message}]}).to_string();
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}

/// Keeps a slot until the body was sent.
pub(super) fn holding(body: Body, slot: Option<OwnedSemaphorePermit>) -> Body {
    let size = hyper::body::Body::size_hint(&body).exact();
    if size == Some(0) {
        return body;
    }
    let pieces = body.into_data_stream();
    Body::from_stream(pieces.map(move |piece| {
        let _ = &slot;
        piece
    }))
}

fn redirect(address: &str) -> Response {
    (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, address)]).into_response()
}

/// Without a size, the end of the body says where the content ends.
fn content(media_type: &str, digest: String, size: Option<u64>, body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let size = size.map(|size| (CONTENT_LENGTH, size.to_string()));
    for (name, value) in
        [(CONTENT_TYPE, media_type.to_owned()), (DIGEST_HEADER, digest)].into_iter().chain(size)
    {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    response
}
