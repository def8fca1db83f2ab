use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fairlead_plan::exclusions::Exclusions;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::*;
use crate::admission::route::tests::idle;
use crate::admission::{Decide, Limits, Metrics};
use crate::controller::events::Errors;
use crate::platform::certificates::Paths;

fn state(decide: impl Decide) -> Arc<AdmissionState> {
    skipping(Exclusions::default(), decide)
}

fn skipping(exclusions: Exclusions, decide: impl Decide) -> Arc<AdmissionState> {
    let (limits, metrics) = (Limits::default(), Metrics::default());
    AdmissionState::new(
        "fairlead-system",
        Paths::new(Vec::new()),
        exclusions,
        Arc::new(decide),
        limits,
        metrics,
        Errors::default(),
    )
}

fn review(request: &Value) -> Value {
    let mut whole = json!({
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "team",
        "operation": "CREATE",
        "userInfo": {"username": "somebody"},
        "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"}, "spec": {"containers": [{"name": "a", "image": "nginx"}]}},
        "oldObject": null,
        "dryRun": false,
        "options": {"kind": "CreateOptions"},
    });
    for (key, value) in request.as_object().cloned().unwrap_or_default() {
        whole[key] = value;
    }
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": whole})
}

struct Reply {
    outcome: AnswerKind,
    response: Value,
}

impl Reply {
    fn patch(&self) -> Option<Value> {
        let patch = self.response["response"].get("patch")?.as_str().unwrap();
        assert_eq!(self.response["response"]["patchType"], "JSONPatch");
        Some(serde_json::from_slice(&BASE64_STANDARD.decode(patch).unwrap()).unwrap())
    }

    fn warned(&self) -> bool {
        self.response["response"].get("warnings").is_some()
    }
}

async fn ask_with(state: &AdmissionState, text: &str) -> Reply {
    ask_within(Duration::from_millis(300), state, text).await
}

async fn ask_within(time: Duration, state: &AdmissionState, text: &str) -> Reply {
    let deadline = Instant::now() + time;
    let answer = to(state, text.as_bytes(), deadline).await;
    let response = answer.review.map_or(Value::Null, |review| serde_json::from_slice(&review).unwrap());
    Reply { outcome: answer.outcome, response }
}

async fn ask(request: Value) -> Reply {
    ask_with(&state(idle()), &review(&request).to_string()).await
}

#[tokio::test]
async fn a_pod_gets_its_record_and_nothing_else() {
    let seen = ask(json!({})).await;
    assert_eq!(seen.outcome, AnswerKind::Recorded);
    assert_eq!(seen.response["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(seen.response["kind"], "AdmissionReview");
    assert_eq!(seen.response["response"]["uid"], "u-1");
    assert_eq!(seen.response["response"]["allowed"], true);
    assert!(!seen.warned());
    let patch = seen.patch().unwrap();
    assert_eq!(patch.as_array().unwrap().len(), 1, "{patch}");
    assert_eq!(patch[0]["op"], "add");
    assert_eq!(patch[0]["path"], "/metadata/annotations");
    let record: Value =
        serde_json::from_str(patch[0]["value"]["fairlead.dev/routes"].as_str().unwrap()).unwrap();
    assert_eq!(record["images"]["a"]["by"], "original");
}

#[tokio::test]
async fn every_kind_of_image_is_recorded() {
    let object = json!({
        "metadata": {"annotations": {"x": "y"}},
        "spec": {
            "containers": [{"name": "web", "image": "quay.io/\u{e9}\"web", "unknownField": {"deep": [1]}}],
            "initContainers": [{"name": "setup", "image": "busybox", "restartPolicy": "Always"}],
            "ephemeralContainers": [{"name": "debug", "image": "alpine"}],
            "volumes": [{"name": "data", "image": {"reference": "quay.io/data:1", "pullPolicy": "Always"}}, {"name": "tmp", "emptyDir": {}}],
        },
        "futureField": true,
    });
    let patch = ask(json!({"object": object})).await.patch().unwrap();
    assert_eq!(patch[0]["path"], "/metadata/annotations/fairlead.dev~1routes");
    let record: Value = serde_json::from_str(patch[0]["value"].as_str().unwrap()).unwrap();
    let keys: Vec<_> = record["images"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["debug", "setup", "volume:data", "web"]);
    assert_eq!(record["images"]["web"]["asked"], "quay.io/\u{e9}\"web");
}

#[tokio::test]
async fn a_second_turn_finds_nothing_to_do() {
    let first = ask(json!({})).await.patch().unwrap();
    let record = first[0]["value"]["fairlead.dev/routes"].clone();
    let mut object = review(&json!({}))["request"]["object"].clone();
    object["metadata"]["annotations"] = json!({"fairlead.dev/routes": record});
    let seen = ask(json!({"object": object})).await;
    assert_eq!(seen.outcome, AnswerKind::Unchanged);
    assert!(seen.patch().is_none() && !seen.warned());
}

#[tokio::test]
async fn forged_records_are_replaced() {
    for forged in ["nonsense", "{\"v\":1,\"images\":{\"a\":{\"asked\":\"x\",\"used\":\"y\",\"by\":\"z\"}}}"] {
        let mut object = review(&json!({}))["request"]["object"].clone();
        object["metadata"]["annotations"] = json!({"fairlead.dev/routes": forged, "keep": "me"});
        let patch = ask(json!({"object": object})).await.patch().unwrap();
        assert_eq!(patch[0]["path"], "/metadata/annotations/fairlead.dev~1routes");
        assert!(patch[0]["value"].as_str().unwrap().contains("\"used\":\"nginx\""), "{patch}");
    }
}

#[tokio::test]
async fn pods_that_the_configuration_skips_are_left_alone() {
    let config = crate::platform::config::Config::parse("skipLabels: [team=blue]").unwrap().config;
    let state = skipping(config.exclusions(), idle());
    for (team, outcome) in [("blue", AnswerKind::Skipped), ("red", AnswerKind::Recorded)] {
        let mut request = review(&json!({}));
        request["request"]["object"]["metadata"]["labels"] = json!({"team": team});
        let seen = ask_with(&state, &request.to_string()).await;
        assert_eq!((seen.outcome, seen.warned()), (outcome, false), "{team}");
    }
}

/// What is odd is let through unchanged. The flag says whether the author of the Pod hears of it.
#[tokio::test]
async fn odd_requests_are_let_through() {
    let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "abc"}}, "spec": {"containers": [{"name": "a", "image": "b"}]}});
    let cases = [
        ("own namespace", json!({"namespace": "fairlead-system"}), AnswerKind::Skipped, false),
        ("static Pod", json!({"object": mirror}), AnswerKind::Skipped, false),
        ("DELETE", json!({"operation": "DELETE", "object": null}), AnswerKind::Odd, true),
        ("UPDATE", json!({"operation": "UPDATE"}), AnswerKind::Odd, true),
        ("no operation", json!({"operation": null}), AnswerKind::Odd, true),
        ("no object", json!({"object": null}), AnswerKind::Odd, true),
        (
            "other kind",
            json!({"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}}),
            AnswerKind::Odd,
            true,
        ),
        (
            "other version",
            json!({"kind": {"group": "", "version": "v2", "kind": "Pod"}}),
            AnswerKind::Odd,
            true,
        ),
        ("subresource", json!({"subResource": "ephemeralcontainers"}), AnswerKind::Odd, true),
        ("no images", json!({"object": {"metadata": {}, "spec": {}}}), AnswerKind::Unchanged, false),
        ("empty object", json!({"object": {}}), AnswerKind::Unchanged, false),
        ("object is a list", json!({"object": [1]}), AnswerKind::Malformed, true),
        ("object is a text", json!({"object": "pod"}), AnswerKind::Malformed, true),
        (
            "containers are a text",
            json!({"object": {"spec": {"containers": "x"}}}),
            AnswerKind::Malformed,
            true,
        ),
        (
            "image is a number",
            json!({"object": {"spec": {"containers": [{"name": "a", "image": 5}]}}}),
            AnswerKind::Malformed,
            true,
        ),
        (
            "annotation is a number",
            json!({"object": {"metadata": {"annotations": {"a": 5}}, "spec": {}}}),
            AnswerKind::Malformed,
            true,
        ),
        ("kind is a number", json!({"kind": 5}), AnswerKind::Malformed, true),
        ("dryRun is a text", json!({"dryRun": "yes"}), AnswerKind::Malformed, true),
    ];
    for (what, request, outcome, warned) in cases {
        let seen = ask(request).await;
        assert_eq!((seen.outcome, seen.warned()), (outcome, warned), "{what}: {}", seen.response);
        assert_eq!(seen.response["response"]["allowed"], true, "{what}");
        assert_eq!(seen.response["response"]["uid"], "u-1", "{what}");
        assert!(seen.patch().is_none(), "{what}");
    }
}

#[tokio::test]
async fn missing_fields_do_not_matter() {
    let text = r#"{"request":{"uid":"u","operation":"CREATE","kind":{"version":"v1","kind":"Pod"},"object":{"spec":{"containers":[{"name":"a","image":"b"}]}}}}"#;
    let seen = ask_with(&state(idle()), text).await;
    assert_eq!(seen.outcome, AnswerKind::Recorded);
    assert_eq!(seen.patch().unwrap()[0]["path"], "/metadata");
}

#[tokio::test]
async fn without_identity_there_is_no_answer() {
    for text in [
        "",
        "{",
        "null",
        "[]",
        "{}",
        r#"{"request":null}"#,
        r#"{"request":{}}"#,
        r#"{"request":{"uid":""}}"#,
        "\u{0}",
    ] {
        let seen = ask_with(&state(idle()), text).await;
        assert_eq!((seen.outcome, &seen.response), (AnswerKind::Malformed, &Value::Null), "{text}");
    }
}

struct Panicking;
struct PanickingEarly;
struct Hanging;

impl Decide for Panicking {
    fn decide<'a>(&'a self, _: &'a PodRequest<'a>) -> BoxFuture<'a, AdmissionOutcome> {
        Box::pin(async { panic!("a bug") })
    }
}

impl Decide for PanickingEarly {
    fn decide<'a>(&'a self, _: &'a PodRequest<'a>) -> BoxFuture<'a, AdmissionOutcome> {
        panic!("a bug")
    }
}

impl Decide for Hanging {
    fn decide<'a>(&'a self, _: &'a PodRequest<'a>) -> BoxFuture<'a, AdmissionOutcome> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn every_failure_is_open() {
    let text = review(&json!({})).to_string();
    for (state, outcome) in [
        (state(Panicking), AnswerKind::Panic),
        (state(PanickingEarly), AnswerKind::Panic),
        (state(Hanging), AnswerKind::Late),
    ] {
        // Twice: a failure must not use anything up.
        for _ in 0..2 {
            let seen = ask_with(&state, &text).await;
            assert_eq!(seen.outcome, outcome);
            assert_eq!(seen.response["response"]["allowed"], true);
            assert!(seen.warned() && seen.patch().is_none());
            assert!(!seen.response.to_string().contains("fire"), "internals are for the log");
        }
        assert_eq!(state.deciding.available_permits(), state.limits.deciding);
    }
}

#[tokio::test(start_paused = true)]
async fn too_many_at_once_are_let_through() {
    let limits = Limits { deciding: 1, ..Limits::default() };
    let state = AdmissionState::new(
        "ns",
        Paths::new(Vec::new()),
        Exclusions::default(),
        Arc::new(Hanging),
        limits,
        Metrics::default(),
        Errors::default(),
    );
    let text = review(&json!({})).to_string();
    // The request that is given up first frees its turn: the one that waits for it must not wait as long.
    let asked = |seconds| ask_within(Duration::from_secs(seconds), &state, &text);
    let (deciding, waiting) = tokio::join!(asked(2), async {
        tokio::task::yield_now().await;
        asked(1).await
    });
    assert_eq!([deciding.outcome, waiting.outcome], [AnswerKind::Late, AnswerKind::Overload]);
    assert!(deciding.warned() && waiting.warned());
}

#[test]
fn oversized_requests_are_answered_by_their_beginning() {
    let text = review(&json!({})).to_string().replace("{\"apiVersion\":\"admission.k8s.io/v1\",", "{");
    let cut = to_oversized(&text.as_bytes()[..text.len() - 5]);
    let response: Value = serde_json::from_slice(&cut.review.unwrap()).unwrap();
    assert_eq!(response["response"]["uid"], "u-1");
    assert!(to_oversized(b"{").review.is_none());
}

/// Decides about Pods of one namespace in this way, about all others at once.
struct Slow(&'static str, Manner);

enum Manner {
    Never,
    /// Computes for 30 ms. A paused clock of a test stands still meanwhile.
    Computing,
}

impl Decide for Slow {
    fn decide<'a>(&'a self, request: &'a PodRequest<'a>) -> BoxFuture<'a, AdmissionOutcome> {
        Box::pin(async move {
            match self.1 {
                _ if request.namespace != self.0 => {}
                Manner::Never => std::future::pending().await,
                Manner::Computing => std::thread::sleep(Duration::from_millis(30)),
            }
            AdmissionOutcome::default()
        })
    }
}

fn limited(decide: impl Decide, limits: Limits) -> Arc<AdmissionState> {
    let (paths, exclusions) = (Paths::new(Vec::new()), Exclusions::default());
    let (metrics, errors) = (Metrics::default(), Errors::default());
    AdmissionState::new("fairlead-system", paths, exclusions, Arc::new(decide), limits, metrics, errors)
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_takes_processor_time_from_others_waits_for_its_share() {
    let state = limited(Slow("crowd", Manner::Computing), Limits { processors: 1, ..Limits::default() });
    let [crowd, other] = ["crowd", "shop"].map(|name| review(&json!({"namespace": name})).to_string());
    let waits = async |text: &str| {
        let begun = Instant::now();
        assert_eq!(ask_with(&state, text).await.outcome, AnswerKind::Unchanged);
        begun.elapsed()
    };
    for _ in 0..2 {
        assert_eq!(waits(&crowd).await, Duration::ZERO, "alone, it may take all");
    }
    assert_eq!(waits(&other).await, Duration::ZERO);
    let waited = waits(&crowd).await;
    assert!(waited >= Duration::from_millis(70), "10 ms beyond the burst are earned in 80: {waited:?}");
    assert_eq!(waits(&other).await, Duration::ZERO);
}

#[tokio::test]
async fn a_namespace_that_asks_for_too_much_waits_for_itself() {
    let limits = Limits { deciding: 4, deciding_per_namespace: 2, ..Limits::default() };
    let state = limited(Slow("crowd", Manner::Never), limits);
    let crowd = review(&json!({"namespace": "crowd"})).to_string();
    let waiting = futures::future::join_all((0..6).map(|_| ask_with(&state, &crowd)));
    let other = async {
        tokio::task::yield_now().await;
        ask_with(&state, &review(&json!({"namespace": "shop"})).to_string()).await
    };
    let (seen, other) = tokio::join!(waiting, other);
    assert_eq!(other.outcome, AnswerKind::Unchanged, "four requests of the crowd would have taken all slots");
    assert!(seen.iter().all(|seen| matches!(seen.outcome, AnswerKind::Late | AnswerKind::Overload)));
}

#[tokio::test]
async fn large_pods_of_one_namespace_do_not_take_all_memory() {
    let limits = Limits { bodies_per_namespace: 1000, ..Limits::default() };
    let state = limited(Slow("nobody", Manner::Never), limits);
    let large = json!({"metadata": {"annotations": {"a": "x".repeat(1000)}}});
    let text = review(&json!({"object": large})).to_string();
    assert_eq!(ask_with(&state, &text).await.outcome, AnswerKind::Overload);
    assert_eq!(ask_with(&state, &review(&json!({})).to_string()).await.outcome, AnswerKind::Unchanged);
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        /// Whatever arrives, there is an answer, and it never denies.
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0_usize..800, cut in 0_usize..800) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let mut text = review(&json!({})).to_string().into_bytes();
            let at = at.min(text.len());
            let end = (at + cut).min(text.len());
            text.splice(at..end, bytes);
            let answer = runtime.block_on(async { to(&state(idle()), &text, Instant::now() + Duration::from_secs(1)).await });
            if let Some(review) = answer.review {
                let review: Value = serde_json::from_slice(&review).unwrap();
                prop_assert_eq!(&review["response"]["allowed"], true);
            }
        }
    }
}
