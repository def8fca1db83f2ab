//! HTTP around the answers: which path, which method, which status.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Request, Response, StatusCode};
use tokio::time::{Instant, timeout_at};

use super::answer::{self, Answer};
use super::body::{Received, receive};
use super::metrics::AnswerKind;
use super::state::AdmissionState;

/// Answers one HTTP request.
pub(super) async fn handle(state: &AdmissionState, request: Request<Body>) -> Response<Body> {
    // Before anything else is read: only API servers know a path that is answered.
    if !state.paths.admits(request.uri().path()) {
        return plain(StatusCode::NOT_FOUND, "not found\n");
    }
    if request.method() != Method::POST {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "send an AdmissionReview with POST\n");
    }
    let arrival = Instant::now();
    let _in_flight = state.metrics.begin();
    let answer = answer_within(state, request, arrival).await;
    state.metrics.answered(answer.outcome, arrival.elapsed());
    match (answer.review, answer.outcome) {
        (Some(review), _) => json(review),
        (None, AnswerKind::TooLarge) => plain(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large\n"),
        (None, AnswerKind::Late | AnswerKind::Overload) => {
            plain(StatusCode::SERVICE_UNAVAILABLE, "the request could not be received in time\n")
        }
        (None, _) => plain(
            StatusCode::BAD_REQUEST,
            "the body is not an AdmissionReview that carries a request with a uid\n",
        ),
    }
}

async fn answer_within(state: &AdmissionState, request: Request<Body>, arrival: Instant) -> Answer {
    let deadline = arrival + state.limits.deadline(request.uri().query());
    let (head, body) = request.into_parts();
    match timeout_at(deadline, receive(&head.headers, body, state.limits.body, &state.bodies)).await {
        Ok(Received::Whole(bytes, _memory)) => answer::to(state, &bytes, deadline).await,
        Ok(Received::TooLarge(prefix)) => answer::to_oversized(&prefix),
        Ok(Received::Broken) => Answer::without_identity(AnswerKind::Malformed),
        Err(_) => Answer::without_identity(AnswerKind::Late),
    }
}

fn json(body: Vec<u8>) -> Response<Body> {
    respond(StatusCode::OK, "application/json", Body::from(body))
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    respond(status, "text/plain; charset=utf-8", Body::from(text))
}

fn respond(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, axum::http::HeaderValue::from_static(content_type));
    response
}
