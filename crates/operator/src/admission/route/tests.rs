//! Routing with registries that misbehave, up to the patch and the warnings that leave the webhook.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::kuik::{ClusterImageSetMirror, ClusterReplicatedImageSet};
use fairlead_testkit::fake_registry::{Auth, Effect, FakeRegistry, Fault};
use fairlead_testkit::images::{self, Image};
use fairlead_testkit::operator::with_registries;
use kube::{Client, Resource};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::admission::limits::Limits;
use crate::admission::review::PodObject;
use crate::admission::shares::Share;
use crate::cluster::ledgers::tests::claims;
use crate::cluster::state::{Key, Snapshot};
use crate::cluster::watch::{self, Resources, Watches};
use crate::context::Basis;
use crate::platform::clock::Clock;
use crate::platform::config::Config;

/// A client for an API server that is not there.
fn nowhere() -> Client {
    fairlead_testkit::install_crypto();
    let config = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
    Client::try_from(config).unwrap()
}

fn assemble(resources: &Resources, config: &str) -> Router {
    let config = Config::parse(&with_registries(config)).unwrap().config;
    let (client, namespace) = (nowhere(), "fairlead-system");
    let board = Watches::new(client.clone(), namespace, resources, None, watch::Metrics::default()).board;
    let basis = Basis {
        client,
        identity: "test".to_owned(),
        namespace: namespace.to_owned(),
        config,
        resources: resources.clone(),
        board,
        clock: Clock::default(),
    };
    let (context, _queues) = Context::new(basis, &mut Registry::default());
    Router::new(Arc::new(context), Rewrites::default())
}

/// Routes by no policy at all.
pub(in crate::admission) fn idle() -> Router {
    assemble(&Resources::default(), "")
}

/// Routes images of one registry to others that hold the same, in order.
async fn replicated(registries: &[&FakeRegistry], config: &str) -> Router {
    let upstream = |registry: &&FakeRegistry| json!({"registry": registry.host(), "path": "/team", "imageFilter": {"include": ["/team/.*"]}});
    let set: ClusterReplicatedImageSet = serde_json::from_value(json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterReplicatedImageSet",
        "metadata": {"name": "replicas", "uid": "u", "generation": 1},
        "spec": {"upstreams": registries.iter().map(upstream).collect::<Vec<_>>()},
    }))
    .unwrap();
    let resources = Resources::default();
    let objects = BTreeMap::from([(Key::of(set.meta()), Arc::new(set))]);
    resources.cluster_replicated_image_sets.replace(Snapshot { objects, malformed: BTreeMap::new() });
    compiled(&resources, config).await
}

/// Routes by the one policy that there is.
async fn compiled(resources: &Resources, config: &str) -> Router {
    let router = assemble(resources, config);
    let policies = router.context.policies.clone();
    tokio::spawn(policies.clone().run(CancellationToken::new()));
    fairlead_testkit::eventually(Duration::from_secs(10), || async {
        anyhow::ensure!(policies.current().policies().count() == 1, "not compiled yet");
        Ok(())
    })
    .await
    .unwrap();
    router
}

async fn holding(image: &Image) -> FakeRegistry {
    let registry = FakeRegistry::start().await.unwrap();
    registry.hold("team/app", "1", image);
    registry
}

struct Reply {
    image: String,
    route: Value,
    warnings: Vec<String>,
    took: Duration,
}

async fn admit(router: &Router, image: &str) -> Reply {
    admit_within(router, image, Duration::from_secs(4)).await
}

async fn admit_within(router: &Router, image: &str, time: Duration) -> Reply {
    let mut object = json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "app", "image": image, "imagePullPolicy": "IfNotPresent"}]},
    });
    let text = object.to_string();
    let pod: PodObject<'_> = serde_json::from_str(&text).unwrap();
    let begun = Instant::now();
    let share = Share::new(&Limits::default());
    let request = PodRequest {
        namespace: "team",
        subject: Subject::NewPod,
        dry_run: false,
        pod: &pod,
        body_bytes: text.len(),
        share: &share,
        deadline: begun + time,
    };
    let verdict = router.decide(&request).await;
    let took = begun.elapsed();
    let patch: json_patch::Patch =
        serde_json::from_value(serde_json::to_value(&verdict.patch).unwrap()).unwrap();
    json_patch::patch(&mut object, &patch).unwrap();
    let record = object["metadata"]["annotations"]["fairlead.dev/routes"].as_str().unwrap();
    let record: Value = serde_json::from_str(record).unwrap();
    let image = object["spec"]["containers"][0]["image"].as_str().unwrap().to_owned();
    Reply { image, route: record["images"]["app"].clone(), warnings: verdict.warnings, took }
}

fn reference(registry: &FakeRegistry) -> String {
    format!("{}/team/app:1", registry.host())
}

#[tokio::test]
async fn a_slow_answer_of_the_first_beats_a_quick_one_of_the_second() {
    let image = images::empty().unwrap();
    let (first, second) = (holding(&image).await, holding(&image).await);
    first.inject(Fault::new(Effect::Delay(Duration::from_millis(300))));
    let router = replicated(&[&first, &second], "").await;
    let seen = admit(&router, &reference(&first)).await;
    assert_eq!(seen.image, reference(&first));
    assert_eq!(seen.route["digest"], image.digest());
    assert!(seen.warnings.is_empty(), "{:?}", seen.warnings);
}

#[tokio::test]
async fn a_place_that_is_known_to_hold_something_else_is_recorded() {
    let (one, other) = (images::holding("one").unwrap(), images::holding("other").unwrap());
    let (first, same, differs) = (holding(&one).await, holding(&one).await, holding(&other).await);
    let router = replicated(&[&first, &same, &differs], "").await;
    // The first Pod waits for no place but the first; what the others hold is known a moment later.
    fairlead_testkit::eventually(Duration::from_secs(10), || async {
        let seen = admit(&router, &reference(&first)).await;
        let expected = json!([{
            "image": reference(&differs), "digest": other.digest(), "by": "ClusterReplicatedImageSet//replicas",
        }]);
        anyhow::ensure!(seen.image == reference(&first) && seen.route["digest"] == one.digest(), "{}", seen.route);
        anyhow::ensure!(seen.route["differs"] == expected, "{}", seen.route);
        Ok(())
    })
    .await
    .unwrap();
    // What is named by its digest cannot be something else.
    let by_digest = format!("{}/team/app@{}", first.host(), one.digest());
    for _ in 0..3 {
        let seen = admit(&router, &by_digest).await;
        assert_eq!(seen.route["differs"], Value::Null);
    }
}

#[tokio::test]
async fn whatever_is_wrong_with_the_first_the_second_is_used() {
    let image = images::empty().unwrap();
    for (fault, said) in [
        (Fault::status(404), "not-found"),
        (Fault::status(500), "unreachable"),
        (Fault::status(429), "rate-limited"),
        (Fault::new(Effect::Drop), "unreachable"),
    ] {
        let (first, second) = (holding(&image).await, holding(&image).await);
        first.inject(fault);
        let router = replicated(&[&first, &second], "").await;
        let seen = admit(&router, &reference(&first)).await;
        assert_eq!(seen.image, reference(&second), "{said}: {}", seen.route);
        assert!(seen.route["why"].as_str().unwrap().contains(said), "{said}: {}", seen.route);
        assert_eq!(seen.route["by"], "ClusterReplicatedImageSet//replicas");
    }
}

#[tokio::test]
async fn a_silent_registry_is_waited_for_once() {
    let image = images::empty().unwrap();
    let (first, second) = (holding(&image).await, holding(&image).await);
    first.inject(Fault::new(Effect::Hang));
    let router = replicated(&[&first, &second], "").await;
    let seen = admit(&router, &reference(&first)).await;
    assert_eq!(seen.image, reference(&second));
    assert!(seen.took < Duration::from_millis(1_500), "waited {:?}", seen.took);
    for tag in ["1", "2", "3"] {
        let seen = admit(&router, &format!("{}/team/app:{tag}", first.host())).await;
        assert!(seen.took < Duration::from_millis(500), "{tag} waited {:?}", seen.took);
    }
}

#[tokio::test]
async fn little_time_is_enough_for_an_answer() {
    let image = images::empty().unwrap();
    let (first, second) = (holding(&image).await, holding(&image).await);
    first.inject(Fault::new(Effect::Hang));
    let router = replicated(&[&first, &second], "").await;
    let seen = admit_within(&router, &reference(&first), Duration::from_secs(2)).await;
    assert_eq!(seen.image, reference(&second), "{}", seen.route);
    assert!(seen.took < Duration::from_secs(2), "{:?}", seen.took);
}

#[tokio::test]
async fn nothing_answers_and_the_author_is_told() {
    let image = images::empty().unwrap();
    let (first, second) = (holding(&image).await, holding(&image).await);
    for registry in [&first, &second] {
        registry.inject(Fault::status(404));
    }
    let router = replicated(&[&first, &second], "").await;
    let seen = admit(&router, &reference(&first)).await;
    assert_eq!(seen.image, reference(&first));
    assert_eq!(seen.route["unavailable"], true);
    assert!(
        seen.warnings.iter().any(|told| told.starts_with("fairlead: app: none of 2 is available")),
        "{:?}",
        seen.warnings
    );
}

/// Routes images to mirrors in one registry, at so many paths, first.
async fn with_many_mirrors(registry: &FakeRegistry, count: usize) -> Router {
    let mirrors: Vec<_> = (0..count)
        .map(|number| json!({"registry": registry.host(), "path": format!("/m{number}")}))
        .collect();
    let set: ClusterImageSetMirror = serde_json::from_value(json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror",
        "metadata": {"name": "mirror", "uid": "u", "generation": 1},
        "spec": {"priority": -1, "imageFilter": {"include": [".*"]}, "mirrors": mirrors},
    }))
    .unwrap();
    let resources = Resources::default();
    let objects = BTreeMap::from([(Key::of(set.meta()), Arc::new(set))]);
    resources.cluster_image_set_mirrors.replace(Snapshot { objects, malformed: BTreeMap::new() });
    compiled(&resources, "").await
}

#[tokio::test]
async fn a_list_that_is_cut_is_said_in_a_warning() {
    let registry = FakeRegistry::start().await.unwrap();
    registry.hold("m2/team/app", "1", &images::empty().unwrap());
    let router = with_many_mirrors(&registry, 80).await;
    let seen = admit(&router, &reference(&registry)).await;
    assert_eq!(seen.image, format!("{}/m2/team/app:1", registry.host()));
    assert_eq!(seen.warnings, ["fairlead: app: only the first 64 of 81 places are tried, 17 are left out"]);
}

#[tokio::test]
async fn every_location_keeps_its_answer_in_the_warnings() {
    let registry = FakeRegistry::start().await.unwrap();
    let router = with_many_mirrors(&registry, 12).await;
    let seen = admit(&router, &reference(&registry)).await;
    let said = seen.warnings.join("\n");
    for number in 0..12 {
        let answer = format!("{}/m{number}/team/app:1 is not-found", registry.host());
        assert!(said.contains(&answer), "{answer} in {said}");
    }
    assert!(seen.warnings.iter().all(|line| line.len() <= 256), "{said}");
}

#[tokio::test]
async fn a_pod_with_thousands_of_images_is_answered_in_time() {
    let registry = FakeRegistry::start().await.unwrap();
    let router = with_many_mirrors(&registry, 80).await;
    let container = |number: usize| json!({"name": format!("c{number}"), "image": format!("{}/a{number}:1", registry.host())});
    let object = json!({"spec": {"containers": (0..5000).map(container).collect::<Vec<_>>()}});
    let text = object.to_string();
    let pod: PodObject<'_> = serde_json::from_str(&text).unwrap();
    let share = Share::new(&Limits::default());
    let time = Duration::from_secs(2);
    let begun = Instant::now();
    let request = PodRequest {
        namespace: "team",
        subject: Subject::NewPod,
        dry_run: false,
        pod: &pod,
        body_bytes: text.len(),
        share: &share,
        deadline: begun + time,
    };
    let verdict = router.decide(&request).await;
    // Four hundred thousand probes would take minutes.
    assert!(begun.elapsed() < 5 * time, "{:?}", begun.elapsed());
    assert!(
        verdict.warnings.iter().any(|line| line.contains("more places than are asked about")),
        "{:?}",
        verdict.warnings
    );
    assert!(verdict.warnings.iter().map(String::len).sum::<usize>() <= 4096);
}

/// Nodes may hold credentials that the operator does not see.
#[tokio::test]
async fn an_original_that_asks_for_a_login_keeps_its_place() {
    let image = images::empty().unwrap();
    let (first, second) = (holding(&image).await, holding(&image).await);
    first.require(Auth::basic("ann", "secret"));
    let router = replicated(&[&first, &second], "").await;
    assert_eq!(admit(&router, &reference(&first)).await.image, reference(&first));
    assert_eq!(admit(&router, &reference(&second)).await.image, reference(&second), "an upstream does not");
    let config = "registries:\n  default: {trustNodeCredentials: false}\n";
    let router = replicated(&[&first, &second], config).await;
    assert_eq!(admit(&router, &reference(&first)).await.image, reference(&second));
}

/// Routes every image to one mirror when it is not available, with this ledger.
async fn mirrored(mirror: &FakeRegistry, ledger: Value) -> Router {
    let set: ClusterImageSetMirror = serde_json::from_value(json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror",
        "metadata": {"name": "mirror", "uid": "u", "generation": 1},
        "spec": {"imageFilter": {"include": [".*"]}, "mirrors": [{"registry": mirror.host()}]},
    }))
    .unwrap();
    let resources = Resources { claims: claims([ledger]), ..Resources::default() };
    let objects = BTreeMap::from([(Key::of(set.meta()), Arc::new(set))]);
    resources.cluster_image_set_mirrors.replace(Snapshot { objects, malformed: BTreeMap::new() });
    compiled(&resources, "").await
}

fn ledger(source: &str, copy: &str, state: &str, digest: &str) -> Value {
    json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ImageLedger",
        "metadata": {
            "name": "cism-mirror-u-0", "namespace": "fairlead-system", "resourceVersion": "1",
            "ownerReferences": [{
                "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror", "name": "mirror", "uid": "u",
            }],
        },
        "spec": {
            "owner": {"kind": "ClusterImageSetMirror", "name": "mirror", "uid": "u"},
            "entries": [{"source": source, "mirrors": [
                {"destination": copy, "digest": digest, "state": state, "since": "2026-01-01T00:00:00Z"},
            ]}],
        },
    })
}

#[tokio::test]
async fn a_copy_is_not_served_to_an_image_that_does_not_own_it() {
    let (image, other) = (images::empty().unwrap(), images::empty().unwrap());
    let (first, second, mirror) = (holding(&image).await, holding(&other).await, holding(&image).await);
    for registry in [&first, &second] {
        registry.inject(Fault::status(404));
    }
    let ledger = ledger(&reference(&first), &reference(&mirror), "Mirrored", &image.digest());
    let router = mirrored(&mirror, ledger).await;
    assert_eq!(admit(&router, &reference(&first)).await.image, reference(&mirror), "its own");
    let seen = admit(&router, &reference(&second)).await;
    assert_eq!(seen.image, reference(&second), "{}", seen.route);
    assert!(
        !seen.route.to_string().contains(&mirror.host()),
        "healing must not use it either: {}",
        seen.route
    );
}

#[tokio::test]
async fn a_copy_that_nobody_claims_is_served() {
    let image = images::empty().unwrap();
    let (source, mirror) = (holding(&image).await, holding(&image).await);
    source.inject(Fault::status(404));
    let elsewhere = format!("{}/team/other:1", mirror.host());
    let ledger = ledger("docker.io/team/other:1", &elsewhere, "Mirrored", &image.digest());
    let router = mirrored(&mirror, ledger).await;
    assert_eq!(admit(&router, &reference(&source)).await.image, reference(&mirror));
}

#[tokio::test]
async fn a_probe_that_misses_a_copy_is_noted() {
    let image = images::empty().unwrap();
    let (source, mirror) = (holding(&image).await, holding(&image).await);
    for registry in [&source, &mirror] {
        registry.inject(Fault::status(404));
    }
    let ledger = ledger(&reference(&source), &reference(&mirror), "Mirrored", &image.digest());
    let router = mirrored(&mirror, ledger).await;
    admit(&router, &reference(&source)).await;
    let noted: Vec<_> = router.context.findings.take().iter().map(ToString::to_string).collect();
    assert_eq!(
        noted,
        [reference(&mirror)],
        "the copy is gone; that the source is gone is no news to the ledger"
    );
}
