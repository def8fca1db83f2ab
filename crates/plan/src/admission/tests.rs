use std::collections::BTreeMap;
use std::sync::Arc;

use fairlead_api::kuik::ClusterImageSetMirror;
use fairlead_domain::digest::Digest;
use serde_json::json;

use super::*;
use crate::routing::{Index, PodFacts, Policy};

const MIRROR: &str = "m.example.com/copies";

/// One mirror of everything, before or after the original.
fn index(priority: i64) -> Index {
    let mirror: ClusterImageSetMirror = serde_json::from_value(json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror",
        "metadata": {"name": "m", "uid": "u"},
        "spec": {
            "priority": priority,
            "imageFilter": {"include": [".*"]},
            "mirrors": [{"registry": "m.example.com", "path": "/copies"}],
        },
    }))
    .unwrap();
    Index::new([Arc::new(Policy::cluster_mirror(&mirror).unwrap())])
}

fn planned(index: &Index, image: &str, claimed: Option<&str>) -> Planned {
    let nothing = BTreeMap::new();
    let facts = PodFacts { namespace: "team", labels: &nothing, annotations: &nothing };
    plan(&index.for_pod(&facts), image, claimed, Some("IfNotPresent"), &Rules::default(), |_, _| false)
}

fn available() -> Verdict {
    Verdict::Available { digest: Some(Digest::sha256(b"x")) }
}

fn missing() -> Verdict {
    Verdict::NotFound { reason: "no such tag".into() }
}

fn decided(planned: &Planned, verdicts: &[Option<Verdict>]) -> Route {
    planned.route(planned.places.as_ref().unwrap().decide(verdicts), verdicts)
}

#[test]
fn the_first_available_is_used_and_recorded() {
    let planned = planned(&index(-1), "nginx:1", None);
    let route = decided(&planned, &[Some(available()), None]);
    assert_eq!(route.asked, "nginx:1");
    assert_eq!(route.used, format!("{MIRROR}/library/nginx:1"));
    assert_eq!(route.by, "ClusterImageSetMirror//m");
    assert_eq!(route.digest, Digest::sha256(b"x").to_string());
    assert_eq!(route.alternatives, ["docker.io/library/nginx:1"]);
    assert!(!route.unavailable && route.is_rewritten());
}

#[test]
fn the_original_keeps_the_spelling_of_its_author() {
    let planned = planned(&index(-1), "nginx:1", None);
    let route = decided(&planned, &[Some(missing()), Some(available())]);
    assert_eq!((route.used.as_str(), route.by.as_str()), ("nginx:1", "original"));
    assert!(route.why.contains("not-found"), "{}", route.why);
    assert!(!route.is_rewritten());
}

#[test]
fn nothing_answers() {
    let planned = planned(&index(-1), "nginx:1", None);
    let route = decided(&planned, &[Some(missing()), Some(missing())]);
    assert_eq!((route.used.as_str(), route.by.as_str()), ("nginx:1", "original"));
    assert!(route.unavailable);
}

#[test]
fn a_claim_counts_only_if_the_policies_offer_the_image() {
    let copy = format!("{MIRROR}/library/nginx:1");
    for (image, claimed, asked) in [
        (copy.as_str(), Some("nginx:1"), "nginx:1"),
        (&copy, Some("docker.io/library/nginx:1"), "docker.io/library/nginx:1"),
        (&copy, Some("nginx:2"), &copy),
        (&copy, Some("Not a Reference"), &copy),
        (&copy, None, &copy),
        ("evil.example.com/x:1", Some("nginx:1"), "evil.example.com/x:1"),
        ("docker.io/library/nginx:1", Some("nginx:1"), "docker.io/library/nginx:1"),
    ] {
        assert_eq!(planned(&index(-1), image, claimed).asked, asked, "{image} {claimed:?}");
    }
    assert_eq!(planned(&Index::new([]), &copy, Some("nginx:1")).asked, copy, "no policy offers it any more");
}

#[test]
fn a_restored_pod_is_not_tied_to_a_mirror_that_is_gone() {
    let planned = planned(&index(-1), &format!("{MIRROR}/library/nginx:1"), Some("nginx:1"));
    let route = decided(&planned, &[Some(missing()), Some(available())]);
    assert_eq!((route.asked.as_str(), route.used.as_str()), ("nginx:1", "nginx:1"));
}

#[test]
fn images_that_no_policy_is_about_are_not_asked_for() {
    let planned = planned(&Index::new([]), "nginx:1", None);
    assert!(planned.to_ask().is_none());
    let route = planned.kept();
    assert_eq!((route.used.as_str(), route.by.as_str()), ("nginx:1", "original"));
    assert!(route.alternatives.is_empty() && !route.unavailable && !route.why.is_empty());
}

#[test]
fn what_cannot_be_read_stays() {
    let planned = planned(&index(-1), "Not a Reference", None);
    assert!(planned.to_ask().is_none());
    let route = planned.kept();
    assert_eq!(route.used, "Not a Reference");
    assert!(route.why.starts_with("it cannot be read: "), "{}", route.why);
}

#[test]
fn a_pinned_image_is_held_to_its_digest_wherever_it_comes_from() {
    let digest = Digest::sha256(b"x");
    let mut planned = planned(&index(-1), "nginx:1", None);
    planned.hold(digest);
    let route = decided(&planned, &[Some(available()), None]);
    assert_eq!(route.used, format!("{MIRROR}/library/nginx:1@{digest}"));
    assert_eq!((route.asked.as_str(), route.digest), ("nginx:1", digest.to_string()));
    assert_eq!(route.alternatives, [format!("docker.io/library/nginx:1@{digest}")]);

    let route = decided(&planned, &[Some(missing()), Some(available())]);
    assert_eq!((route.used.as_str(), route.by.as_str()), (&*format!("nginx:1@{digest}"), "original"));
    let route = decided(&planned, &[Some(missing()), Some(missing())]);
    assert_eq!(route.used, format!("nginx:1@{digest}"), "it stays the same image when nothing answers");
    assert!(route.unavailable);
}

#[test]
fn an_image_without_alternatives_is_pinned_without_a_question() {
    let digest = Digest::sha256(b"x");
    for (asked, used) in
        [("nginx:1", format!("nginx:1@{digest}")), ("nginx", format!("nginx:latest@{digest}"))]
    {
        let mut planned = planned(&Index::new([]), asked, None);
        assert_eq!(planned.unpinned_tag(None).map(Reference::written), Some(asked));
        planned.hold(digest);
        assert!(planned.to_ask().is_none() && planned.unpinned_tag(None).is_none());
        let route = planned.kept();
        assert_eq!((route.used, route.digest), (used, digest.to_string()));
    }
}

#[test]
fn what_was_pinned_stays_pinned_when_the_pod_comes_again() {
    let digest = Digest::sha256(b"x");
    for (image, by) in [
        (format!("nginx:1@{digest}"), "original"),
        (format!("{MIRROR}/library/nginx:1@{digest}"), "ClusterImageSetMirror//m"),
    ] {
        let mut planned = planned(&index(-1), &image, Some("nginx:1"));
        assert_eq!((planned.asked.as_str(), planned.pin), ("nginx:1", Some(digest)), "{image}");
        planned.hold(digest);
        let first = if by == "original" { missing() } else { available() };
        let route = decided(&planned, &[Some(first), Some(available())]);
        assert_eq!((route.used.as_str(), route.by.as_str(), route.pin()), (&*image, by, Some(digest)));
    }
    let other = format!("evil.example.com/x:1@{digest}");
    assert_eq!(planned(&index(-1), &other, Some("nginx:1")).asked, other);
}
