use super::*;

fn request(block: &Value) -> String {
    let query = json!({"name": "q", "type": "prometheus", "prometheus": block});
    let discovery = discovery(json!({"queries": [query]}));
    discovery.queries[0].read(now()).unwrap().request().unwrap().to_string()
}

#[test]
fn base_path_and_parameters_are_kept() {
    for (endpoint, expected) in [
        ("http://p.example:9090", "http://p.example:9090/api/v1/query?query=a%2Bb"),
        ("https://p.example/prometheus/", "https://p.example/prometheus/api/v1/query?query=a%2Bb"),
        (
            "http://p.example/x?tenant=t%26u&query=old",
            "http://p.example/x/api/v1/query?tenant=t%26u&query=a%2Bb",
        ),
    ] {
        let block = json!({"endpoint": endpoint, "query": "a+b", "queryType": "instant"});
        assert_eq!(request(&block), expected);
    }
}

#[test]
fn a_range_ends_now_and_has_defaults() {
    for (lookback, step, expected) in [
        (None, None, "start=2026-03-09T12%3A00%3A00Z&end=2026-03-10T12%3A00%3A00Z&step=300s"),
        (Some("1h"), Some("90s"), "start=2026-03-10T11%3A00%3A00Z&end=2026-03-10T12%3A00%3A00Z&step=90s"),
        (
            Some("10m"),
            Some("500ms"),
            "start=2026-03-10T11%3A50%3A00Z&end=2026-03-10T12%3A00%3A00Z&step=500ms",
        ),
    ] {
        let mut block = json!({"endpoint": "http://p.example", "query": "up"});
        for (name, value) in [("lookback", lookback), ("step", step)] {
            if let Some(value) = value {
                block[name] = value.into();
            }
        }
        assert_eq!(request(&block), format!("http://p.example/api/v1/query_range?query=up&{expected}"));
    }
}

#[test]
fn a_long_range_is_asked_for_in_parts_that_give_the_same_series() {
    let block = |lookback: &str, step: &str| {
        let block = json!({"endpoint": "http://p.example", "query": "up", "queryType": "range",
            "lookback": lookback, "step": step, "aggregationMethod": "sum"});
        discovery(json!({"sources": [{"type": "prometheus", "prometheus": block}]}))
    };
    let count = |discovery: &Discovery| {
        let Question::Prometheus(query) = &discovery.queries[0].question else { panic!("{discovery:?}") };
        query.requests(now()).len()
    };
    assert_eq!((count(&block("23h", "1m")), count(&block("24h", "1m"))), (1, 2));
    assert_eq!(count(&block("168h", "1s")), 1, "Prometheus says why it refuses that");
    let week = block("168h", "1m");
    let mut reading = week.queries[0].read(now()).unwrap();
    let (mut ranges, mut points) = (Vec::new(), 0_i64);
    while let Some(url) = reading.request() {
        let time = |name: &str| {
            let (_, value) = url.query_pairs().find(|(key, _)| key == name).unwrap();
            value.parse::<Timestamp>().unwrap().as_second()
        };
        ranges.push((time("start"), time("end")));
        let times: Vec<i64> = (time("start")..=time("end")).step_by(60).collect();
        points += i64::try_from(times.len()).unwrap();
        let series = |pod: &str| {
            let values: Vec<_> = times.iter().map(|time| json!([time, "1"])).collect();
            json!({"metric": {"image": "r.io/a:1", "pod": pod}, "values": values})
        };
        let result = json!({"resultType": "matrix", "result": [series("p"), series("q")]});
        let body = json!({"status": "success", "data": result}).to_string();
        reading.take(200, body.as_bytes()).unwrap();
    }
    let end = now().as_second();
    assert_eq!((ranges[0].0, ranges.last().unwrap().1, points), (end - 604_800, end, 10_081));
    assert!(ranges.windows(2).all(|pair| pair[0].1 + 60 == pair[1].0), "{ranges:?}");
    let answer = reading.finish();
    let counts: Vec<_> = answer.series.iter().map(|one| one.values.len()).collect();
    assert_eq!(counts, [10_081, 10_081], "two series, each whole");
    let status = round(&week, &DiscoveryPolicyStatus::default(), 1, &[Ok(answer)]);
    assert_eq!(status.discovered_images[0].score, Some(10_081), "the score of a whole series");
}

#[test]
fn answers_that_are_none_are_classified() {
    let discovery = discovery(json!({"queries": [prometheus("q")]}));
    let html = "<html>token abc</html>";
    let bad = r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#;
    for (status, body, reason, message) in [
        (401, html, FailureReason::Unauthorized, "the server answers with status 401"),
        (403, html, FailureReason::Forbidden, "the server answers with status 403"),
        (404, html, FailureReason::NotFound, "the server answers with status 404"),
        (429, html, FailureReason::SyncFailed, "the server answers with status 429"),
        (503, bad, FailureReason::SyncFailed, "the server answers with status 503"),
        (504, html, FailureReason::Timeout, "the server answers with status 504"),
        (400, bad, FailureReason::SyncFailed, "status 400: bad_data: parse error"),
        (400, html, FailureReason::SyncFailed, "the server answers with status 400"),
        (200, bad, FailureReason::SyncFailed, "the query failed: bad_data: parse error"),
        (200, html, FailureReason::SyncFailed, "the answer cannot be read"),
        (
            200,
            r#"{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}"#,
            FailureReason::SyncFailed,
            "the result has no label image",
        ),
    ] {
        let failure = answered(&discovery.queries[0], status, body.as_bytes()).unwrap_err();
        assert_eq!(failure.reason, reason, "{status} {body}");
        assert!(failure.message.starts_with(message), "{status} {body}: {failure}");
    }
}

#[test]
fn series_become_samples() {
    let discovery = discovery(json!({"queries": [prometheus("q")]}));
    let body = json!({"status": "success", "data": {"resultType": "vector", "result": [
        {"metric": {"image": "nginx:1.25"}, "value": [1_700_000_000.25, "3"]},
        {"metric": {"image": "nan"}, "value": [1_700_000_000, "NaN"]},
        {"metric": {"image": "inf"}, "value": [1_700_000_000, "+Inf"]},
        {"metric": {"image": "odd"}, "value": [1_700_000_000, "three"]},
        {"metric": {"image": format!("sha256:{}", "a".repeat(64))}, "value": [1_700_000_000, "1"]},
        {"metric": {"pod": "p"}, "value": [1_700_000_000, "1"]},
        {"metric": {"image": "native"}, "histogram": [1_700_000_000, {}]},
    ]}});
    let answer = answered(&discovery.queries[0], 200, body.to_string().as_bytes()).unwrap();
    let found: Vec<_> = answer.series.iter().map(|one| (one.image.written(), one.values.len())).collect();
    assert_eq!(found, [("nginx:1.25", 1), ("nan", 0), ("inf", 0), ("odd", 0), ("native", 0)]);
    let sample = answer.series[0].values[0];
    assert_eq!((sample.at.as_millisecond(), sample.value), (1_700_000_000_250, 3.0));
    assert_eq!(answer.notes, ["2 series without the name of an image in the label image"]);
}

proptest::proptest! {
    #[test]
    fn any_answer_is_read_or_refused(status in 100_u16..600, body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        for kind in ["prometheus", "loki"] {
            let query = json!({"name": "q", "type": kind, kind: {"endpoint": "http://x.example", "query": "up"}});
            let discovery = discovery(json!({"queries": [query]}));
            if let Err(failure) = answered(&discovery.queries[0], status, &body) {
                proptest::prop_assert!(failure.message.chars().count() < 600);
            }
        }
    }
}
