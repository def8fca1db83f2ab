//! Loki: log lines of a time, read in pages from the newest backwards, as series of images.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use fairlead_domain::reference::Reference;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use url::Url;

use super::endpoint;
use super::events::EventFields;
use super::failure::{Failure, quoted};
use super::sample::{Answer, Sample, Samples, Series, image};

/// Lines per request: the most that Loki gives out unless it is configured otherwise.
const LINES: usize = 5000;
/// Requests per query. Older lines than these hold are left out.
const PAGES: usize = 20;

/// An expression, the time it covers, and how to read the lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LokiQuery {
    pub endpoint: Url,
    pub expression: String,
    pub lookback: Duration,
    /// Without it every line of a stream with the label `image` counts one.
    pub events: Option<EventFields>,
}

/// A query under way.
#[derive(Clone, Debug)]
pub(super) struct LokiPages {
    query: LokiQuery,
    /// In nanoseconds since 1970. The end is not part of the time.
    start: i128,
    end: Option<i128>,
    pages: usize,
    /// Lines of the oldest moment of the last page, which the next page may repeat.
    repeated: HashSet<u64>,
    samples: Samples,
    left_out: usize,
}

#[derive(Deserialize)]
struct Envelope {
    status: String,
    data: Data,
}

#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "camelCase")]
enum Data {
    Streams(Vec<Stream>),
    Matrix(IgnoredAny),
    Vector(IgnoredAny),
    Scalar(IgnoredAny),
}

#[derive(Deserialize)]
struct Stream {
    stream: BTreeMap<String, String>,
    /// Time in nanoseconds and line; newer servers may add metadata.
    values: Vec<Vec<serde_json::Value>>,
}

impl LokiPages {
    pub(super) fn new(query: LokiQuery, now: Timestamp) -> Self {
        let end = now.as_nanosecond();
        let lookback = i128::try_from(query.lookback.as_nanos()).unwrap_or(i128::MAX);
        Self {
            start: end.saturating_sub(lookback).max(0),
            query,
            end: Some(end),
            pages: 0,
            repeated: HashSet::new(),
            samples: Samples::new(),
            left_out: 0,
        }
    }

    /// What to GET next, if there may be more lines.
    pub(super) fn request(&self) -> Option<Url> {
        let end = self.end.filter(|end| self.pages < PAGES && *end > self.start)?;
        let (start, end, limit) = (self.start.to_string(), end.to_string(), LINES.to_string());
        let parameters = [
            ("query", &*self.query.expression),
            ("start", &*start),
            ("end", &*end),
            ("limit", &*limit),
            ("direction", "backward"),
        ];
        Some(endpoint::below(&self.query.endpoint, "/loki/api/v1/query_range", &parameters))
    }

    pub(super) fn take(&mut self, status: u16, body: &[u8]) -> Result<(), Failure> {
        if status != 200 {
            return Err(Failure::of_status(status, &String::from_utf8_lossy(body)));
        }
        let Envelope { status, data } = serde_json::from_slice(body)
            .map_err(|error| Failure::malformed(format!("the answer cannot be read: {error}")))?;
        if status != "success" {
            return Err(Failure::malformed(format!("the query failed: {}", quoted(&status))));
        }
        let Data::Streams(streams) = data else {
            return Err(Failure::malformed("the result has no log lines: the expression is one of metrics"));
        };
        self.pages += 1;
        let mut oldest: Option<i128> = None;
        let mut at_oldest = HashSet::new();
        let (mut read, mut new) = (0_usize, 0_usize);
        for Stream { stream, values } in &streams {
            for value in values {
                let [at, line, ..] = value.as_slice() else { continue };
                let (Some(Ok(at)), Some(line)) = (at.as_str().map(str::parse::<i128>), line.as_str()) else {
                    continue;
                };
                read += 1;
                let hash = hash_of(stream, at, line);
                if oldest.is_none_or(|oldest| at < oldest) {
                    oldest = Some(at);
                    at_oldest.clear();
                }
                if oldest == Some(at) {
                    at_oldest.insert(hash);
                }
                if !self.repeated.contains(&hash) {
                    new += 1;
                    self.add(stream, at, line);
                }
            }
        }
        self.repeated = at_oldest;
        // The oldest moment is read again, since the page may have ended within it; not if it brought nothing new.
        self.end = oldest.filter(|_| read >= LINES).map(|oldest| if new > 0 { oldest + 1 } else { oldest });
        Ok(())
    }

    fn add(&mut self, labels: &BTreeMap<String, String>, at: i128, line: &str) {
        let Ok(at) = Timestamp::from_nanosecond(at) else { return };
        let Some(fields) = &self.query.events else {
            match labels.get("image").and_then(|text| image(text)) {
                Some(image) => self.series(image).values.push(Sample { at, value: 1.0 }),
                None => self.left_out += 1,
            }
            return;
        };
        // Most events are about other things than pulls: those are not worth a note.
        let Some(pull) = fields.pull(labels, line) else { return };
        let series = self.series(pull.image);
        series.values.extend(pull.seconds.map(|value| Sample { at, value }));
        series.sizes.extend(pull.bytes);
    }

    fn series(&mut self, image: Reference) -> &mut Series {
        let new = |image| Series { image, values: Vec::new(), sizes: Vec::new() };
        let series = self.samples.entry(image.key()).or_insert_with(|| new(image.clone()));
        if image.written() < series.image.written() {
            series.image = image;
        }
        series
    }

    pub(super) fn finish(self) -> Answer {
        let mut notes = Vec::new();
        if self.left_out > 0 {
            notes.push(format!("{} lines without the name of an image in the label image", self.left_out));
        }
        if self.pages >= PAGES && self.end.is_some() {
            notes.push(format!("only the newest {} lines were read", PAGES * LINES));
        }
        Answer { series: self.samples.into_values().collect(), notes, ..Answer::default() }
    }
}

fn hash_of(labels: &BTreeMap<String, String>, at: i128, line: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (labels, at, line).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn query(events: bool) -> LokiQuery {
        let fields = EventFields { reason: "reason".to_owned(), message: "message".to_owned(), image: None };
        LokiQuery {
            endpoint: Url::parse("http://loki.example/base/?tenant=a").unwrap(),
            expression: r#"{job="events"}"#.to_owned(),
            lookback: Duration::from_mins(1),
            events: events.then_some(fields),
        }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_700_000_000).unwrap()
    }

    /// A server that holds lines of one stream and answers as Loki does.
    fn serve(lines: &[(i128, String)], request: &Url) -> Vec<u8> {
        let parameter = |name: &str| {
            request.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned()).unwrap()
        };
        let (start, end): (i128, i128) =
            (parameter("start").parse().unwrap(), parameter("end").parse().unwrap());
        let limit: usize = parameter("limit").parse().unwrap();
        let mut found: Vec<_> = lines.iter().filter(|(at, _)| (start..end).contains(at)).collect();
        found.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let values: Vec<_> =
            found.into_iter().take(limit).map(|(at, line)| json!([at.to_string(), line])).collect();
        let stream = json!({"stream": {"image": "a/b"}, "values": values});
        json!({"status": "success", "data": {"resultType": "streams", "result": [stream], "stats": {}}})
            .to_string()
            .into_bytes()
    }

    fn read(lines: &[(i128, String)]) -> (Answer, usize) {
        let mut pages = LokiPages::new(query(false), now());
        let mut requests = 0;
        while let Some(request) = pages.request() {
            requests += 1;
            pages.take(200, &serve(lines, &request)).unwrap();
        }
        (pages.finish(), requests)
    }

    #[test]
    fn a_request_keeps_the_base_path_and_the_parameters() {
        let request = LokiPages::new(query(false), now()).request().unwrap();
        assert_eq!(
            request.as_str(),
            "http://loki.example/base/loki/api/v1/query_range?tenant=a&query=%7Bjob%3D%22events%22%7D\
             &start=1699999940000000000&end=1700000000000000000&limit=5000&direction=backward"
        );
    }

    #[test]
    fn every_line_is_counted_once_over_all_pages() {
        let end = now().as_nanosecond();
        // Seven lines in every moment, so that pages end within moments.
        let lines: Vec<_> = (0..12_345_i128).map(|n| (end - 1 - n / 7, format!("line {n}"))).collect();
        let (answer, requests) = read(&lines);
        assert_eq!(answer.series.iter().map(|series| series.values.len()).sum::<usize>(), 12_345);
        assert_eq!((requests, answer.notes.len()), (3, 0));
    }

    #[test]
    fn a_moment_with_more_lines_than_a_page_does_not_hold_up_the_rest() {
        let end = now().as_nanosecond();
        let mut lines: Vec<_> = (0..6000).map(|n| (end - 1, format!("line {n}"))).collect();
        lines.push((end - 2, "older".to_owned()));
        let (answer, _) = read(&lines);
        assert_eq!(answer.series[0].values.len(), 5001);
        assert_eq!(answer.series[0].values.last().unwrap().at.as_nanosecond(), end - 2);
    }

    #[test]
    fn the_number_of_requests_is_bounded() {
        let end = now().as_nanosecond();
        let lines: Vec<_> = (1..120_000_i128).map(|n| (end - n, n.to_string())).collect();
        let (answer, requests) = read(&lines);
        assert_eq!(requests, PAGES);
        assert_eq!(answer.notes, ["only the newest 100000 lines were read"]);
    }

    #[test]
    fn pulls_are_read_from_events() {
        let mut pages = LokiPages::new(query(true), now());
        let line = |image: &str, rest: &str| format!("Successfully pulled image \"{image}\" {rest}");
        let values = json!([
            ["1699999990000000000", line("nginx", "in 2s"), {"structured": "metadata"}],
            ["1699999991000000000", line("docker.io/library/nginx:latest", "in 1m4s. Image size: 7 bytes.")],
            ["1699999992000000000", "Scaled up"],
        ]);
        let body = json!({"status": "success", "data": {"resultType": "streams", "result": [
            {"stream": {"job": "events"}, "values": values},
        ]}});
        pages.take(200, body.to_string().as_bytes()).unwrap();
        assert_eq!(pages.request(), None, "a short page is the last one");
        let answer = pages.finish();
        let [nginx] = answer.series.as_slice() else { panic!("{answer:?}") };
        assert_eq!(nginx.image.written(), "docker.io/library/nginx:latest");
        assert_eq!(nginx.values.iter().map(|sample| sample.value).collect::<Vec<_>>(), [2.0, 64.0]);
        assert_eq!(nginx.sizes, [7.0]);
    }

    #[test]
    fn what_is_not_an_answer_is_a_failure() {
        for (status, body, expected) in [
            (200, "{", "cannot be read"),
            (200, r#"{"status":"error","data":{"resultType":"streams","result":[]}}"#, "the query failed"),
            (200, r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#, "no log lines"),
            (400, "parse error at line 1", "status 400: parse error at line 1"),
            (400, "<html>", "answers with status 400"),
            (429, "slow down, Bearer abc", "answers with status 429"),
        ] {
            let failure = LokiPages::new(query(true), now()).take(status, body.as_bytes()).unwrap_err();
            assert!(failure.message.contains(expected), "{status} {body}: {failure}");
        }
    }
}
