//! The load: a process of its own that keeps several connections busy, each with one request after the other, and says
//! how long they took.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use fairlead_testkit::Program;
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};

use super::answers;
use super::client::{self, Connection};
use super::reviews::{self, REVIEWS, Review, Shape};

/// Time for starting, preparing the reviews and connecting.
const PREPARATION: Duration = Duration::from_mins(1);

/// What to ask, of whom, and for how long.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// Where the webhook is
    #[arg(long)]
    pub(crate) address: SocketAddr,
    /// The path that it answers on
    #[arg(long)]
    pub(crate) path: String,
    /// File with the certificate of its authority
    #[arg(long)]
    pub(crate) authority: PathBuf,
    /// Registry of the Pods' images
    #[arg(long)]
    pub(crate) source: String,
    #[command(flatten)]
    pub(crate) shape: Shape,
    #[arg(long)]
    pub(crate) connections: usize,
    /// Seconds after which no request is begun
    #[arg(long)]
    pub(crate) seconds: f64,
    /// Seconds at the beginning that do not count
    #[arg(long, default_value_t = 0.0)]
    pub(crate) warm_up: f64,
    /// Requests after which no further one is begun
    #[arg(long)]
    pub(crate) requests: Option<usize>,
    /// Where the first Pod of each review must get its images from
    #[arg(long)]
    pub(crate) expect: Option<String>,
    /// Namespace of all Pods, instead of many
    #[arg(long)]
    pub(crate) namespace: Option<String>,
}

/// What came of it. Times are in seconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) requests: usize,
    /// Requests that count, per second.
    pub(crate) rate: f64,
    pub(crate) median: f64,
    pub(crate) p99: f64,
    pub(crate) slowest: f64,
}

impl Load {
    /// Puts the load on, in this process.
    pub(crate) async fn run(self) -> Result<()> {
        let outcome = tokio::task::spawn_blocking(move || self.put_on()).await??;
        println!("{}", serde_json::to_string(&outcome)?);
        Ok(())
    }

    /// Puts the load on, in a process of its own.
    pub(crate) async fn elsewhere(&self) -> Result<Outcome> {
        let mut program = Program::new(std::env::current_exe()?)
            .arg("admission-load")
            .arg(format!("--address={}", self.address))
            .arg(format!("--path={}", self.path))
            .arg(format!("--authority={}", self.authority.display()))
            .arg(format!("--source={}", self.source))
            .arg(format!("--containers={}", self.shape.containers))
            .arg(format!("--connections={}", self.connections))
            .arg(format!("--seconds={}", self.seconds))
            .arg(format!("--warm-up={}", self.warm_up));
        if self.shape.plain {
            program = program.arg("--plain");
        }
        if let Some(requests) = self.requests {
            program = program.arg(format!("--requests={requests}"));
        }
        if let Some(place) = &self.expect {
            program = program.arg(format!("--expect={place}"));
        }
        if let Some(namespace) = &self.namespace {
            program = program.arg(format!("--namespace={namespace}"));
        }
        let process = program.start().await?;
        let ending = process.wait(PREPARATION + Duration::from_secs_f64(self.seconds)).await;
        if ending.is_err() {
            process.kill().await?;
        }
        ensure!(ending?.code == Some(0), "the load could not be put on:\n{}", process.log_tail());
        let logs = process.logs()?;
        Ok(serde_json::from_str(logs.lines().last().context("the load says nothing")?)?)
    }

    fn put_on(&self) -> Result<Outcome> {
        let reviews = reviews::all_in(self.namespace.as_deref(), &self.source, self.shape)?;
        let requests =
            reviews.iter().map(|review| client::request(self.address, &self.path, &review.body)).collect();
        let config = client::trusting(&self.authority)?;
        let asked = Asked { load: self, reviews, requests, next: AtomicUsize::new(0) };
        let barrier = Barrier::new(self.connections);
        let latencies = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.connections)
                .map(|_| scope.spawn(|| asked.keep_asking(Arc::clone(&config), &barrier)))
                .collect();
            let mut all = Vec::new();
            for thread in threads {
                all.extend(thread.join().map_err(|_| anyhow!("a connection's thread panicked"))??);
            }
            anyhow::Ok(all)
        })?;
        summarise(latencies)
    }
}

/// What all connections share.
struct Asked<'a> {
    load: &'a Load,
    reviews: Vec<Review>,
    requests: Vec<Vec<u8>>,
    next: AtomicUsize,
}

/// When a request that counts began, and how long it took.
type Latency = (Instant, Duration);

impl Asked<'_> {
    fn keep_asking(&self, config: Arc<ClientConfig>, barrier: &Barrier) -> Result<Vec<Latency>> {
        let connection = Connection::open(self.load.address, config);
        // All wait for each other also if one cannot connect.
        barrier.wait();
        let mut connection = connection?;
        let begun = Instant::now();
        let (warm, over) =
            (Duration::from_secs_f64(self.load.warm_up), Duration::from_secs_f64(self.load.seconds));
        let mut latencies = Vec::new();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let start = Instant::now();
            if self.load.requests.is_some_and(|most| number >= most) || start - begun >= over {
                return Ok(latencies);
            }
            let (Some(review), Some(request)) =
                (self.reviews.get(number % REVIEWS), self.requests.get(number % REVIEWS))
            else {
                return Ok(latencies);
            };
            let answer = connection.ask(request).with_context(|| format!("request {number}"))?;
            let took = start.elapsed();
            if start - begun >= warm {
                latencies.push((start, took));
            }
            answers::glance(answer)?;
            if number < REVIEWS
                && let Some(place) = &self.load.expect
            {
                answers::expect(review, answer, place)?;
            }
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts far below where it matters")]
fn summarise(latencies: Vec<Latency>) -> Result<Outcome> {
    let begun = latencies.iter().map(|(start, _)| *start).min().context("no request was made in time")?;
    let ended = latencies.iter().map(|(start, took)| *start + *took).max().unwrap_or(begun);
    let mut times: Vec<Duration> = latencies.into_iter().map(|(_, took)| took).collect();
    times.sort_unstable();
    let at = |percent: usize| {
        let time = times.get((times.len() * percent / 100).min(times.len() - 1));
        time.map_or(f64::NAN, Duration::as_secs_f64)
    };
    Ok(Outcome {
        requests: times.len(),
        rate: times.len() as f64 / (ended - begun).as_secs_f64(),
        median: at(50),
        p99: at(99),
        slowest: at(100),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_slowest_are_found() {
        let start = Instant::now();
        let latencies = (1..=200).rev().map(|ms| (start, Duration::from_millis(ms))).collect();
        let outcome = summarise(latencies).unwrap();
        assert_eq!(outcome.requests, 200);
        let near = |found: f64, wanted: f64| (found - wanted).abs() < 1e-9;
        assert!(near(outcome.median, 0.101) && near(outcome.p99, 0.199), "{outcome:?}");
        assert!(near(outcome.slowest, 0.2) && near(outcome.rate, 1000.0), "{outcome:?}");
        assert!(summarise(Vec::new()).is_err());
    }
}
