use super::*;

fn loki(name: &str) -> Value {
    json!({"name": name, "type": "loki", "loki": {
        "endpoint": "http://loki.example", "query": "{job=\"events\"}", "parser": {"type": "kubernetesEvents"},
    }})
}

fn registry(changes: &Value) -> Value {
    let mut block = json!({"url": "https://r.example", "repositories": ["a"]});
    for (name, value) in changes.as_object().unwrap() {
        block[name] = value.clone();
    }
    json!({"name": "r", "type": "registry", "registry": block})
}

fn signals() -> [Value; 5] {
    let window = json!({"startHour": 8, "endHour": 18, "weight": 2});
    [
        json!({"type": "aggregate", "aggregate": {"method": "sum"}}),
        json!({"type": "timeWeightedAggregate", "timeWeightedAggregate": {
            "method": "sum", "timezone": "America/New_York", "defaultWeight": "500m", "windows": [window],
        }}),
        json!({"type": "windowAggregate", "windowAggregate": {"method": "max", "relativeWindow": "2h"}}),
        json!({"type": "windowAggregate", "windowAggregate": {
            "method": "max", "timezone": "UTC", "window": {"start": "09:00", "end": "17:00"},
        }}),
        json!({"type": "eventPullTime", "eventPullTime": {"statistic": "p95"}}),
    ]
}

fn with_signal(query: &Value, signal: &Value) -> Result<Discovery, SpecError> {
    let mut signal = signal.clone();
    (signal["name"], signal["query"]) = ("s".into(), query["name"].clone());
    let ranking = json!({"strategy": "signal", "signal": "s"});
    compiled(json!({"queries": [query], "signals": [signal], "ranking": ranking}))
}

#[test]
fn every_signal_takes_the_queries_it_fits() {
    let fits = [
        [true, true, true],
        [true, true, false],
        [true, true, false],
        [true, true, false],
        [false, true, false],
    ];
    for (signal, fits) in signals().iter().zip(fits) {
        for (query, fits) in [prometheus("p"), loki("l"), registry(&json!({}))].iter().zip(fits) {
            assert_eq!(with_signal(query, signal).is_ok(), fits, "{signal} {query}");
        }
    }
}

#[test]
fn what_is_wrong_is_named() {
    let base = json!({"queries": [prometheus("q")]});
    let changed = |pointer: &str, value: Value| {
        let mut spec = base.clone();
        spec[pointer] = value;
        compiled(spec).unwrap_err()
    };
    let signal = |block: Value| {
        let mut signal = block;
        (signal["name"], signal["query"]) = ("s".into(), "q".into());
        changed("signals", json!([signal]))
    };
    let source = json!({"type": "prometheus", "prometheus": {"endpoint": "http://x.example", "query": "up"}});
    let query = |changes: Value| changed("queries", json!([registry(&changes)]));
    for (error, reason, message) in [
        (changed("queries", json!([])), "InvalidSpec", "either queries or sources"),
        (changed("sources", json!([source])), "InvalidSpec", "either queries or sources"),
        (
            compiled(json!({"sources": [source]})).unwrap_err(),
            "InvalidSpec",
            "spec.sources[0].prometheus.lookback: a range query needs",
        ),
        (changed("imageFilter", "a)|(b".into()), "InvalidFilter", "spec.imageFilter: regular expression"),
        (query(json!({"tagFilter": "["})), "InvalidFilter", "spec.queries[0].registry.tagFilter"),
        (query(json!({"versionPattern": "v.+"})), "InvalidFilter", "parentheses"),
        (query(json!({"imageTemplate": "{{.Host}}"})), "InvalidSpec", "{{.Host}} is not known"),
        (query(json!({"url": "https://r.example/v2"})), "InvalidSpec", "followed by a path"),
        (query(json!({"url": "https://user:pw@r.example"})), "InvalidSpec", "belong into the Secret"),
        (query(json!({"url": "https://registry"})), "InvalidSpec", "with a dot or a port"),
        (query(json!({"url": "ftp://r.example"})), "InvalidSpec", "not an address"),
        (query(json!({"repositories": ["A"]})), "InvalidSpec", "repositories[0]"),
        (
            changed("queries", json!([{"name": "q", "type": "loki"}])),
            "InvalidSpec",
            "spec.queries[0].loki: is missing",
        ),
        (signal(json!({"type": "aggregate"})), "InvalidSpec", "spec.signals[0].aggregate: is missing"),
        (
            signal(json!({"type": "windowAggregate", "windowAggregate": {
                "method": "sum", "timezone": "Mars/Olympus", "window": {"start": "09:00", "end": "10:00"},
            }})),
            "InvalidSpec",
            "\"Mars/Olympus\" is not the name of a time zone",
        ),
        (
            signal(json!({"type": "windowAggregate", "windowAggregate": {
                "method": "sum", "window": {"start": "09:00", "end": "10:00"},
            }})),
            "InvalidSpec",
            "\"\" is not the name of a time zone",
        ),
        (
            changed("ranking", json!({"strategy": "signal", "signal": "gone"})),
            "InvalidSpec",
            "there is no signal \"gone\"",
        ),
        (changed("ranking", json!({"strategy": "weightedSum"})), "InvalidSpec", "weightedSum: is missing"),
    ] {
        assert_eq!(error.reason(), reason, "{error}");
        assert!(error.to_string().contains(message), "{error}");
        let finding = refused(&error);
        assert!(finding.message.contains("images found before stay"), "{finding:?}");
    }
    let orphan = json!({"name": "s", "query": "gone", "type": "aggregate", "aggregate": {"method": "sum"}});
    assert!(changed("signals", json!([orphan])).to_string().contains("there is no query \"gone\""));
}

#[test]
fn weights_may_be_whole_numbers() {
    let signal = json!({"name": "s", "query": "q", "type": "aggregate", "aggregate": {"method": "sum"}});
    for weight in [json!(2), json!(-1), json!("0.7"), json!("700m")] {
        let terms = json!([{"signal": "s", "weight": weight}]);
        compiled(json!({
            "queries": [prometheus("q")], "signals": [signal],
            "ranking": {"strategy": "weightedSum", "weightedSum": {"terms": terms}},
        }))
        .unwrap();
    }
}

#[test]
fn an_empty_filter_is_none_and_defaults_hold() {
    let discovery =
        compiled(json!({"queries": [prometheus("q")], "imageFilter": "", "maxImages": 0})).unwrap();
    assert_eq!((discovery.filter.is_none(), discovery.most), (true, 50));
}

/// The manifests that users are shown can be carried out.
#[test]
fn examples_are_compiled() {
    let mut seen = 0;
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/warming")).unwrap() {
        let path = file.unwrap().path();
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for policy in objects.iter().filter(|object| object["kind"] == "DiscoveryPolicy") {
            compiled(policy["spec"].clone()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            seen += 1;
        }
    }
    assert!(seen >= 11, "{seen} examples");
}
