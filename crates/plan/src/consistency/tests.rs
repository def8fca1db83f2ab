use std::collections::BTreeMap;

use fairlead_api::kuik::{ClusterImageSetMirror, ReplicatedImageSet};
use serde_json::json;

use super::*;
use crate::routing::{Index, PodFacts, Policy, PullPolicy, Rules};

/// The original in a.example, a replica in b.example, and a copy of each in m.example.
fn places(image: &str) -> Alternatives {
    let upstream = |host: &str| json!({"registry": host, "path": "/", "imageFilter": {"include": ["/.*"]}});
    let set: ReplicatedImageSet = serde_json::from_value(json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ReplicatedImageSet",
        "metadata": {"name": "set", "namespace": "shop", "uid": "s"},
        "spec": {"upstreams": [upstream("a.example"), upstream("b.example")]},
    }))
    .unwrap();
    let mirror: ClusterImageSetMirror = serde_json::from_value(json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror",
        "metadata": {"name": "mirror", "uid": "m"},
        "spec": {"imageFilter": {"include": ["a.example/.*"]}, "mirrors": [{"registry": "m.example"}]},
    }))
    .unwrap();
    let policies = [Policy::replicated(&set).unwrap(), Policy::cluster_mirror(&mirror).unwrap()];
    let (index, none) = (Index::new(policies.map(Arc::new)), BTreeMap::new());
    let facts = PodFacts { namespace: "shop", labels: &none, annotations: &none };
    let image = Reference::parse(image).unwrap();
    index.for_pod(&facts).alternatives(&image, PullPolicy::IfNotPresent, &Rules::default())
}

fn digest(text: &str) -> Option<Digest> {
    (!text.is_empty()).then(|| Digest::sha256(text.as_bytes()))
}

/// By host. An empty text: not known.
fn digests(places: &Alternatives, held: &[(&str, &str)]) -> Vec<Option<Digest>> {
    let held = |place: &Alternative| {
        let host = place.reference.host();
        held.iter().find(|(one, _)| *one == host.as_str()).and_then(|(_, text)| digest(text))
    };
    places.list().iter().map(held).collect()
}

fn differ(image: &str, held: &[(&str, &str)], made: Option<(&str, &str)>) -> Vec<String> {
    let places = places(image);
    let digests = digests(&places, held);
    let is_as_made = |pair: &Pair<'_>| {
        made.is_some_and(|(source, copy)| {
            pair.copy.host().as_str() == "m.example"
                && Some(*pair.source_digest) == digest(source)
                && Some(*pair.copy_digest) == digest(copy)
        })
    };
    differences(&places, 0, &digests, is_as_made)
        .into_iter()
        .map(|one| format!("{} by {}", one.image, one.by))
        .collect()
}

const B: &str = "b.example/app:1 by ReplicatedImageSet/shop/set";
const M: &str = "m.example/app:1 by ClusterImageSetMirror//mirror";

#[test]
fn places_with_another_digest_are_told_and_unknown_ones_are_not() {
    let app = "a.example/app:1";
    for (held, expected) in [
        (vec![("a.example", "x"), ("b.example", "x"), ("m.example", "x")], vec![]),
        (vec![("a.example", "x"), ("b.example", "y"), ("m.example", "x")], vec![B]),
        (vec![("a.example", "x"), ("b.example", "y"), ("m.example", "z")], vec![M, B]),
        (vec![("a.example", "x"), ("m.example", "")], vec![]),
        // Without the digest of what is used there is nothing to compare with.
        (vec![("a.example", ""), ("b.example", "y"), ("m.example", "z")], vec![]),
    ] {
        assert_eq!(differ(app, &held, None), expected, "{held:?}");
    }
    let by_digest = format!("a.example/app:1@{}", Digest::sha256(b"x"));
    assert!(differ(&by_digest, &[("a.example", "x"), ("b.example", "y")], None).is_empty());
}

#[test]
fn a_copy_of_some_platforms_is_not_taken_for_another_image() {
    let held = [("a.example", "all"), ("b.example", "all"), ("m.example", "some")];
    assert_eq!(differ("a.example/app:1", &held, Some(("all", "some"))), [""; 0]);
    // The source has moved since, or the copy was overwritten.
    for made in [("before", "some"), ("all", "another")] {
        assert_eq!(differ("a.example/app:1", &held, Some(made)), [M], "{made:?}");
    }
}

fn compared(held: &[(&str, &str)]) -> Look {
    let places = places("a.example/app:1");
    compare(&places, &digests(&places, held), |_| false)
}

fn policy(kind: &str) -> Arc<PolicyId> {
    let places = places("a.example/app:1");
    let mut policies = places.list().iter().filter_map(|place| place.origin.policy());
    Arc::clone(policies.find(|policy| policy.kind.name() == kind).unwrap())
}

fn key(number: usize) -> ImageKey {
    ImageKey { namespace: "shop".into(), image: number.to_string().into() }
}

#[test]
fn a_policy_is_told_what_differs_until_it_agrees_or_is_not_seen_any_more() {
    let (set, mirror) = (policy("ReplicatedImageSet"), policy("ClusterImageSetMirror"));
    let mut checks = Checks::default();
    checks.asked(key(1), (), 0);
    assert_eq!(checks.of(&set), None, "nothing is known yet");
    assert_eq!(checks.due(9, 0), [(key(1), ())]);
    checks.looked(&key(1), compared(&[("a.example", "x"), ("b.example", "y"), ("m.example", "x")]), 0);
    let expected = format!(
        "a.example/app:1 is {} and b.example/app:1 is {}",
        digest("x").unwrap(),
        digest("y").unwrap()
    );
    assert_eq!(checks.of(&set), Some(vec![expected.clone()]));
    assert_eq!(checks.of(&mirror), Some(vec![]), "its place is not concerned");

    assert!(checks.due(9, 1).is_empty(), "it was looked at a moment ago");
    assert_eq!(checks.due(9, DIFFERING_SECONDS).len(), 1);
    // One of the places does not answer: nothing speaks against what is known.
    checks.looked(&key(1), compared(&[("a.example", "x"), ("m.example", "x")]), 100);
    assert_eq!(checks.of(&set), Some(vec![expected]));
    checks.looked(&key(1), compared(&[("a.example", "y"), ("b.example", "y"), ("m.example", "y")]), 200);
    assert_eq!(checks.of(&set), Some(vec![]));
    assert!(checks.due(9, 200 + DIFFERING_SECONDS).is_empty(), "what agrees is looked at less often");

    checks.looked(&key(1), compared(&[("a.example", "x"), ("b.example", "y")]), 300);
    // No policy offers the places any more.
    let mut withdrawn = Checks::default();
    withdrawn.asked(key(1), (), 0);
    withdrawn.looked(&key(1), compared(&[("a.example", "x"), ("b.example", "y")]), 0);
    withdrawn.looked(&key(1), Look::default(), 30);
    assert_eq!(withdrawn.of(&set), Some(vec![]));

    let compared = checks.compared();
    assert_eq!(compared["shop"]["1"].len(), 1, "{compared:?}");
    checks.keep(|_| false);
    assert!(checks.due(9, 1000).is_empty());
    assert_eq!(checks.of(&set), Some(vec![]), "no Pod asks for it any more");
}

#[test]
fn an_image_of_old_pods_is_looked_at_less_often_and_not_forgotten() {
    let mut checks = Checks::default();
    checks.asked(key(1), (), 0);
    checks.looked(&key(1), compared(&[("a.example", "x"), ("b.example", "x")]), RECENT_SECONDS);
    assert!(checks.due(9, RECENT_SECONDS + AGREEING_SECONDS).is_empty());
    assert_eq!(checks.due(9, RECENT_SECONDS + SETTLED_SECONDS).len(), 1);
}

#[test]
fn an_image_is_looked_at_soon_when_another_pod_asks_for_it() {
    let mut checks = Checks::default();
    checks.asked(key(1), (), 0);
    checks.looked(&key(1), compared(&[("a.example", "x"), ("b.example", "x")]), 10);
    checks.asked(key(1), (), 20);
    assert!(checks.due(9, 10 + DIFFERING_SECONDS - 1).is_empty(), "not for each of many Pods");
    assert_eq!(checks.due(9, 10 + DIFFERING_SECONDS).len(), 1);
    checks.looked(&key(1), compared(&[("a.example", "x"), ("b.example", "x")]), 50);
    assert!(checks.due(9, 50 + DIFFERING_SECONDS).is_empty());
}

#[test]
fn new_images_come_first_and_memory_is_bounded_per_namespace() {
    let mut checks = Checks::default();
    let quiet = ImageKey { namespace: "quiet".into(), image: "a:1".into() };
    checks.asked(quiet.clone(), (), 0);
    checks.looked(&quiet, Look::default(), 0);
    for number in 0..1500 {
        checks.asked(key(number), (), 1);
    }
    assert_eq!(checks.images.len(), MOST_IMAGES);
    assert!(checks.images.contains_key(&quiet));
    let due = checks.due(usize::MAX, AGREEING_SECONDS);
    assert_eq!(due.len(), MOST_IMAGES);
    assert_eq!(due.last(), Some(&(quiet, ())));
    assert_eq!(checks.due(3, 2).len(), 3);
}
