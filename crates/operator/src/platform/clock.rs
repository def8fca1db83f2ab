//! The API server's clock, as its responses show it.
//!
//! [`Clock::layer`] sits in the client and reads the `Date` header of every response. The lease is renewed every two
//! seconds, so the clock is never older than that while a replica leads, and costs no request of its own.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use fairlead_plan::clock::{self, Reading, Sighting};
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::header::DATE;
use hyper::{Request, Response};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use tower::{Layer, Service};

/// What was last seen of the API server's clock. Clones share everything.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    seen: Arc<Mutex<Option<ServerDate>>>,
}

#[derive(Debug, Clone, Copy)]
struct ServerDate {
    date: Timestamp,
    asked: Instant,
    answered: Instant,
}

impl Clock {
    /// What time it is.
    pub fn read(&self) -> Reading {
        let seen = self.lock().map(|ServerDate { date, asked, answered }| Sighting {
            date,
            took: answered.saturating_duration_since(asked),
            age: answered.elapsed(),
        });
        clock::read(Timestamp::now(), seen)
    }

    /// The time to write down.
    pub fn now(&self) -> Timestamp {
        self.read().now
    }

    /// For the client that talks to the API server.
    pub fn layer(&self) -> ClockLayer {
        ClockLayer(self.clone())
    }

    fn saw(&self, date: Timestamp, asked: Instant) {
        *self.lock() = Some(ServerDate { date, asked, answered: Instant::now() });
    }

    fn lock(&self) -> MutexGuard<'_, Option<ServerDate>> {
        self.seen.lock()
    }
}

/// How far the local clock is ahead, read when the metrics page is.
impl Collector for Clock {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let skew = self.read().skew.map_or(0, |skew| skew.as_secs());
        let gauge = ConstGauge::new(skew);
        let help = "Seconds by which this replica's clock is ahead of the API server's; 0 within a minute";
        let encoder =
            encoder.encode_descriptor("fairlead_clock_skew_seconds", help, None, gauge.metric_type())?;
        gauge.encode(encoder)
    }
}

/// See [`Clock::layer`].
#[derive(Debug, Clone)]
pub struct ClockLayer(Clock);

impl<S> Layer<S> for ClockLayer {
    type Service = Watched<S>;

    fn layer(&self, inner: S) -> Watched<S> {
        Watched { inner, clock: self.0.clone() }
    }
}

/// A client whose responses set a [`Clock`].
#[derive(Debug, Clone)]
pub struct Watched<S> {
    inner: S,
    clock: Clock,
}

impl<S, B, R> Service<Request<B>> for Watched<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    R: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (clock, asked) = (self.clock.clone(), Instant::now());
        let answering = self.inner.call(request);
        async move {
            let answer = answering.await?;
            if let Some(date) = date_of(&answer) {
                clock.saw(date, asked);
            }
            Ok(answer)
        }
        .boxed()
    }
}

fn date_of<R>(answer: &Response<R>) -> Option<Timestamp> {
    let text = answer.headers().get(DATE)?.to_str().ok()?;
    Timestamp::try_from(httpdate::parse_http_date(text).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn the_date_of_a_response_sets_the_clock() {
        let clock = Clock::default();
        let answering = service_fn(async |request: Request<String>| {
            let mut answer = Response::new(());
            if !request.body().is_empty() {
                answer.headers_mut().insert(DATE, request.body().parse().expect("a header"));
            }
            Ok::<_, Infallible>(answer)
        });
        let client = clock.layer().layer(answering);
        let ask = async |date: &str| drop(client.clone().oneshot(Request::new(date.to_owned())).await);
        ask("").await;
        ask("yesterday").await;
        assert_eq!(clock.read().skew, None, "no date, or none that can be read");
        ask("Wed, 21 Oct 2015 07:28:00 GMT").await;
        let past: Timestamp = "2015-10-21T07:28:00Z".parse().expect("a time");
        assert!(clock.now() >= past && clock.now() < past + jiff::SignedDuration::from_mins(1));
        assert!(clock.read().complaint().is_some());
        ask(&httpdate::fmt_http_date(std::time::SystemTime::now())).await;
        assert_eq!(clock.read().skew, None);
    }
}
