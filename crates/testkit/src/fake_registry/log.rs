//! What was asked, by whom, in which order.

use std::time::Instant;

use axum::http::{HeaderMap, Version};

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Logged {
    pub method: String,
    pub path: String,
    pub query: String,
    pub headers: HeaderMap,
    pub version: Version,
    /// Whom the password or the token that came along belongs to; empty for those who did not say.
    pub user: String,
    pub at: Instant,
    /// Requests on the same connection have the same number.
    pub connection: usize,
}

impl Logged {
    /// A header's text; empty if it was not sent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) requests: Vec<Logged>,
    pub(super) in_flight: usize,
    pub(super) peak: usize,
    pub(super) connections: usize,
}

impl Log {
    pub(super) fn begin(&mut self, request: Logged) {
        self.requests.push(request);
        self.in_flight += 1;
        self.peak = self.peak.max(self.in_flight);
    }

    pub(super) fn end(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }
}
