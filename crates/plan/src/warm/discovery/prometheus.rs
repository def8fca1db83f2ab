//! Prometheus, and whatever speaks its protocol: requests, and their answers as series.
//!
//! A week of values each minute has megabytes, so a long range is asked for in several requests. What they return of
//! one series is put together again: a series is known by all its labels.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::Hasher;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp, Unit};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use twox_hash::XxHash64;
use url::Url;

use super::endpoint;
use super::failure::Failure;
use super::sample::{Answer, Sample, Series, image};

/// Points of a series in one answer: a day by the minute.
const SLICE: u32 = 1440;
/// Prometheus refuses ranges of more points, and its reason is worth to be read.
const MOST_POINTS: u128 = 11_000;
/// Most bytes of all answers to a query: a week by the minute of three hundred images.
const LARGEST_ANSWER: usize = 56 << 20;

/// An expression and the time it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusQuery {
    pub endpoint: Url,
    pub expression: String,
    /// Of an instant query there is none.
    pub range: Option<Range>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub lookback: Duration,
    pub step: Duration,
}

impl PrometheusQuery {
    /// What to GET, one after the other.
    pub fn requests(&self, now: Timestamp) -> Vec<Url> {
        let Some(Range { lookback, step }) = self.range else {
            let parameters = [("query", &*self.expression)];
            return vec![endpoint::below(&self.endpoint, "/api/v1/query", &parameters)];
        };
        let whole = |time: Timestamp| time.round(Unit::Second).unwrap_or(time);
        let end = whole(now);
        let start =
            whole(end.checked_sub(lookback).unwrap_or(Timestamp::UNIX_EPOCH)).max(Timestamp::UNIX_EPOCH);
        let step = step.max(Duration::from_millis(1));
        let fits = lookback.as_nanos() / step.as_nanos() < MOST_POINTS;
        let (slice, mut begin, mut requests) = (step.saturating_mul(SLICE), start, Vec::new());
        while fits && let Some(next) = begin.checked_add(slice).ok().filter(|next| *next <= end) {
            requests.push(self.range_request(begin, next.checked_sub(step).unwrap_or(begin), step));
            begin = next;
        }
        requests.push(self.range_request(begin, end, step));
        requests
    }

    fn range_request(&self, start: Timestamp, end: Timestamp, step: Duration) -> Url {
        let (start, end) = (start.to_string(), end.to_string());
        let step = match step.as_millis() {
            whole if whole % 1000 == 0 => format!("{}s", step.as_secs()),
            millis => format!("{millis}ms"),
        };
        let parameters = [("query", &*self.expression), ("start", &*start), ("end", &*end), ("step", &*step)];
        endpoint::below(&self.endpoint, "/api/v1/query_range", &parameters)
    }
}

/// The answers to a query so far.
#[derive(Clone, Debug)]
pub(super) struct PrometheusPages {
    /// The next request is the last of these.
    requests: Vec<Url>,
    series: Vec<Series>,
    /// Where each series is, by the hash of its labels.
    places: HashMap<u64, usize>,
    /// Series without an image.
    left_out: HashSet<u64>,
    size: usize,
    /// Why something may be missing from the answers.
    warning: Option<String>,
}

impl PrometheusPages {
    pub(super) fn new(query: &PrometheusQuery, now: Timestamp) -> Self {
        let mut requests = query.requests(now);
        requests.reverse();
        Self {
            requests,
            series: Vec::new(),
            places: HashMap::new(),
            left_out: HashSet::new(),
            size: 0,
            warning: None,
        }
    }

    pub(super) fn request(&self) -> Option<Url> {
        self.requests.last().cloned()
    }

    pub(super) fn take(&mut self, status: u16, body: &[u8]) -> Result<(), Failure> {
        self.requests.pop();
        self.size = self.size.saturating_add(body.len());
        if self.size > LARGEST_ANSWER {
            let most = LARGEST_ANSWER >> 20;
            return Err(Failure::malformed(format!(
                "the answers have more than {most} MiB: use a longer step"
            )));
        }
        let (found, warning) = decode(status, body)?;
        self.warning = self.warning.take().or(warning);
        for (labels, values) in found {
            let Some(image) = image(&labels.image) else {
                self.left_out.insert(labels.hash);
                continue;
            };
            let values = values.into_iter().filter_map(|(at, value)| sample(at, &value));
            let known = self.places.get(&labels.hash).and_then(|at| self.series.get_mut(*at));
            if let Some(known) = known {
                known.values.extend(values);
            } else {
                self.places.insert(labels.hash, self.series.len());
                self.series.push(Series { image, values: values.collect(), sizes: Vec::new() });
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Answer {
        let partial = self.warning.map(|warning| {
            Failure::malformed(format!("the answer may be incomplete: {}", super::failure::quoted(&warning)))
        });
        let mut answer = Answer { series: self.series, partial, ..Answer::default() };
        let left_out = self.left_out.len();
        if left_out > 0 {
            answer.notes.push(format!("{left_out} series without the name of an image in the label image"));
        }
        answer
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    status: String,
    #[serde(default = "no_data")]
    data: Data,
    #[serde(default)]
    error_type: String,
    #[serde(default)]
    error: String,
    #[serde(default)]
    warnings: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "camelCase")]
enum Data {
    Matrix(Vec<Points>),
    Vector(Vec<Point>),
    Scalar(IgnoredAny),
    String(IgnoredAny),
}

fn no_data() -> Data {
    Data::Vector(Vec::new())
}

/// Labels other than the image are not stored, but tell series apart.
#[derive(Default)]
struct Labels {
    image: String,
    hash: u64,
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Labels;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("labels")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
                let mut labels = Labels::default();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    let mut hasher = XxHash64::default();
                    hasher.write(key.as_bytes());
                    hasher.write_u8(0);
                    hasher.write(value.as_bytes());
                    // In whatever order they come.
                    labels.hash = labels.hash.wrapping_add(hasher.finish());
                    if key == "image" {
                        labels.image = value;
                    }
                }
                Ok(labels)
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

/// A series without `values` holds native histograms, which are no scores.
#[derive(Deserialize)]
struct Points {
    metric: Labels,
    #[serde(default)]
    values: Values,
}

#[derive(Deserialize)]
struct Point {
    metric: Labels,
    #[serde(default)]
    value: Option<(f64, String)>,
}

/// The values of one series.
type Values = Vec<(f64, String)>;
type AllValues = Vec<(Labels, Values)>;

/// Warnings about the expression begin so. Others are about data that could not be read, from a store that is away for
/// instance.
const OF_EXPRESSION: &str = "PromQL ";

/// Reads the answer to a request: series, and why some may be missing.
fn decode(status: u16, body: &[u8]) -> Result<(AllValues, Option<String>), Failure> {
    let envelope: Result<Envelope, _> = serde_json::from_slice(body);
    if status != 200 {
        let words = envelope.map_or_else(
            |_| String::from_utf8_lossy(body).into_owned(),
            |envelope| format!("{}: {}", envelope.error_type, envelope.error),
        );
        return Err(Failure::of_status(status, &words));
    }
    let envelope =
        envelope.map_err(|error| Failure::malformed(format!("the answer cannot be read: {error}")))?;
    if envelope.status != "success" {
        let words = super::failure::quoted(&format!("{}: {}", envelope.error_type, envelope.error));
        return Err(Failure::malformed(format!("the query failed: {words}")));
    }
    let mut warnings = envelope.warnings.into_iter().flatten();
    let warning = warnings.find(|warning| !warning.starts_with(OF_EXPRESSION));
    let series = match envelope.data {
        Data::Matrix(all) => all.into_iter().map(|one| (one.metric, one.values)).collect(),
        Data::Vector(all) => {
            all.into_iter().map(|one| (one.metric, one.value.into_iter().collect())).collect()
        }
        Data::Scalar(_) | Data::String(_) => {
            return Err(Failure::malformed("the result has no label image: it is a single value"));
        }
    };
    Ok((series, warning))
}

/// What is not a number, or no finite one, cannot be compared, and is left out.
fn sample(at: f64, value: &str) -> Option<Sample> {
    let since = SignedDuration::try_from_secs_f64(at).ok()?;
    let at = Timestamp::UNIX_EPOCH.checked_add(since).ok()?;
    let value = value.parse().ok().filter(|value: &f64| value.is_finite())?;
    Some(Sample { at, value })
}
