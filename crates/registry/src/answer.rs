//! An answer whose body has not been read yet, and the bounded ways to read it.

use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use reqwest::{
    Response, StatusCode, Url,
    header::{CONTENT_LENGTH, HeaderMap},
};
use tokio::time::timeout_at;

use crate::{
    bounds,
    context::Context,
    error::{Detail, Problem, words_of},
    manners::{gate::Permit, quota::Quota},
    transport::{address::Reach, failure::Failure},
};

/// Holds the connection until it is dropped.
#[derive(Debug)]
pub(crate) struct Answer {
    response: Response,
    quota: Quota,
    reach: Option<Reach>,
    permit: Permit,
}

impl Answer {
    pub(crate) fn new(response: Response, quota: Quota, reach: Option<Reach>, permit: Permit) -> Self {
        Self { response, quota, reach, permit }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// A header's text; `None` if it is missing or no text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers().get(name)?.to_str().ok()
    }

    pub(crate) fn content_length(&self) -> Option<u64> {
        self.headers().get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
    }

    pub(crate) fn url(&self) -> &Url {
        self.response.url()
    }

    pub(crate) fn quota(&self) -> &Quota {
        &self.quota
    }

    pub(crate) fn reach(&self) -> Option<Reach> {
        self.reach
    }

    /// Reads what is left of a short body, so that the connection can be used again, and keeps the place in line.
    pub(crate) async fn into_permit(mut self, context: &Context) -> Permit {
        let mut left = bounds::ERROR_BODY;
        while let Ok(Ok(Some(chunk))) = timeout_at(context.deadline, self.chunk()).await {
            let Some(rest) = left.checked_sub(chunk.len()) else {
                break;
            };
            left = rest;
        }
        self.permit
    }

    /// The next piece of the body, `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, Problem> {
        self.response.chunk().await.map_err(|error| Problem::of_failure(Failure::of(&error)))
    }

    /// The whole body, if it keeps to the bound.
    pub(crate) async fn bytes(
        mut self,
        what: &str,
        bound: usize,
        context: &Context,
    ) -> Result<Bytes, Problem> {
        let too_long = || Problem::malformed(format!("{what} is longer than {bound} bytes"));
        if self.content_length().is_some_and(|length| length > bound as u64) {
            return Err(too_long());
        }
        let mut body = BytesMut::new();
        loop {
            let chunk = timeout_at(context.deadline, self.chunk())
                .await
                .map_err(|_| Problem::TimedOut(format!("{what} arrives too slowly").into()))??;
            match chunk {
                None => return Ok(body.freeze()),
                Some(chunk) if body.len() + chunk.len() > bound => {
                    drop(chunk);
                    return Err(too_long());
                }
                Some(chunk) if body.is_empty() && self.content_length() == Some(chunk.len() as u64) => {
                    return Ok(chunk);
                }
                Some(chunk) => body.extend_from_slice(&chunk),
            }
        }
    }

    /// The problem this answer stands for, in the server's own words where it has some.
    pub(crate) async fn into_problem(self, whose: &str, context: &Context) -> Problem {
        let (status, quota) = (self.status(), self.quota);
        let words = match self.bytes("the error", bounds::ERROR_BODY, context).await {
            Ok(body) => words_of(&body),
            Err(_) => String::new(),
        };
        let words = match (whose.is_empty(), words.is_empty()) {
            (true, _) => words,
            (false, true) => format!("{whose} answers with status {status}"),
            (false, false) => format!("{whose} says {words}"),
        };
        Problem::of_status(status, &quota, &words, SystemTime::now())
            .unwrap_or_else(|| Problem::Malformed(Detail::from(format!("status {status} was not expected"))))
    }
}
