//! Which copies are to be made.

use super::*;

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

#[test]
fn every_image_in_use_gets_a_copy_on_every_mirror() {
    let mut world = World::one(mirrors(&["m.io/a", "n.io"]));
    world.uses(0, &["nginx:1", "quay.io/x/y:2"]).round(10);
    assert_shows(
        &world,
        0,
        "
            docker.io/library/nginx:1
              m.io/a/library/nginx:1 Pending 10
              n.io/library/nginx:1 Pending 10
            quay.io/x/y:2
              m.io/a/x/y:2 Pending 10
              n.io/x/y:2 Pending 10
        ",
    );
    assert_eq!(
        world.tasks(0),
        [
            "copy docker.io/library/nginx:1 m.io/a/library/nginx:1",
            "copy docker.io/library/nginx:1 n.io/library/nginx:1",
            "copy quay.io/x/y:2 m.io/a/x/y:2",
            "copy quay.io/x/y:2 n.io/x/y:2",
        ]
    );
    world.work(0, 20).round(30);
    assert_eq!(world.state(0, "nginx:1", "n.io/library/nginx:1"), Some(CopyState::Mirrored));
    assert!(world.tasks(0).is_empty());

    world.edit(0, &mirrors(&["m.io/a", "n.io", "o.io"])).round(40);
    assert_eq!(world.tasks(0).len(), 2, "a mirror that is added gets a copy of everything");
}

#[test]
fn a_failed_copy_is_tried_again_and_keeps_its_reason() {
    let mut world = World::one(mirrors(&["m.io"]));
    world.uses(0, &["nginx:1"]).round(1);
    let fail = |world: &mut World, second| {
        let error = "x".repeat(2000);
        world.record(0, "nginx:1", "m.io/library/nginx:1", failed(&error), second);
    };
    fail(&mut world, 5);
    fail(&mut world, 9);
    world.round(10);
    assert_shows(&world, 0, "docker.io/library/nginx:1\n  m.io/library/nginx:1 Failed 5");
    assert_eq!(world.tasks(0), ["copy docker.io/library/nginx:1 m.io/library/nginx:1"]);
    world.work(0, 11).round(12);
    let copy = world.objects[0].ledger.get(&image("nginx:1")).unwrap().copies[0].clone();
    assert_eq!((copy.state, copy.last_error, copy.since), (CopyState::Mirrored, None, at(11)));
}

#[test]
fn what_a_pod_was_given_keeps_an_entry_but_makes_none() {
    let mut world = World::one(cleaned(&["m.io"], 0));
    world.uses(0, &["quay.io/x:1"]).round(1);
    world.work(0, 2).uses(0, &["nginx:1", "~quay.io/x:1", "~quay.io/y:1"]).round(3);
    assert_shows(
        &world,
        0,
        "
            docker.io/library/nginx:1
              m.io/library/nginx:1 Pending 3
            quay.io/x:1
              m.io/x:1 Mirrored 2
        ",
    );
}

#[test]
fn images_without_a_tag_and_by_digest() {
    let mut world = World::one(mirrors(&["m.io"]));
    let pinned = format!("quay.io/x@{DIGEST}");
    let both = format!("quay.io/x:1@{DIGEST}");
    world.uses(0, &["nginx", "nginx:latest", &pinned, &both]).round(1);
    assert!(world.round(1).iter().all(|outcome| outcome.refused.is_empty()));
    assert_eq!(
        world.tasks(0),
        [
            "copy docker.io/library/nginx m.io/library/nginx".to_owned(),
            "copy docker.io/library/nginx:latest m.io/library/nginx:latest".to_owned(),
            format!("copy quay.io/x:1@{DIGEST} m.io/x:1@{DIGEST}"),
            format!("copy quay.io/x@{DIGEST} m.io/x@{DIGEST}"),
        ]
    );
}

#[test]
fn slots_and_holding_tags() {
    let same = |one: &str, other: &str| slot(&image(one)) == slot(&image(other));
    assert!(same("m.io/x", "m.io/x:latest"));
    assert!(same(&format!("m.io/x:1@{DIGEST}"), &format!("m.io/x@{DIGEST}")));
    assert!(!same("m.io/x:1", &format!("m.io/x:1@{DIGEST}")));
    assert!(!same("m.io/x:1", "m.io/x:2") && !same("m.io/x:1", "m.io/y:1"));
    assert_eq!(slot(&image("m.io/x")).to_string(), "m.io/x:latest");
    for algorithm in ["sha256", "sha384", "sha512"] {
        let algorithm = fairlead_domain::digest::Algorithm::from_name(algorithm).unwrap();
        let digest = algorithm.digest(b"");
        let tag = hold_tag(&digest);
        assert!(format!("digest-{}", digest.hex()).starts_with(tag.as_str()));
        assert!(tag.as_str().len() <= 128);
    }
    assert_eq!(NO_LONGER_MATCHING.to_string(), fairlead_api::kuik::NO_LONGER_MATCHING);
}

#[test]
fn mirrors_are_not_mirrored() {
    let mut world = World::new(&[
        ("m", mirrors(&["m.io/mirror"])),
        ("other", mirrors(&["other.io"])),
        ("team-a/a", mirrors(&["a.io/x"])),
        ("team-b/b", mirrors(&["b.io/x"])),
    ]);
    let images = [
        "m.io/mirror/nginx:1",
        "m.io/mirror2/nginx:1",
        "m.io/mirror:1",
        "other.io/nginx:1",
        "a.io/x/y:1",
        "a.io/xx/y:1",
        "b.io/x/y:1",
        "b.io/y:1",
    ];
    for object in 0..4 {
        world.uses(object, &images);
    }
    world.round(1);
    let sources = |object: usize| -> Vec<&str> {
        world.objects[object].ledger.iter().map(|(source, _)| source.as_str()).collect()
    };
    let outside = ["a.io/xx/y:1", "b.io/y:1", "m.io/mirror2/nginx:1"];
    assert_eq!(sources(0), outside, "a cluster-wide object keeps out of the mirrors of all namespaces");
    assert_eq!(sources(1), outside);
    assert_eq!(sources(2), ["a.io/xx/y:1", "b.io/x/y:1", "b.io/y:1", "m.io/mirror2/nginx:1"]);
    assert_eq!(sources(3), ["a.io/x/y:1", "a.io/xx/y:1", "b.io/y:1", "m.io/mirror2/nginx:1"]);
}

#[test]
fn a_mirror_that_comes_to_hold_a_source_deletes_nothing() {
    let mut world = World::new(&[("m", cleaned(&["m.io"], 0)), ("late/l", mirrors(&["late.io"]))]);
    world.uses(0, &["nginx:1"]).round(1);
    world.work(0, 2).edit(1, &mirrors(&["docker.io"])).round(3);
    assert_shows(&world, 0, "docker.io/library/nginx:1\n  m.io/library/nginx:1 Mirrored 2");
}

#[test]
fn on_docker_hub_itself_a_name_gains_a_segment() {
    let mut world = World::one(cleaned(&["docker.io"], 0));
    world.uses(0, &["quay.io/nginx:1"]).round(1);
    assert_eq!(world.tasks(0), ["copy quay.io/nginx:1 docker.io/library/nginx:1"]);
    world.work(0, 2).round(3);
    assert_shows(&world, 0, "quay.io/nginx:1\n  docker.io/library/nginx:1 Mirrored 2");
}

#[test]
fn what_cannot_be_named_on_a_mirror_is_told() {
    let long = "a".repeat(200);
    let mut world = World::one(mirrors(&[&format!("m.io/{}", "b".repeat(100)), "n.io"]));
    let outcome = world.uses(0, &[&format!("quay.io/{long}:1"), "nginx:1"]).round(1);
    assert_eq!(outcome[0].problems.len(), 1);
    assert!(outcome[0].problems[0].contains(&long), "{:?}", outcome[0].problems);
    assert_eq!(world.tasks(0).len(), 3, "everything else is copied");
    assert_eq!(world.round(2)[0].problems, outcome[0].problems, "and told again");

    let many: Vec<String> = (0..50).map(|number| format!("quay.io/{long}:{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(world.uses(0, &many).round(3)[0].problems.len(), 20, "but not without end");
}

#[test]
fn an_object_without_a_mirror_still_counts_its_images() {
    let mut world = World::one(mirrors(&[]));
    world.uses(0, &["nginx:1"]).round(1);
    assert_shows(&world, 0, "docker.io/library/nginx:1");
    world.uses(0, &[]).round(2);
    assert_shows(&world, 0, "");
}

#[test]
fn a_mirror_named_twice_is_one() {
    let mut world = World::one(mirrors(&["m.io/a", "m.io/a/", "docker.io", "docker.io/library"]));
    world.uses(0, &["quay.io/nginx:1"]).round(1);
    let before = world.shows(0);
    assert_shows(
        &world,
        0,
        "
            quay.io/nginx:1
              m.io/a/nginx:1 Pending 1
              docker.io/library/nginx:1 Pending 1
        ",
    );
    world.round(2);
    assert_eq!(world.shows(0), before);
}
