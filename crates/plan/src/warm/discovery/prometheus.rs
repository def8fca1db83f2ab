//! Prometheus, and whatever speaks its protocol: one request, and its answer as series.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp, Unit};
use serde::Deserialize;
use serde::de::IgnoredAny;
use url::Url;

use super::endpoint;
use super::failure::Failure;
use super::sample::{Answer, Sample, Series, image};

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
    /// What to GET.
    pub fn request(&self, now: Timestamp) -> Url {
        let Some(Range { lookback, step }) = self.range else {
            let parameters = [("query", &*self.expression)];
            return endpoint::below(&self.endpoint, "/api/v1/query", &parameters);
        };
        let end = now.round(Unit::Second).unwrap_or(now);
        let start = end.checked_sub(lookback).unwrap_or(Timestamp::UNIX_EPOCH).max(Timestamp::UNIX_EPOCH);
        let (start, end) = (start.round(Unit::Second).unwrap_or(start).to_string(), end.to_string());
        let step = match step.as_millis() {
            whole if whole % 1000 == 0 && whole > 0 => format!("{}s", step.as_secs()),
            millis => format!("{}ms", millis.max(1)),
        };
        let parameters = [("query", &*self.expression), ("start", &*start), ("end", &*end), ("step", &*step)];
        endpoint::below(&self.endpoint, "/api/v1/query_range", &parameters)
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

/// Labels other than the image are not even stored.
#[derive(Deserialize)]
struct Labels {
    #[serde(default)]
    image: String,
}

/// A series without `values` holds native histograms, which are no scores.
#[derive(Deserialize)]
struct Points {
    metric: Labels,
    #[serde(default)]
    values: Vec<(f64, String)>,
}

#[derive(Deserialize)]
struct Point {
    metric: Labels,
    #[serde(default)]
    value: Option<(f64, String)>,
}

/// Reads the answer to a request.
pub(super) fn decode(status: u16, body: &[u8]) -> Result<Answer, Failure> {
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
    let series: Vec<_> = match envelope.data {
        Data::Matrix(all) => all.into_iter().map(|one| (one.metric, one.values)).collect(),
        Data::Vector(all) => {
            all.into_iter().map(|one| (one.metric, one.value.into_iter().collect())).collect()
        }
        Data::Scalar(_) | Data::String(_) => {
            return Err(Failure::malformed("the result has no label image: it is a single value"));
        }
    };
    Ok(answer(series))
}

fn answer(all: Vec<(Labels, Vec<(f64, String)>)>) -> Answer {
    let mut answer = Answer::default();
    let mut left_out = 0_usize;
    for (labels, values) in all {
        let Some(image) = image(&labels.image) else {
            left_out += 1;
            continue;
        };
        let values = values.into_iter().filter_map(|(at, value)| sample(at, &value)).collect();
        answer.series.push(Series { image, values, sizes: Vec::new() });
    }
    if left_out > 0 {
        answer.notes.push(format!("{left_out} series without the name of an image in the label image"));
    }
    answer
}

/// What is not a number, or no finite one, cannot be compared, and is left out.
fn sample(at: f64, value: &str) -> Option<Sample> {
    let since = SignedDuration::try_from_secs_f64(at).ok()?;
    let at = Timestamp::UNIX_EPOCH.checked_add(since).ok()?;
    let value = value.parse().ok().filter(|value: &f64| value.is_finite())?;
    Some(Sample { at, value })
}
