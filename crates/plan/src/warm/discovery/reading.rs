//! A query under way over HTTP: what to send next, until nothing is left to send.

use jiff::Timestamp;
use url::Url;

use super::failure::Failure;
use super::loki::LokiPages;
use super::prometheus::PrometheusPages;
use super::sample::Answer;
use super::{Query, Question};

/// Largest body of one answer.
pub const LARGEST_BODY: usize = 8 << 20;

/// A query under way.
#[derive(Clone, Debug)]
pub struct Reading(State);

#[derive(Clone, Debug)]
enum State {
    Prometheus(PrometheusPages),
    Loki(LokiPages),
}

impl Query {
    /// Begins to ask. Registries are not asked in this way.
    pub fn read(&self, now: Timestamp) -> Option<Reading> {
        Some(Reading(match &self.question {
            Question::Prometheus(query) => State::Prometheus(PrometheusPages::new(query, now)),
            Question::Loki(query) => State::Loki(LokiPages::new(query.clone(), now)),
            Question::Registry(_) => return None,
        }))
    }
}

impl Reading {
    /// What to GET next.
    pub fn request(&self) -> Option<Url> {
        match &self.0 {
            State::Prometheus(pages) => pages.request(),
            State::Loki(pages) => pages.request(),
        }
    }

    /// Takes the response to the last request.
    pub fn take(&mut self, status: u16, body: &[u8]) -> Result<(), Failure> {
        match &mut self.0 {
            State::Prometheus(pages) => pages.take(status, body),
            State::Loki(pages) => pages.take(status, body),
        }
    }

    pub fn finish(self) -> Answer {
        match self.0 {
            State::Prometheus(pages) => pages.finish(),
            State::Loki(pages) => pages.finish(),
        }
    }
}
