use proptest::prelude::*;

use super::*;

fn refused() -> Result<Answer, Failure> {
    Err(Failure::new(FailureReason::ConnectionRefused, "p.example cannot be reached"))
}

fn usage(discovery: &Discovery, series: &[(&str, &[f64])]) -> Result<Answer, Failure> {
    answered(&discovery.queries[0], 200, &matrix(series))
}

fn signal(name: &str, query: &str, method: &str) -> Value {
    json!({"name": name, "query": query, "type": "aggregate", "aggregate": {"method": method}})
}

fn by_signal(most: u32) -> Discovery {
    discovery(json!({
        "queries": [prometheus("usage")], "signals": [signal("sum", "usage", "sum")], "maxImages": most,
        "ranking": {"strategy": "signal", "signal": "sum"}, "imageFilter": "^r.example/",
    }))
}

#[test]
fn images_are_ranked_filtered_and_cut() {
    let discovery = by_signal(3);
    let answer = usage(
        &discovery,
        &[
            ("r.example/b:1", &[1.0, 1.5]),
            ("r.example/a:1", &[2.5]),
            ("r.example/c:1", &[9.0]),
            ("r.example/d:1", &[0.5]),
            ("other.example/x:1", &[99.0]),
        ],
    );
    let status = round(&discovery, &DiscoveryPolicyStatus::default(), 1, &[answer]);
    assert_eq!(listed(&status), [("r.example/c:1", "9"), ("r.example/a:1", "2.5"), ("r.example/b:1", "2.5")]);
    assert_eq!(status.discovered_images.iter().map(|one| one.rank.unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(
        (status.image_count, status.source_count, status.observed_generation),
        (Some(3), None, Some(1))
    );
    assert_eq!(ready(&status), (true, "Synced", "3 images"));
}

#[test]
fn series_of_one_image_add_up_whatever_its_spelling() {
    let discovery = discovery(json!({"queries": [prometheus("usage")]}));
    let answer = usage(
        &discovery,
        &[("nginx", &[1.0, 2.0]), ("docker.io/library/nginx:latest", &[1.0, 5.0]), ("redis", &[6.0])],
    );
    let status = round(&discovery, &DiscoveryPolicyStatus::default(), 1, &[answer]);
    assert_eq!(listed(&status), [("docker.io/library/nginx:latest", "7"), ("redis", "6")]);
}

#[test]
fn every_image_that_came_back_counts_once() {
    let registry = json!({"name": "tags", "type": "registry", "registry": {
        "url": "https://r.example", "repositories": ["team/app"],
    }});
    let queries = json!([prometheus("one"), prometheus("two"), registry]);
    let discovery = discovery(json!({"queries": queries, "imageFilter": "^redis"}));
    let mut answers = [
        usage(
            &discovery,
            &[("nginx", &[1.0]), ("docker.io/library/nginx:latest", &[5.0]), ("redis", &[6.0])],
        ),
        usage(&discovery, &[("redis", &[1.0]), ("a/b", &[])]),
        refused(),
    ];
    let (stored, generation) = (&DiscoveryPolicyStatus::default(), Some(1));
    let round = Round { stored, complete: true, generation, answers: &mut answers, nodes: 2, now: now() };
    assert_eq!(discovery.report(round).found, [("prometheus", 3), ("registry", 0)].into());
}

#[test]
fn exposure_counts_the_nodes_it_is_given() {
    let discovery = discovery(json!({
        "queries": [prometheus("usage"), prometheus("before")],
        "signals": [signal("target", "usage", "max"), signal("pre", "before", "max"), signal("one", "usage", "count")],
        "ranking": {"strategy": "modelExposure", "modelExposure": {
            "targetWindowUsageSignal": "target", "preWindowUsageSignal": "pre", "pullTimeSignal": "one",
        }},
    }));
    let answers = [
        usage(&discovery, &[("a", &[4.0]), ("b", &[4.0])]),
        usage(&discovery, &[("a", &[1.0]), ("b", &[3.0])]),
    ];
    let status = round(&discovery, &DiscoveryPolicyStatus::default(), 1, &answers);
    assert_eq!(listed(&status), [("a", "2"), ("b", "0.5")]);
    assert_eq!(discovery.exposed_nodes([Named("n1"), Named("n2"), Named("n3")].into_iter()), 3);
}

struct Named(&'static str);

impl NodeFacts for Named {
    fn name(&self) -> &str {
        self.0
    }

    fn label(&self, _: &str) -> Option<&str> {
        None
    }
}

#[test]
fn a_failing_backend_never_empties_the_list() {
    let discovery = by_signal(50);
    let good = round(
        &discovery,
        &DiscoveryPolicyStatus::default(),
        1,
        &[usage(&discovery, &[("r.example/a:1", &[1.0])])],
    );
    let failed = round(&discovery, &good, 1, &[refused()]);
    assert_eq!(listed(&failed), listed(&good));
    let (holds, reason, message) = ready(&failed);
    assert_eq!((holds, reason), (false, "ConnectionRefused"));
    assert_eq!(
        message,
        "1 image; 1 of 1 queries failed, so the images known at 2026-03-10T12:00:00Z stay: usage: p.example cannot be \
         reached"
    );
    let again = ready(&round(&discovery, &failed, 1, &[refused()])).2.to_owned();
    assert!(again.contains("so the images known before stay"), "{again}");
    let edited = round(&discovery, &failed, 2, &[refused()]);
    assert_eq!(listed(&edited), listed(&good), "an edit whose backend is away deletes nothing either");

    let empty = round(&discovery, &edited, 2, &[usage(&discovery, &[])]);
    assert_eq!((listed(&empty).len(), ready(&empty)), (0, (true, "Synced", "no image was found")));
}

#[test]
fn a_ranking_without_one_of_its_queries_keeps_the_last_complete_one() {
    let discovery = discovery(json!({"queries": [prometheus("one"), prometheus("two")]}));
    let answers = [usage(&discovery, &[("a", &[2.0])]), usage(&discovery, &[("b", &[1.0])])];
    let [new_one, new_two] = [usage(&discovery, &[("c", &[3.0])]), refused()];

    let first = round(&discovery, &DiscoveryPolicyStatus::default(), 1, &[new_one.clone(), new_two.clone()]);
    assert_eq!(
        (listed(&first), ready(&first).1),
        (vec![("c", "3")], "PartiallyFailed"),
        "better than nothing"
    );

    let good = round(&discovery, &first, 1, &answers);
    assert_eq!(listed(&good), [("a", "2"), ("b", "1")]);
    let partial = round(&discovery, &good, 1, &[new_one.clone(), new_two.clone()]);
    assert_eq!(listed(&partial), listed(&good));
    assert_eq!((ready(&partial).0, ready(&partial).1), (true, "PartiallyFailed"));
    let results: Vec<_> = partial.query_results.iter().map(|one| one.message.as_deref()).collect();
    assert_eq!(results, [None, Some("p.example cannot be reached")]);

    let edited = round(&discovery, &partial, 2, &[new_one, new_two]);
    assert_eq!(listed(&edited), [("c", "3")], "the list was made for another specification");
}

#[test]
fn a_first_list_without_one_of_its_queries_follows_the_others() {
    let discovery = discovery(json!({"queries": [prometheus("one"), prometheus("two")]}));
    let partial = |image: &str| [usage(&discovery, &[(image, &[1.0])]), refused()];
    let after = |(stored, complete): &(DiscoveryPolicyStatus, bool), answers: &[Result<Answer, Failure>]| {
        round_after(&discovery, (stored, *complete), 1, answers)
    };
    let mut last = (DiscoveryPolicyStatus::default(), true);
    for image in ["a", "b", "c"] {
        last = after(&last, &partial(image));
        assert_eq!((listed(&last.0), last.1), (vec![(image, "1")], false));
    }
    last = after(&last, &[refused(), refused()]);
    assert_eq!((listed(&last.0), last.1), (vec![("c", "1")], false), "while nothing answers");
    last = after(&last, &partial("d"));
    assert_eq!(listed(&last.0), [("d", "1")]);
    last = after(&last, &[usage(&discovery, &[("e", &[2.0])]), usage(&discovery, &[("f", &[1.0])])]);
    for image in ["g", "h"] {
        last = after(&last, &partial(image));
        assert_eq!((listed(&last.0), last.1), (vec![("e", "2"), ("f", "1")], true), "it is complete");
    }
}

fn sources() -> Discovery {
    let source = |method: Option<&str>| {
        let mut block = json!({"endpoint": "http://p.example", "query": "up", "lookback": "1h"});
        if let Some(method) = method {
            block["aggregationMethod"] = method.into();
        }
        json!({"type": "prometheus", "prometheus": block})
    };
    discovery(json!({"sources": [source(Some("sum")), source(None)], "maxImages": 3}))
}

#[test]
fn sources_are_merged_by_highest_score() {
    let discovery = sources();
    let answers = [
        usage(&discovery, &[("a", &[1.0, 2.4]), ("b", &[1.0]), ("b", &[0.5]), ("e", &[])]),
        usage(
            &discovery,
            &[("a", &[9.0, 2.0]), ("docker.io/library/b", &[8.0]), ("c", &[1.0]), ("d", &[0.1])],
        ),
    ];
    let status = round(&discovery, &DiscoveryPolicyStatus::default(), 1, &answers);
    let source = |at: usize| discovery.queries[at].name.as_str();
    assert_eq!((source(0), source(1)), ("prometheus[0]", "prometheus[1]"));
    assert_eq!(listed(&status), [("docker.io/library/b", source(1)), ("a", source(0)), ("c", source(1))]);
    let scores: Vec<_> = status.discovered_images.iter().map(|one| one.score.unwrap()).collect();
    assert_eq!((scores, status.source_count), (vec![8, 3, 1], Some(2)));
    assert_eq!(ready(&status), (true, "Synced", "3 images"));
    assert_eq!(find(&status.conditions, "SourceHealthy").unwrap().reason, "AllSourcesHealthy");
}

#[test]
fn images_of_a_source_that_fails_stay() {
    let discovery = sources();
    let answers = [usage(&discovery, &[("a", &[5.0])]), usage(&discovery, &[("b", &[3.0]), ("c", &[2.0])])];
    let good = round(&discovery, &DiscoveryPolicyStatus::default(), 1, &answers);
    let partial = round(&discovery, &good, 1, &[usage(&discovery, &[("d", &[2.5])]), refused()]);
    assert_eq!(
        listed(&partial),
        [("b", "prometheus[1]"), ("d", "prometheus[0]"), ("c", "prometheus[1]")],
        "a is gone, because its source answered"
    );
    assert_eq!((ready(&partial).0, ready(&partial).1), (true, "PartiallyFailed"));
    let healthy = find(&partial.conditions, "SourceHealthy").unwrap();
    assert_eq!(
        (&*healthy.reason, &*healthy.message),
        ("SourceError", "prometheus[1]: p.example cannot be reached")
    );
    let none = round(&discovery, &partial, 1, &[refused(), refused()]);
    assert_eq!((listed(&none), ready(&none).1), (listed(&partial), "ConnectionRefused"));
}

#[test]
fn a_status_stays_far_below_the_limit_of_objects() {
    let discovery = discovery(json!({"queries": [prometheus("q")], "maxImages": 1_000_000}));
    let path = "a".repeat(200);
    let series: Vec<_> = (0..20_000)
        .map(|n| fairlead_domain::reference::Reference::parse(&format!("r.example/{path}:{n}")).unwrap())
        .map(|image| Series { image, values: Vec::new(), sizes: Vec::new() })
        .collect();
    let answer = Ok(Answer { series, ..Answer::default() });
    let status = round(&discovery, &DiscoveryPolicyStatus::default(), 1, &[answer]);
    let size = serde_json::to_string(&status).unwrap().len();
    assert!(size < 1 << 20 && status.discovered_images.len() > 2000, "{size}");
}

#[test]
fn an_answer_that_may_be_incomplete_removes_nothing() {
    let with = |body: Vec<u8>, warning: &str| {
        let mut body: Value = serde_json::from_slice(&body).unwrap();
        body["warnings"] = json!([warning]);
        body.to_string().into_bytes()
    };
    let warned = "fetch series for {store: b}: no connection";
    for discovery in [discovery(json!({"queries": [prometheus("usage")]})), sources()] {
        let is_sources = discovery.queries.len() == 2;
        let answers = |first: Result<Answer, Failure>| {
            let second = || usage(&discovery, &[("c", &[1.0])]);
            if is_sources { vec![first, second()] } else { vec![first] }
        };
        let ask = |body: &[u8]| answered(&discovery.queries[0], 200, body);
        let images = |status: &DiscoveryPolicyStatus| {
            let names = status.discovered_images.iter().map(|one| one.image.clone());
            names.filter(|name| name != "c").collect::<Vec<_>>()
        };
        let good = answers(ask(&matrix(&[("a", &[3.0]), ("b", &[2.0])])));
        let good = round(&discovery, &DiscoveryPolicyStatus::default(), 1, &good);
        let empty = round(&discovery, &good, 1, &answers(ask(&with(matrix(&[]), warned))));
        assert_eq!((images(&empty), ready(&empty).1), (images(&good), "PartiallyFailed"));
        let message = empty.query_results[0].message.as_deref();
        assert_eq!(message, Some("the answer may be incomplete: fetch series for {store: b}: no connection"));
        let less = round(&discovery, &empty, 1, &answers(ask(&with(matrix(&[("d", &[9.0])]), warned))));
        assert_eq!(images(&less)[0], "d", "what is found counts");
        assert!(images(&less).contains(&"a".to_owned()));
        // What Prometheus says about the expression is no loss.
        let hint = "PromQL info: metric might not be a counter";
        let whole = round(&discovery, &less, 1, &answers(ask(&with(matrix(&[("b", &[2.0])]), hint))));
        assert_eq!((images(&whole), ready(&whole).1), (vec!["b".to_owned()], "Synced"));
    }
}

proptest! {
    /// Whatever is found: the list is in order, has no image twice, and is no longer than asked for.
    #[test]
    fn lists_are_ordered_unique_and_bounded(
        found in proptest::collection::vec(("[a-d](:[12])?", -5.0..5.0), 0..20), most in 1_usize..6, sourced in any::<bool>(),
    ) {
        let mut spec = if sourced {
            json!({"sources": [{"type": "prometheus", "prometheus": {
                "endpoint": "http://p.example", "query": "up", "queryType": "instant",
            }}]})
        } else {
            json!({"queries": [prometheus("q")]})
        };
        spec["maxImages"] = most.into();
        let discovery = discovery(spec);
        let series: Vec<(&str, [f64; 1])> = found.iter().map(|(image, value)| (&**image, [*value])).collect();
        let series: Vec<(&str, &[f64])> = series.iter().map(|(image, values)| (*image, &values[..])).collect();
        let status = round(&discovery, &DiscoveryPolicyStatus::default(), 1, &[usage(&discovery, &series)]);
        let images: Vec<_> = status.discovered_images.iter().collect();
        prop_assert!(images.len() <= most);
        let keys: std::collections::BTreeSet<_> = images
            .iter()
            .map(|one| fairlead_domain::reference::Reference::parse(&one.image).unwrap().key())
            .collect();
        prop_assert_eq!(keys.len(), images.len());
        let scores: Vec<f64> = images
            .iter()
            .map(|one| one.final_score.as_ref().map_or_else(|| f64::from(i32::try_from(one.score.unwrap()).unwrap()), |s| s.parse().unwrap()))
            .collect();
        prop_assert!(scores.is_sorted_by(|one, next| one >= next), "{:?}", scores);
    }
}
