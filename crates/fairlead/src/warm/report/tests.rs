use fairlead_domain::duration::Duration;
use serde_json::{Value, json};

use super::super::table::{one_image, overview};
use super::*;

const DIGEST: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

/// An image as the operator leaves it.
fn image(name: &str, phase: &str, reason: &str) -> ImageReport {
    let status = if phase == "Ready" { "True" } else { "False" };
    ImageReport::of(&object(json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": 2},
        "spec": {"image": "nginx", "tag": "1.29", "policyRef": {"name": "gentle"}},
        "status": {
            "observedGeneration": 2, "phase": phase, "nodesTargeted": 5, "nodesReady": 2, "nodesPulling": 1,
            "resolvedDigest": DIGEST, "lastPulledAt": at(-90).to_string(),
            "consecutiveFailures": if phase == "Degraded" { 3 } else { 0 },
            "conditions": [
                {"type": "Ready", "status": status, "reason": reason, "message": "2 of 5 nodes hold the image",
                 "lastTransitionTime": at(-60).to_string()},
                {"type": "PullProgress", "status": "True", "reason": "Pulling", "message": "1 nodes are pulling",
                 "lastTransitionTime": at(-60).to_string()},
            ],
        },
    })))
}

fn ledger(owner: &str, number: u32, nodes: &Value) -> WarmLedger {
    let uid = format!("uid-{owner}");
    let id: String = uid.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
    serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "WarmLedger",
        "metadata": {"name": format!("warm-{owner}-{id}-{number}"), "ownerReferences": [
            {"apiVersion": "drop.corewire.io/v1alpha1", "kind": "CachedImage", "name": owner, "uid": uid},
        ]},
        "spec": {
            "owner": {"name": owner, "uid": uid}, "reference": "mirror.io/nginx:1.29", "digest": DIGEST, "nodes": nodes,
        },
    }))
    .unwrap()
}

fn holds(name: &str) -> Value {
    json!({"uid": format!("n-{name}"), "name": name, "attempt": 1, "pulledAt": at(-600).to_string()})
}

fn fails(name: &str, failures: u32) -> Value {
    json!({
        "uid": format!("n-{name}"), "name": name, "attempt": failures, "failures": failures,
        "failedAt": at(-10).to_string(), "reason": "ErrImagePull", "message": "image not found",
    })
}

#[test]
fn nodes_that_failed_come_first_with_the_time_of_their_next_try() {
    let ledgers = [
        ledger("web", 0, &json!([holds("a"), fails("b", 1)])),
        ledger("web", 1, &json!([fails("c", 3)])),
        ledger("other", 0, &json!([holds("d")])),
    ];
    let mut found = image("web", "Degraded", "ErrImagePull");
    found.add_nodes(None, &ledgers);
    let nodes = found.nodes.as_deref().unwrap();
    let times: Vec<_> = nodes.iter().map(|node| (&*node.node, node.failures, node.again_at)).collect();
    assert_eq!(times, [("c", 3, Some(at(110))), ("b", 1, Some(at(20))), ("a", 0, None)]);
    assert_eq!((nodes[2].digest.as_deref(), nodes[0].digest.as_deref()), (Some(DIGEST), None));
    assert_eq!(found.failing, Some(2));

    let text = |text: &str| text.parse::<Duration>().unwrap();
    let backoff = fairlead_api::drop::FailureBackoff { initial: text("1h"), max: text("2h") };
    let policy = PullPolicySpec { failure_backoff: Some(backoff), ..PullPolicySpec::default() };
    found.add_nodes(Some(&policy), &ledgers);
    let times: Vec<_> = found.nodes.iter().flatten().map(|node| node.again_at).collect();
    assert_eq!(times, [Some(at(7190)), Some(at(3590)), None]);
}

#[test]
fn an_image_is_shown_with_as_many_nodes_as_are_asked_for() {
    let mut found = image("web", "Degraded", "ErrImagePull");
    found.add_nodes(None, &[ledger("web", 0, &json!([holds("a"), fails("b", 1), fails("c", 3)]))]);
    let shown = one_image(&found, 2, at(30));
    for part in [
        "CachedImage/web: not ready for 90s, ErrImagePull: 2 of 5 nodes hold the image\n",
        "  image    docker.io/library/nginx:1.29, pulled as mirror.io/nginx:1.29\n",
        "  policy   gentle\n",
        "  nodes    2 of 5 hold it, 1 pulling, 2 failing\n",
        "  progress Pulling for 90s: 1 nodes are pulling\n",
        "    NODE  PULLED  DIGEST  FAILURES  AGAIN   REASON        MESSAGE\n",
        "    c     -       -       3         in 80s  ErrImagePull  image not found\n",
        "    b     -       -       1         due     ErrImagePull  image not found\n",
        "    and 1 more: --limit shows them, and -o json has them all\n",
    ] {
        assert!(shown.contains(part), "{part:?} is not in:\n{shown}");
    }
    assert!(
        one_image(&found, 9, at(30)).contains("    a     10m     sha256:111111111111  0         -"),
        "{shown}"
    );
}

#[test]
fn where_nodes_differ_in_what_they_were_asked_for_it_is_shown() {
    let mut other = holds("b");
    other["reference"] = json!("docker.io/library/nginx:1.29");
    let mut found = image("web", "Ready", "Cached");
    found.add_nodes(None, &[ledger("web", 0, &json!([holds("a"), other]))]);
    let shown = one_image(&found, 9, at(0));
    assert!(shown.contains("REFERENCE\n") && shown.contains("mirror.io/nginx:1.29\n"), "{shown}");
    assert!(!shown.contains("pulled as"), "{shown}");
}

#[test]
fn what_is_degraded_comes_first_and_decides_how_it_ends() {
    let mut report = WarmReport {
        images: vec![
            image("c", "Ready", "Cached"),
            image("b", "Pulling", "InProgress"),
            image("a", "Ready", "Cached"),
            image("z", "Degraded", "ErrImagePull"),
        ],
        ..WarmReport::default()
    };
    let line = |owner: &ImageReport, failed| LedgerLine {
        name: String::new(),
        owners: vec![OwnerReference { uid: owner.uid.clone(), ..OwnerReference::default() }],
        failed,
    };
    // A node that failed may be no target any more.
    let lines = [line(&report.images[3], 2), line(&report.images[3], 1), line(&report.images[2], 1)];
    report.count_failing(&lines);
    report.sort();
    let names: Vec<_> = report.images.iter().map(|image| (&*image.name, image.failing)).collect();
    assert_eq!(names, [("z", Some(3)), ("b", Some(0)), ("a", Some(0)), ("c", Some(0))]);
    assert!(report.is_troubled());
    let shown = overview(&report, at(0));
    let words: Vec<_> = shown.lines().nth(1).unwrap().split_whitespace().take(8).collect();
    assert_eq!(
        words,
        ["z", "docker.io/library/nginx:1.29", "gentle", "2/5", "1", "3", "90s", "ErrImagePull"]
    );
    report.images.remove(0);
    assert!(!report.is_troubled(), "what is under way is no trouble");
}

#[test]
fn a_set_is_counted_and_a_broken_or_new_object_is_shown_as_such() {
    let set = SetReport::of(&object(json!({
        "metadata": {"name": "base", "generation": 2},
        "status": {"observedGeneration": 1, "phase": "Degraded", "imagesManaged": 5, "imagesReady": 3, "conditions": [
            {"type": "Ready", "status": "False", "reason": "Timeout", "message": "no answer",
             "lastTransitionTime": at(0).to_string()},
        ]},
    })));
    let new = ImageReport::of(&object(json!({"metadata": {"name": "new"}, "spec": {"image": "r.io/a"}})));
    let broken = ImageReport::of(&object(json!({"metadata": {"name": "odd"}, "spec": {"image": 7}})));
    let mut report = WarmReport { images: vec![new, broken], sets: vec![set], warnings: Vec::new() };
    report.sort();
    let shown = overview(&report, at(0));
    let lines: Vec<_> = shown.lines().collect();
    assert!(
        lines[1].starts_with("odd") && lines[1].contains("Unreadable  spec.image cannot be read"),
        "{shown}"
    );
    assert!(lines[2].starts_with("new") && lines[2].ends_with("no operator has looked at it yet"), "{shown}");
    assert_eq!(lines[5], "base  3/5    Timeout  no answer; not looked at since its last edit");
}
