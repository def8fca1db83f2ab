//! A response whose body has not been read yet, and the bounded ways to read it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use hyper::header::CONTENT_LENGTH;
use hyper::{HeaderMap, StatusCode};
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::context::Context;
use crate::auth::redact::SentSecrets;
use crate::error::{Detail, Problem, named, says_full, words_of};
use crate::limits::budget::Permit;
use crate::limits::quota::Quota;
use crate::limits::retry;
use crate::limits::server::{Server, Trial};
use crate::size_limits;
use crate::transport::address::Reach;
use crate::transport::http::Response;

/// Holds its connection until it is dropped.
#[derive(Debug)]
pub(crate) struct ApiResponse {
    response: Response,
    quota: Quota,
    permit: Permit,
    /// The time limit of its request.
    due: Instant,
    body: Option<BodyReport>,
}

/// Reports to the circuit breaker whether a body arrived whole.
#[derive(Debug)]
pub(crate) struct BodyReport {
    server: Arc<Server>,
    trial: Arc<Trial>,
    request: u64,
    /// Bytes still to come, where the length is known.
    missing: Option<u64>,
}

impl BodyReport {
    pub(crate) fn new(server: &Arc<Server>, trial: &Arc<Trial>, request: u64, response: &Response) -> Self {
        let missing = length_of(response.headers());
        Self { server: Arc::clone(server), trial: Arc::clone(trial), request, missing }
    }

    /// Whether the body is complete with this piece.
    fn is_complete(&mut self, piece: Option<&Bytes>) -> bool {
        let Some(piece) = piece else { return true };
        self.missing = self.missing.map(|missing| missing.saturating_sub(piece.len() as u64));
        self.missing == Some(0)
    }
}

impl ApiResponse {
    pub(crate) fn new(
        response: Response,
        quota: Quota,
        permit: Permit,
        due: Instant,
        body: Option<BodyReport>,
    ) -> Self {
        Self { response, quota, permit, due, body }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// A header's text; `None` if it is missing or not text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers().get(name)?.to_str().ok()
    }

    pub(crate) fn content_length(&self) -> Option<u64> {
        length_of(self.headers())
    }

    pub(crate) fn url(&self) -> &Url {
        self.response.url()
    }

    pub(crate) fn quota(&self) -> &Quota {
        &self.quota
    }

    pub(crate) fn reach(&self) -> Option<Reach> {
        self.response.reach()
    }

    /// Reads the rest of a short body, so that the connection can be reused, and returns the permit.
    pub(crate) async fn into_permit(mut self, context: &Context) -> Permit {
        let mut left = size_limits::ERROR_BODY;
        let until = context.until(size_limits::DRAIN_TIME);
        while let Ok(Some(chunk)) = self.chunk(until, "the answer").await {
            let Some(rest) = left.checked_sub(chunk.len()) else { break };
            left = rest;
        }
        self.permit
    }

    /// The next piece of the body, `None` at its end.
    pub(crate) async fn chunk(&mut self, until: Instant, what: &str) -> Result<Option<Bytes>, Problem> {
        let since = Instant::now();
        let problem = match timeout_at(until, self.response.chunk()).await {
            Ok(Ok(piece)) => {
                if let Some(body) = self.body.take_if(|body| body.is_complete(piece.as_ref())) {
                    body.server.completed();
                }
                return Ok(piece);
            }
            Ok(Err(failure)) => Problem::of_failure(failure),
            Err(_) => Problem::TimedOut(format!("{what} arrives too slowly").into()),
        };
        if let Some(body) = self.body.take() {
            body.server.broke_off(&problem, since, body.request, &body.trial);
        }
        Err(problem)
    }

    /// The whole body, if it keeps to the size limit and arrives in time.
    pub(crate) async fn bytes(self, what: &str, limit: usize, context: &Context) -> Result<Bytes, Problem> {
        let until = context.until(size_limits::READ_TIME).min(self.due);
        self.bytes_until(until, what, limit).await
    }

    async fn bytes_until(mut self, until: Instant, what: &str, limit: usize) -> Result<Bytes, Problem> {
        let too_long = || Problem::malformed(format!("{what} is longer than {limit} bytes"));
        if self.content_length().is_some_and(|length| length > limit as u64) {
            return Err(too_long());
        }
        let mut body = BytesMut::new();
        loop {
            match self.chunk(until, what).await? {
                None => return Ok(body.freeze()),
                Some(chunk) if body.len() + chunk.len() > limit => return Err(too_long()),
                // The common case needs no copy.
                Some(chunk) if body.is_empty() && self.content_length() == Some(chunk.len() as u64) => {
                    return Ok(chunk);
                }
                Some(chunk) => body.extend_from_slice(&chunk),
            }
        }
    }

    /// After which pause a retry makes sense, if at all.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        retry::is_transient(self.status()).then(|| self.quota.retry_after.unwrap_or_default())
    }

    /// The problem this response stands for, in the server's own words unless they repeat a secret.
    pub(crate) async fn into_problem(
        self,
        whose: &str,
        secrets: SentSecrets<'_>,
        context: &Context,
    ) -> Problem {
        let (status, quota) = (self.status(), self.quota);
        let until = context.until(size_limits::DRAIN_TIME);
        let (words, is_full) = match self.bytes_until(until, "the error", size_limits::ERROR_BODY).await {
            Ok(body) => (words_of(&body, secrets), status.is_server_error() && says_full(&body)),
            Err(_) => (String::new(), false),
        };
        let words = match (whose.is_empty(), words.is_empty()) {
            (true, _) => words,
            (false, true) => format!("{whose} answers with status {}", named(status)),
            (false, false) => format!("{whose} says {words}"),
        };
        Problem::of_status(status, &quota, &words, is_full, SystemTime::now())
            .unwrap_or_else(|| Problem::Malformed(Detail::from(format!("status {status} was not expected"))))
    }
}

fn length_of(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}
