use serde_json::{Value, json};

use super::super::object::Kind;
use super::super::table::{TableStyle, table};
use super::super::view::Part;
use super::*;

const UID: &str = "6d0ac4cf-0000-4000-8000-000000000001";
const KIND: Kind = Kind::ClusterImageSetMirror;

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

fn digest() -> String {
    format!("sha256:{}", "a".repeat(64))
}

fn object(spec: &Value, status: &Value) -> Value {
    json!({"metadata": {"name": "m", "uid": UID, "generation": 2}, "spec": spec, "status": status})
}

fn spec() -> Value {
    json!({
        "cleanup": {"enabled": true, "retention": "24h"},
        "mirrors": [{"registry": "near.io", "path": "/copies"}, {"registry": "far.io", "cleanup": {"enabled": false}}],
    })
}

fn ready(status: &str, reason: &str) -> Value {
    json!([{
        "type": "Ready", "status": status, "reason": reason, "message": "so it is", "observedGeneration": 2,
        "lastTransitionTime": "2026-03-01T11:57:00Z",
    }])
}

fn copy(destination: &str, state: &str, since: &str, error: Option<&str>) -> Value {
    let mut copy = json!({"destination": destination, "state": state, "since": since, "digest": digest(), "written": [digest()]});
    if let Some(error) = error {
        copy["lastError"] = json!(error);
    }
    copy
}

fn ledger(namespace: &str, kind: Kind, entries: &Value) -> Value {
    let short = if kind == KIND { "cism" } else { "ism" };
    json!({
        "metadata": {
            "name": format!("{short}-m-6d0ac4cf-0"), "namespace": namespace, "ownerReferences": [{
                "apiVersion": "kuik.enix.io/v1alpha1", "kind": kind.name(), "name": "m", "uid": UID,
            }],
        },
        "spec": {"owner": {"kind": kind.name(), "name": "m", "uid": UID}, "entries": entries},
    })
}

fn view(objects: &[(Part, Value)]) -> View {
    use kube::runtime::watcher::Event;
    let mut view = View::new("fairlead-system");
    for (part, object) in objects {
        view.apply(*part, Event::Init);
        view.apply(*part, Event::InitApply(serde_json::from_value(object.clone()).unwrap()));
        view.apply(*part, Event::InitDone);
    }
    view
}

fn report(view: &View) -> Report {
    Report::of(view, |_| true, now())
}

fn text(report: &Report) -> String {
    table(report, TableStyle { most: 2, bars: false, now: now() })
}

fn entries() -> Value {
    json!([
        {"source": "docker.io/library/a:1", "mirrors": [
            copy("near.io/copies/library/a:1", "Mirrored", "2026-03-01T11:59:30Z", None),
            copy("far.io/library/a:1", "Failed", "2026-03-01T11:00:00Z", Some("connection\nrefused")),
        ]},
        {"source": "docker.io/library/b:1", "mirrors": [
            copy("near.io/copies/library/b:1", "Pending", "2026-03-01T11:50:00Z", None),
            copy("far.io/library/b:1", "Refused", "2026-03-01T11:30:00Z", Some("quay.io/library/b:1 owns it")),
        ]},
        {"source": "docker.io/library/c:1", "unusedSince": "2026-03-01T10:00:00Z", "mirrors": [
            copy("near.io/copies/library/c:1", "Mirrored", "2026-02-01T12:00:00Z", None),
            copy("far.io/library/c:1", "Mirrored", "2026-02-01T12:00:00Z", None),
        ]},
        {"source": "docker.io/library/d:1", "unusedSince": "2026-02-28T10:00:00Z", "mirrors": [
            copy("old.io/library/d:1", "Deleting", "2026-03-01T11:45:00Z", Some("not allowed")),
            copy("near.io/copies/library/d:1", "Pending", "2026-03-01T08:00:00Z", None),
            copy("far.io/library/d:1", "Failed", "2026-03-01T08:00:00Z", Some("nobody waits for it")),
        ]},
    ])
}

#[test]
fn ledgers_are_added_up_by_object_and_mirror() {
    let status = json!({"observedGeneration": 2, "conditions": ready("False", "Degraded")});
    let view = view(&[
        (Part::Objects(KIND), object(&spec(), &status)),
        (Part::Ledgers(KIND), ledger("fairlead-system", KIND, &entries())),
    ]);
    let report = report(&view);
    let [object] = report.objects.as_slice() else { panic!("one object: {report:?}") };
    assert_eq!(object.known_from, KnownFrom::Ledgers);
    assert!(object.observed && object.is_troubled());
    assert_eq!(object.images, Images { in_use: 2, unused: 2 });
    let all = Counts { total: 7, mirrored: 3, pending: 1, failed: 1, refused: 1, deleting: 1 };
    assert_eq!(object.copies, all);
    let places: Vec<_> =
        object.mirrors.iter().map(|one| (one.place.as_str(), one.in_spec, one.copies.total)).collect();
    assert_eq!(places, [("near.io/copies", true, 3), ("far.io", true, 3), ("old.io", false, 1)]);
    assert_eq!(object.copied_in_last_minute, 1);
    assert_eq!(object.oldest_waiting, Some("2026-03-01T11:50:00Z".parse().unwrap()));
    let failing: Vec<_> = object.failing.iter().map(|copy| copy.destination.as_str()).collect();
    assert_eq!(failing, ["far.io/library/a:1", "far.io/library/b:1", "old.io/library/d:1"], "oldest first");
    let unused: Vec<_> = object
        .unused
        .iter()
        .map(|image| (image.image.as_str(), image.copies.iter().map(|copy| copy.goes_at).collect::<Vec<_>>()))
        .collect();
    let over = "2026-03-01T10:00:00Z".parse().unwrap();
    assert_eq!(
        unused,
        [
            ("docker.io/library/d:1", vec![Some(over), Some(over), None]),
            ("docker.io/library/c:1", vec![Some("2026-03-02T10:00:00Z".parse().unwrap()), None]),
        ]
    );

    let text = text(&report);
    for line in [
        "ClusterImageSetMirror/m: not ready for 3m, Degraded: so it is\n",
        "  images   2 in use, 2 unused\n",
        "  copies   3 of 7 in place, 1 waiting, 1 failed, 1 refused, 1 being removed; the oldest has waited for 10m; \
         1 made in the last minute, at that pace 60s more\n",
        "  old.io, no longer a mirror  0         0        0       0        1\n",
        "    failed   far.io/library/a:1  60m  connection refused\n",
        "    refused  far.io/library/b:1  30m  quay.io/library/b:1 owns it\n",
        "    and 1 more: --limit shows them, and -o json has them all\n",
        "    docker.io/library/d:1  26h  go now: old.io/library/d:1, near.io/copies/library/d:1; kept: far.io/library/d:1\n",
        "    docker.io/library/c:1  2h   go in 22h: near.io/copies/library/c:1; kept: far.io/library/c:1\n",
    ] {
        assert!(text.contains(line), "{line:?} is missing in:\n{text}");
    }
    let only = report.only_failing();
    assert!(only.objects[0].unused.is_empty() && only.objects[0].failing.len() == 3);
}

#[test]
fn the_json_is_as_documented() {
    let view = view(&[
        (Part::Objects(KIND), object(&spec(), &json!({}))),
        (Part::Ledgers(KIND), ledger("fairlead-system", KIND, &entries())),
    ]);
    let value = serde_json::to_value(report(&view)).unwrap();
    let object = &value["objects"][0];
    let keys: Vec<_> = object.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "copiedInLastMinute",
            "copies",
            "failing",
            "images",
            "kept",
            "kind",
            "knownFrom",
            "mirrors",
            "name",
            "observed",
            "oldestWaiting",
            "unused"
        ]
    );
    assert_eq!(object["images"], json!({"inUse": 2, "unused": 2}));
    assert_eq!(
        object["failing"][0],
        json!({
            "image": "docker.io/library/a:1", "destination": "far.io/library/a:1", "state": "Failed",
            "since": "2026-03-01T11:00:00Z", "error": "connection\nrefused"
        })
    );
    assert_eq!(
        object["unused"][1]["copies"],
        json!([
            {"destination": "near.io/copies/library/c:1", "goesAt": "2026-03-02T10:00:00Z"},
            {"destination": "far.io/library/c:1"}
        ])
    );
}

#[test]
fn what_clean_up_leaves_alone_is_listed_with_the_reason() {
    let near = |name: &str| {
        copy(&format!("near.io/copies/library/{name}:1"), "Mirrored", "2026-02-01T12:00:00Z", None)
    };
    let mut found = near("found");
    found["written"] = json!([]);
    let mut named = near("named");
    named["named"] = json!(true);
    let mut released = near("released");
    released["namedUntil"] = json!("2026-03-01T11:00:00Z");
    let mut old = copy("old.io/library/found:1", "Mirrored", "2026-02-01T12:00:00Z", None);
    old["kept"] = json!("the object no longer names its mirror");
    let entry = |name: &str, copies: Value| {
        json!({
            "source": format!("docker.io/library/{name}:1"), "mirrors": copies, "unusedSince": "2026-03-01T10:00:00Z",
        })
    };
    let entries = json!([
        entry("found", json!([found, old])),
        entry("named", json!([named])),
        entry("released", json!([released])),
    ]);
    let view = view(&[
        (Part::Objects(KIND), object(&spec(), &json!({}))),
        (Part::Ledgers(KIND), ledger("fairlead-system", KIND, &entries)),
    ]);
    let report = report(&view);
    let kept: Vec<_> = report.objects[0].kept.iter().map(|copy| (&*copy.destination, &*copy.why)).collect();
    assert_eq!(
        kept,
        [
            ("near.io/copies/library/found:1", "it was there before, Fairlead did not write it"),
            ("old.io/library/found:1", "the object no longer names its mirror"),
        ]
    );
    let goes = |number: usize| report.objects[0].unused[number].copies[0].goes_at;
    assert_eq!(
        goes(0),
        Some("2026-03-02T11:00:00Z".parse().unwrap()),
        "from when the last Pod was gone that named it"
    );
    assert_eq!((goes(1), goes(2)), (None, None));
    let text = table(&report, TableStyle { most: 9, bars: false, now: now() });
    for line in [
        "kept (a Pod names it)\n",
        "    old.io/library/found:1          the object no longer names its mirror\n",
    ] {
        assert!(text.contains(line), "{line:?} is missing in:\n{text}");
    }
}

#[test]
fn without_ledgers_the_status_has_to_do() {
    let image = |name: &str, mirrors: Value| json!({"image": name, "mirrors": mirrors});
    let matching = json!([
        image(
            "docker.io/library/a:1",
            json!([{"image": "near.io/copies/library/a:1", "lastError": "no room"}])
        ),
        image(
            "docker.io/library/b:1",
            json!([{"image": "near.io/copies/library/b:1", "mirroredAt": "2026-02-28T12:00:00Z"}])
        ),
    ]);
    let spec = json!({"mirrors": [{"registry": "near.io", "path": "/copies"}]});
    let mut status =
        json!({"observedGeneration": 1, "matchingImages": matching, "conditions": ready("True", "Ready")});
    let old = report(&view(&[(Part::Objects(KIND), object(&spec, &status))]));
    let counted = &old.objects[0];
    assert_eq!((counted.known_from, counted.observed), (KnownFrom::Status, false));
    assert_eq!(counted.copies, Counts { total: 2, mirrored: 1, failed: 1, ..Counts::default() });
    let shown = text(&old);
    assert!(shown.contains("not looked at since its last edit"), "{shown}");
    assert!(shown.contains("    failed  near.io/copies/library/a:1  -    no room\n"), "{shown}");
    assert!(shown.contains("the object's own status"), "{shown}");

    // A status that lists a part counts the whole.
    status["imageCount"] = json!(1000);
    status["mirroredCount"] = json!(990);
    status["failedCount"] = json!(4);
    let counted = report(&view(&[(Part::Objects(KIND), object(&spec, &status))]));
    let counted = &counted.objects[0];
    assert_eq!(counted.images, Images { in_use: 1000, unused: 0 });
    assert_eq!(
        counted.copies,
        Counts { total: 1000, mirrored: 990, failed: 4, pending: 6, ..Counts::default() }
    );
}

#[test]
fn ledgers_of_others_are_not_believed() {
    let own = Kind::ImageSetMirror;
    let mut team = object(&spec(), &json!({}));
    team["metadata"]["namespace"] = json!("team");
    for (ledger, found) in [
        (ledger("team", own, &entries()), true),
        (ledger("elsewhere", own, &entries()), false),
        (ledger("team", KIND, &entries()), false),
    ] {
        let view = view(&[(Part::Objects(own), team.clone()), (Part::Ledgers(own), ledger.clone())]);
        assert_eq!(report(&view).objects[0].copies.total > 0, found, "{ledger}");
    }
}

/// Copies of `b` wait for a registry that is down; `a` was copied there a moment before it went down.
#[test]
fn there_is_no_estimate_for_a_registry_that_is_down() {
    let entries = json!([
        {"source": "docker.io/library/a:1", "mirrors": [
            copy("near.io/copies/library/a:1", "Pending", "2026-03-01T11:59:00Z", None),
            copy("far.io/library/a:1", "Mirrored", "2026-03-01T11:59:50Z", None),
        ]},
        {"source": "docker.io/library/b:1", "mirrors": [
            copy("near.io/copies/library/b:1", "Mirrored", "2026-03-01T11:59:40Z", None),
            copy("far.io/library/b:1", "Pending", "2026-03-01T11:59:00Z", None),
        ]},
    ]);
    let shown = |down: &[&str]| {
        let awaited: Vec<_> = down
            .iter()
            .map(|host| json!({"registry": host, "reason": format!("registry {host} is down: refused"), "tasks": 1}))
            .collect();
        let objects = [
            (Part::Objects(KIND), object(&spec(), &json!({"waitingFor": awaited}))),
            (Part::Ledgers(KIND), ledger("fairlead-system", KIND, &entries)),
        ];
        text(&report(&view(&objects)))
    };
    let up = shown(&[]);
    assert!(
        up.contains("2 waiting") && up.contains("; 2 made in the last minute, at that pace 60s more\n"),
        "{up}"
    );
    let one = shown(&["far.io"]);
    assert!(
        one.contains("; 1 made in the last minute, at that pace 60s more\n"),
        "what is up has one: {one}"
    );
    assert!(one.contains("  waiting  1 for far.io: registry far.io is down: refused\n"), "{one}");
    let both = shown(&["far.io", "near.io"]);
    assert!(both.contains("2 waiting") && !both.contains("at that pace"), "{both}");
    let source = shown(&["docker.io"]);
    assert!(!source.contains("at that pace"), "{source}");
}

#[test]
fn while_an_object_goes_only_what_is_left_counts() {
    let mut going = object(&spec(), &json!({"conditions": ready("False", "Progressing")}));
    going["metadata"]["deletionTimestamp"] = json!("2026-03-01T11:59:00Z");
    let entries = json!([
        {"source": "docker.io/library/a:1", "mirrors": [
            copy("near.io/copies/library/a:1", "Deleting", "2026-03-01T11:59:00Z", None),
            copy("far.io/library/a:1", "Mirrored", "2026-03-01T11:58:59Z", None),
        ]},
        {"source": "docker.io/library/b:1", "mirrors": [
            copy("near.io/copies/library/b:1", "Deleting", "2026-03-01T11:59:00Z", Some("denied")),
            copy("far.io/library/b:1", "Pending", "2026-03-01T11:50:00Z", None),
        ]},
        {"source": "docker.io/library/c:1", "unusedSince": "2026-03-01T10:00:00Z", "mirrors": [
            copy("near.io/copies/library/c:1", "Deleting", "2026-03-01T11:59:00Z", None),
            copy("far.io/library/c:1", "Mirrored", "2026-02-01T12:00:00Z", None),
        ]},
    ]);
    let parts = [
        (Part::Objects(KIND), going.clone()),
        (Part::Ledgers(KIND), ledger("fairlead-system", KIND, &entries)),
    ];
    let found = report(&view(&parts));
    let counts = Counts { total: 5, mirrored: 2, deleting: 3, ..Counts::default() };
    assert_eq!(found.objects[0].copies, counts, "what was still to be copied is not any more");
    let shown = text(&found);
    for part in [
        "being deleted for 60s; not ready for 3m, Progressing: ",
        "  copies   2 of 5 in place, 3 being removed\n",
        "    not removed  near.io/copies/library/b:1  60s  denied\n",
        "    docker.io/library/c:1  2h   go now: near.io/copies/library/c:1; kept: far.io/library/c:1\n",
    ] {
        assert!(shown.contains(part), "{part:?} is missing in:\n{shown}");
    }
    // Without ledgers nothing waits either.
    going["status"]["imageCount"] = json!(3);
    going["status"]["mirroredCount"] = json!(2);
    let found = report(&view(&[(Part::Objects(KIND), going)]));
    assert_eq!(found.objects[0].copies, Counts { total: 2, mirrored: 2, ..Counts::default() });
}

#[test]
fn what_cannot_be_read_is_named() {
    let broken = json!({"metadata": {"name": "l", "namespace": "n"}, "spec": {"owner": {"kind": "x"}}});
    let status = json!({"conditions": [{
        "type": "Accepted", "status": "False", "reason": "InvalidFilter", "message": "spec.filter: mend it",
        "lastTransitionTime": "2026-03-01T11:00:00Z",
    }]});
    let view = view(&[(Part::Objects(KIND), object(&json!({}), &status)), (Part::Ledgers(KIND), broken)]);
    let report = report(&view);
    assert!(report.warnings[0].starts_with("ImageLedger n/l is left out"), "{:?}", report.warnings);
    assert!(report.is_troubled());
    let text = text(&report);
    assert!(text.contains("  problem  InvalidFilter: spec.filter: mend it\n"), "{text}");
    assert!(text.contains("no operator has looked at it yet"), "{text}");
}

#[test]
fn only_changes_count_as_such() {
    let objects = [
        (Part::Objects(KIND), object(&spec(), &json!({}))),
        (Part::Ledgers(KIND), ledger("fairlead-system", KIND, &entries())),
    ];
    let (mut known, later) = (view(&objects), now() + SignedDuration::from_secs(90));
    let (before, after) = (report(&known), Report::of(&known, |_| true, later));
    assert_ne!(before, after, "the pace has changed");
    assert!(before.is_same(&after));
    known.apply(Part::Ledgers(KIND), kube::runtime::watcher::Event::Init);
    known.apply(Part::Ledgers(KIND), kube::runtime::watcher::Event::InitDone);
    assert!(!before.is_same(&report(&known)));
}
