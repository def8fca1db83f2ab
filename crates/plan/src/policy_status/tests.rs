use fairlead_api::conditions::{ConditionStatus, find};
use fairlead_api::kuik::{ClusterImageSetMirror, ReplicatedImageSet};
use serde_json::json;

use super::*;

const MIRROR: PolicyKind = PolicyKind::ClusterImageSetMirror;
const SET: PolicyKind = PolicyKind::ReplicatedImageSet;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn set(upstreams: &serde_json::Value) -> Result<Policy, PolicyError> {
    let object: ReplicatedImageSet = serde_json::from_value(json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ReplicatedImageSet",
        "metadata": {"name": "set", "namespace": "shop", "uid": "u"},
        "spec": {"upstreams": upstreams},
    }))
    .unwrap();
    Policy::replicated(&object)
}

fn mirror(pattern: &str) -> Result<Policy, PolicyError> {
    let object: ClusterImageSetMirror = serde_json::from_value(json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror",
        "metadata": {"name": "mirror", "uid": "u"},
        "spec": {
            "filter": {"include": [{"image": pattern}]},
            "mirrors": [{"registry": "mirror.example", "path": "/"}],
        },
    }))
    .unwrap();
    Policy::cluster_mirror(&object)
}

fn upstream(registry: &str) -> serde_json::Value {
    json!({"registry": registry, "path": "/", "imageFilter": {"include": ["/.*"]}})
}

fn compiled<'a>(policy: &'a Policy, secrets: &'a [String]) -> Compilation<'a> {
    Compilation::Compiled { policy, secrets }
}

#[test]
fn a_set_in_use_says_how_many_upstreams_it_offers() {
    let policy = set(&json!([upstream("a.example"), upstream("b.example")])).unwrap();
    let stored = Stored { generation: Some(3), ..Stored::default() };
    let status = wanted(SET, &compiled(&policy, &[]), None, &stored, at(10)).expect("nothing is stored yet");
    assert_eq!((status.observed_generation, status.upstream_count), (Some(3), Some(2)));
    assert_eq!(status.conditions.len(), 1);
    let ready = find(&status.conditions, "Ready").unwrap();
    assert_eq!(
        (ready.status, ready.reason.as_str(), ready.message.as_str(), ready.observed_generation),
        (ConditionStatus::True, "Ready", "in use: 2 upstreams are offered", Some(3))
    );

    let stored = Stored {
        generation: Some(3),
        observed_generation: Some(3),
        upstream_count: Some(2),
        conditions: &status.conditions,
    };
    assert_eq!(wanted(SET, &compiled(&policy, &[]), None, &stored, at(20)), None, "nothing to write");
    let edited = Stored { generation: Some(4), ..stored };
    let status = wanted(SET, &compiled(&policy, &[]), None, &edited, at(20)).expect("an edit was seen");
    assert_eq!(status.conditions[0].last_transition_time.0, at(10), "it was ready all the time");
}

#[test]
fn a_mirror_also_says_whether_it_was_accepted_and_leaves_other_conditions_alone() {
    let broken = mirror("(").unwrap_err();
    let foreign = conditions::merge(&[], &[Finding::new(types::EXACT, true, "X", "")], Some(1), at(1));
    let stored = Stored { generation: Some(1), conditions: &foreign, ..Stored::default() };
    let status = wanted(MIRROR, &Compilation::Refused(&broken), None, &stored, at(10)).unwrap();
    let told: Vec<_> =
        status.conditions.iter().map(|one| (one.type_.as_str(), one.status, one.reason.as_str())).collect();
    let not = ConditionStatus::False;
    assert_eq!(told, [("Accepted", not, "InvalidFilter"), ("Ready", not, "InvalidFilter")]);
    let message = &status.conditions[1].message;
    assert!(message.contains("spec.filter.include[0].image: "), "the field is named: {message}");
    assert_eq!(status.upstream_count, None);
    let body = serde_json::to_value(&status).unwrap();
    assert_eq!(body.as_object().unwrap().keys().collect::<Vec<_>>(), ["conditions", "observedGeneration"]);
}

#[test]
fn a_mirror_that_works_is_told_by_whoever_copies_its_images() {
    let policy = mirror(".*").unwrap();
    let secret = ["Secret shop/pull does not exist: create it".to_owned()];
    assert_eq!(wanted(MIRROR, &compiled(&policy, &secret), None, &Stored::default(), at(10)), None);
    let accepted = accepted(MIRROR, &compiled(&policy, &secret));
    assert_eq!(
        (accepted.type_, accepted.status, accepted.message.as_str()),
        ("Accepted", ConditionStatus::True, "in use: 1 mirror is offered"),
        "a Secret is not part of the specification"
    );
}

#[test]
fn reasons_tell_what_kind_of_trouble_it_is() {
    let secret = vec!["Secret shop/pull does not exist: create it".to_owned()];
    let good = set(&json!([upstream("a.example")])).unwrap();
    let partly = set(&json!([upstream("a.example"), upstream("https://b.example")])).unwrap();
    let unreadable = Compilation::Unreadable { error: "spec.priority: invalid type" };
    for (outcome, reason, part) in [
        (compiled(&good, &secret), "SecretUnavailable", "Secret shop/pull does not exist"),
        (compiled(&partly, &[]), "Degraded", "spec.upstreams[1].registry: "),
        (compiled(&partly, &secret), "Degraded", "Secret shop/pull does not exist"),
        (unreadable, "InvalidSpec", "spec.priority: invalid type"),
    ] {
        let judgement = judge(SET, &outcome);
        assert!(!judgement.holds);
        assert_eq!(judgement.reason, reason);
        assert!(judgement.message.contains(part), "{}", judgement.message);
    }
    assert_eq!(upstream_count(SET, &unreadable), Some(0));
    assert_eq!(
        judge(SET, &compiled(&set(&json!([])).unwrap(), &[])).message,
        "in use, but it offers no upstream"
    );
}

#[test]
fn messages_stay_readable_however_much_is_wrong() {
    let many = (0..100).map(|number| format!("field {number}: {}", "x".repeat(90)));
    let text = joined("broken", many);
    assert!(text.len() < LONGEST_MESSAGE + 20 && text.ends_with(" more"), "{text}");
    let text = joined("broken", ["ä".repeat(5000)]);
    assert!(text.len() < LONGEST_MESSAGE + 20 && text.ends_with('…'), "{text}");
}

#[test]
fn places_that_differ_are_told_and_taken_back_when_they_agree() {
    let policy = set(&json!([upstream("a.example"), upstream("b.example")])).unwrap();
    let outcome = compiled(&policy, &[]);
    let none = Stored { generation: Some(1), ..Stored::default() };
    let before = wanted(SET, &outcome, Some(&[]), &none, at(10)).unwrap();
    assert!(find(&before.conditions, "Consistent").is_none(), "nothing was ever wrong");

    let differences = ["a.example/app:1 is sha256:1 and b.example/app:1 is sha256:2".to_owned()];
    let status = wanted(SET, &outcome, Some(&differences), &none, at(10)).unwrap();
    let told = find(&status.conditions, "Consistent").unwrap();
    assert_eq!((told.status, told.reason.as_str()), (ConditionStatus::False, "DigestsDiffer"));
    assert!(told.message.ends_with(&format!(": {}", differences[0])), "{}", told.message);
    let ready = find(&status.conditions, "Ready").unwrap();
    assert_eq!(ready.status, ConditionStatus::True, "it is in use all the same");

    let stored = Stored {
        observed_generation: Some(1),
        upstream_count: Some(2),
        conditions: &status.conditions,
        ..none
    };
    assert_eq!(wanted(SET, &outcome, Some(&differences), &stored, at(20)), None);
    // A new leader knows nothing yet: what is stored stays, also when something else is written.
    assert_eq!(wanted(SET, &outcome, None, &stored, at(20)), None);
    let edited = Stored { generation: Some(2), ..stored };
    let kept = wanted(SET, &outcome, None, &edited, at(20)).unwrap();
    assert_eq!(find(&kept.conditions, "Consistent"), Some(told));
    let agreed = wanted(SET, &outcome, Some(&[]), &stored, at(30)).unwrap();
    let told = find(&agreed.conditions, "Consistent").unwrap();
    assert_eq!((told.status, told.reason.as_str()), (ConditionStatus::True, "DigestsAgree"));
}

#[test]
fn of_a_mirror_that_works_nothing_else_is_written() {
    let policy = mirror(".*").unwrap();
    let (outcome, stored) = (compiled(&policy, &[]), Stored { generation: Some(1), ..Stored::default() });
    assert_eq!(wanted(MIRROR, &outcome, Some(&[]), &stored, at(10)), None);
    let status = wanted(MIRROR, &outcome, Some(&["x".to_owned()]), &stored, at(10)).unwrap();
    assert_eq!((status.observed_generation, status.upstream_count), (None, None));
    let types: Vec<_> = status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(types, ["Consistent"]);
    let stored = Stored { conditions: &status.conditions, ..stored };
    assert_eq!(wanted(MIRROR, &outcome, Some(&["x".to_owned()]), &stored, at(20)), None);
    assert_eq!(wanted(MIRROR, &outcome, None, &stored, at(20)), None);
}
