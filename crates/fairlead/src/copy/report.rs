//! What came of a copy, as a line for people and as an object for programs.

use std::time::Duration;

use anyhow::{Context, Result};
use fairlead_domain::duration::Duration as Timeout;
use fairlead_registry::copy::{Copied, CopyError};
use fairlead_registry::{ErrorClass, Problem};
use indicatif::BinaryBytes;
use jiff::Timestamp;
use serde::Serialize;

use super::list::Pair;
use crate::access::hint;
use crate::output::one_line;

#[derive(Debug, Serialize)]
pub(crate) struct CopyResult {
    /// Both as they were given.
    source: String,
    destination: String,
    seconds: f64,
    #[serde(flatten)]
    outcome: CopyOutcome,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum CopyOutcome {
    Good(Good),
    Bad { error: String },
}

#[derive(Debug, Serialize)]
struct Good {
    /// At the destination.
    digest: String,
    /// False when the destination had the image under this name already.
    changed: bool,
    /// Bytes of blobs that were sent.
    bytes: u64,
    blobs: Blobs,
}

#[derive(Debug, Serialize)]
struct Blobs {
    copied: u64,
    /// Taken by the destination from another of its repositories.
    mounted: u64,
    /// The destination had them.
    skipped: u64,
}

impl CopyResult {
    /// `exceeded` is the time that the copy had, if that is over.
    pub(crate) fn new(
        pair: &Pair,
        result: Result<Copied, CopyError>,
        time: Duration,
        exceeded: Option<&Timeout>,
    ) -> Self {
        let outcome = match result {
            Ok(copied) => CopyOutcome::Good(Good {
                digest: copied.digest.to_string(),
                changed: copied.changed,
                bytes: copied.bytes_sent,
                blobs: Blobs {
                    copied: copied.blobs_sent,
                    mounted: copied.blobs_mounted,
                    skipped: copied.blobs_present,
                },
            }),
            Err(error) => {
                let text = error.to_string();
                CopyOutcome::Bad {
                    error: one_line(&text) + &hint(&text) + &until(&error) + &late(&error, exceeded),
                }
            }
        };
        Self {
            source: pair.source.written().to_owned(),
            destination: pair.destination.written().to_owned(),
            seconds: Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).as_secs_f64(),
            outcome,
        }
    }

    pub(crate) fn is_good(&self) -> bool {
        matches!(self.outcome, CopyOutcome::Good(_))
    }

    pub(crate) fn json(&self) -> Result<String> {
        serde_json::to_string(self).context("cannot write a report")
    }

    /// Words with spaces only at the end, so that lines can be cut by programs.
    pub(crate) fn line(&self) -> String {
        let (state, digest, words) = match &self.outcome {
            CopyOutcome::Good(good) if good.changed => ("copied", good.digest.as_str(), good.words()),
            CopyOutcome::Good(good) => ("unchanged", good.digest.as_str(), good.words()),
            CopyOutcome::Bad { error } => ("failed", "-", error.clone()),
        };
        let line = format!(
            "{state:9}  {}  {}  {digest}  {:.1}s  {words}",
            self.source, self.destination, self.seconds
        );
        line.trim_end().to_owned()
    }
}

/// When a quota that is used up is there again, if its registry told.
fn until(error: &CopyError) -> String {
    let (CopyError::Source(error) | CopyError::Destination(error)) = error else { return String::new() };
    let Problem::RateLimited { until: Some(until), .. } = error.problem else { return String::new() };
    Timestamp::try_from(until).map_or_else(|_| String::new(), |until| format!(" (until {until:.0})"))
}

/// A copy that runs out of time while bytes move does not blame a registry.
fn late(error: &CopyError, exceeded: Option<&Timeout>) -> String {
    match exceeded {
        Some(timeout) if error.class() == ErrorClass::Retry => {
            format!(" (--timeout {timeout} was not enough)")
        }
        _ => String::new(),
    }
}

impl Good {
    fn words(&self) -> String {
        let Blobs { copied, mounted, skipped } = self.blobs;
        let parts = [
            (copied, format!("{copied} blobs sent ({})", BinaryBytes(self.bytes))),
            (mounted, format!("{mounted} mounted")),
            (skipped, format!("{skipped} already there")),
        ];
        let parts: Vec<_> = parts.into_iter().filter(|(count, _)| *count > 0).map(|(_, part)| part).collect();
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use fairlead_domain::digest::Digest;
    use fairlead_domain::reference::Reference;
    use serde_json::{Value, json};

    use super::super::list::Origin;
    use super::*;

    fn pair() -> Pair {
        Pair {
            source: Reference::parse("nginx").unwrap(),
            destination: Reference::parse("r.example.com/nginx:1").unwrap(),
            origin: Origin::Arguments,
        }
    }

    fn reports() -> [CopyResult; 3] {
        let pair = pair();
        let copied = Copied {
            digest: Digest::sha256(b"x"),
            source_digest: Digest::sha256(b"x"),
            changed: true,
            blobs_sent: 3,
            bytes_sent: 3 << 20,
            blobs_mounted: 0,
            blobs_present: 2,
            manifests: 1,
        };
        let there = Copied { changed: false, blobs_sent: 0, bytes_sent: 0, blobs_present: 0, ..copied };
        let problem = Problem::Tls("its\x1b name; see registries.<host>.caFile".into());
        let error = fairlead_registry::Error { attempt: "read it".into(), problem };
        [Ok(copied), Ok(there), Err(CopyError::Source(error))]
            .map(|result| CopyResult::new(&pair, result, Duration::from_micros(1_234_567), None))
    }

    #[test]
    fn people_get_lines() {
        let digest = Digest::sha256(b"x");
        let [copied, there, failed] = reports().map(|report| report.line());
        let images = "nginx  r.example.com/nginx:1";
        assert_eq!(
            copied,
            format!("copied     {images}  {digest}  1.2s  3 blobs sent (3.00 MiB), 2 already there")
        );
        assert_eq!(there, format!("unchanged  {images}  {digest}  1.2s"));
        assert!(failed.starts_with(&format!("failed     {images}  -  1.2s  source: ")), "{failed}");
        assert!(failed.contains("its  name") && failed.contains("--ca-file HOST=FILE"), "{failed}");
    }

    #[test]
    fn a_used_up_quota_says_when_it_is_there_again() {
        let failed = |until| {
            let problem = Problem::RateLimited { until, detail: "".into() };
            let error = fairlead_registry::Error { attempt: "read it".into(), problem };
            CopyResult::new(&pair(), Err(CopyError::Destination(error)), Duration::ZERO, None).line()
        };
        let told = failed(Some(SystemTime::UNIX_EPOCH + Duration::from_secs(90)));
        assert!(told.ends_with("quota is used up (until 1970-01-01T00:01:30Z)"), "{told}");
        let untold = failed(None);
        assert!(untold.ends_with("quota is used up"), "{untold}");
    }

    #[test]
    fn a_copy_that_runs_out_of_time_says_which() {
        let timeout: Timeout = "90s".parse().unwrap();
        let failed = |problem, exceeded| {
            let error = fairlead_registry::Error { attempt: "read it".into(), problem };
            CopyResult::new(&pair(), Err(CopyError::Source(error)), Duration::ZERO, exceeded).line()
        };
        let late = failed(Problem::TimedOut("".into()), Some(&timeout));
        assert!(late.ends_with("deadline (--timeout 90s was not enough)"), "{late}");
        let in_time = failed(Problem::TimedOut("".into()), None);
        assert!(in_time.ends_with("deadline"), "{in_time}");
        let other = failed(Problem::NotFound("".into()), Some(&timeout));
        assert!(other.ends_with("it is not there"), "{other}");
    }

    #[test]
    fn programs_get_objects() {
        let [copied, _, failed] =
            reports().map(|report| serde_json::from_str::<Value>(&report.json().unwrap()).unwrap());
        assert_eq!(
            copied,
            json!({
                "source": "nginx", "destination": "r.example.com/nginx:1", "seconds": 1.234,
                "digest": Digest::sha256(b"x").to_string(), "changed": true, "bytes": 3 << 20,
                "blobs": {"copied": 3, "mounted": 0, "skipped": 2}
            })
        );
        let keys: Vec<_> = failed.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["destination", "error", "seconds", "source"]);
    }
}
