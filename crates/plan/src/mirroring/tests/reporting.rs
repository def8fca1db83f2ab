//! What the status says.

use fairlead_api::conditions::{ConditionStatus, reasons};

use super::*;

fn said(world: &World) -> MirrorReport {
    report(&world.objects[0].ledger, &world.objects[0].policy, &[], &[])
}

#[track_caller]
fn assert_ready(report: &MirrorReport, status: ConditionStatus, reason: &str, message: &str) {
    assert_eq!((report.ready.status, report.ready.reason.as_str()), (status, reason), "{:?}", report.ready);
    assert!(report.ready.message.contains(message), "{:?}", report.ready.message);
}

#[test]
fn from_nothing_to_everything() {
    let mut world = World::one(mirrors(&["m.io", "n.io"]));
    world.uses(0, &["nginx:1", "redis:1"]).round(1);
    assert_ready(&said(&world), ConditionStatus::False, reasons::PROGRESSING, "0 of 4 copies are in place");
    world.copied(0, "nginx:1", "m.io/library/nginx:1", 2);
    let half = said(&world);
    assert_ready(&half, ConditionStatus::False, reasons::PROGRESSING, "1 of 4 copies are in place");
    assert_eq!((half.image_count, half.mirrored_count, half.failed_count), (2, 1, 0));
    let listed = serde_json::to_value(&half.matching_images[0]).unwrap();
    assert_eq!(
        listed,
        json!({ "image": "docker.io/library/nginx:1", "mirrors": [
            { "image": "m.io/library/nginx:1", "mirroredAt": "1970-01-01T00:00:02Z" },
            { "image": "n.io/library/nginx:1" },
        ]})
    );
    world.work(0, 3);
    assert_ready(&said(&world), ConditionStatus::True, reasons::READY, "4 copies in place of 2 images");
}

#[test]
fn a_failure_is_named_first_and_counted() {
    let mut world = World::one(mirrors(&["m.io"]));
    let images: Vec<String> = (0..250).map(|number| format!("a{number:03}:1")).collect();
    let images: Vec<&str> = images.iter().map(String::as_str).collect();
    world.uses(0, &images).round(1);
    world.work(0, 2);
    for late in ["a200:1", "a249:1"] {
        let copy = format!("m.io/library/{late}");
        world.record(0, late, &copy, Finding::Missing, 3);
        world.record(0, late, &copy, failed("connection refused"), 4);
    }
    let report = said(&world);
    assert_eq!((report.image_count, report.mirrored_count, report.failed_count), (250, 248, 2));
    assert_ready(
        &report,
        ConditionStatus::False,
        reasons::DEGRADED,
        "2 of 250 copies failed, and are tried again; the first: docker.io/library/a200:1 to m.io/library/a200:1: connection refused",
    );
    let listed: Vec<&str> = report.matching_images.iter().map(|one| one.image.as_str()).collect();
    assert_eq!(listed.len(), 100);
    assert_eq!(
        &listed[..3],
        ["docker.io/library/a200:1", "docker.io/library/a249:1", "docker.io/library/a000:1"]
    );
    assert_eq!(report.matching_images[0].mirrors[0].last_error, "connection refused");
}

#[test]
fn a_conflict_names_both_sources_and_the_place() {
    let mut world = World::one(mirrors(&["m.io"]));
    world.uses(0, &["docker.io/x/y:1", "quay.io/x/y:1"]).round(1);
    world.work(0, 2).round(3);
    let report = said(&world);
    assert_ready(&report, ConditionStatus::False, reasons::CONFLICT, "1 of 2 copies are refused");
    for name in ["docker.io/x/y:1", "quay.io/x/y:1", "m.io/x/y:1"] {
        assert!(report.ready.message.contains(name), "{:?}", report.ready.message);
    }
    assert_eq!(report.failed_count, 1);
}

#[test]
fn what_a_shared_copy_says_is_no_error() {
    let mut world = World::one(mirrors(&["m.io"]));
    world.others.push(replicated());
    world.uses(0, &["docker.io/x/y:1", "quay.io/x/y:1"]).round(1);
    world.work(0, 2).round(3);
    let report = said(&world);
    assert_ready(&report, ConditionStatus::True, reasons::READY, "2 copies in place of 2 images");
    assert!(report.matching_images.iter().all(|image| image.mirrors[0].last_error.is_empty()));
}

#[test]
fn unused_images_are_listed_and_hold_nothing_up() {
    let mut world = World::one(cleaned(&["m.io"], 100));
    world.uses(0, &["nginx:1"]).round(1);
    world.work(0, 2).uses(0, &[]).round(2);
    let report = said(&world);
    assert_ready(&report, ConditionStatus::True, reasons::READY, "1 copy in place of 1 image");
    assert!(report.matching_images[0].unused_since.is_some());
    world.round(200);
    let copy = "m.io/library/nginx:1";
    world.record(0, "nginx:1", copy, Finding::DeletionFailed { error: "405".to_owned() }, 201);
    let message = "1 copy cannot be deleted, the first m.io/library/nginx:1: 405";
    assert_ready(&said(&world), ConditionStatus::True, reasons::READY, message);
}

#[test]
fn what_is_wrong_with_the_object_comes_first() {
    let mut world = World::one(mirrors(&["m.io"]));
    world.uses(0, &["nginx:1"]).round(1);
    world.record(0, "nginx:1", "m.io/library/nginx:1", failed("401"), 2);
    let Object { ledger, policy, .. } = &world.objects[0];
    let secrets = ["Secret registries/push is missing: create it".to_owned()];
    let told = report(ledger, policy, &secrets, &[]);
    assert_ready(&told, ConditionStatus::False, reasons::SECRET_UNAVAILABLE, "registries/push");

    world.work(0, 3);
    let Object { ledger, policy, .. } = &world.objects[0];
    let problems = ["cannot place x".to_owned(), "cannot place y".to_owned()];
    let told = report(ledger, policy, &[], &problems);
    assert_ready(&told, ConditionStatus::False, reasons::DEGRADED, "cannot place x (and 1 more)");
}
