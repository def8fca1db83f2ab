//! When copies go.

use super::*;

fn in_place(spec: Value) -> World {
    let mut world = World::one(spec);
    world.uses(0, &["nginx:1"]).round(1);
    world.work(0, 2).round(3);
    world
}

const SOURCE: &str = "nginx:1";
const COPY: &str = "m.io/library/nginx:1";

#[test]
fn without_clean_up_a_copy_stays() {
    let mut world = in_place(mirrors(&["m.io"]));
    let outcome = world.uses(0, &[]).round(10);
    assert_shows(&world, 0, "docker.io/library/nginx:1 unused since 10\n  m.io/library/nginx:1 Mirrored 2");
    assert_eq!(outcome[0].next, None);
    world.round(1_000_000_000);
    assert_shows(&world, 0, "docker.io/library/nginx:1 unused since 10\n  m.io/library/nginx:1 Mirrored 2");
    world.uses(0, &[SOURCE]).round(1_000_000_010);
    assert_shows(&world, 0, "docker.io/library/nginx:1\n  m.io/library/nginx:1 Mirrored 2");
    assert!(world.tasks(0).is_empty());
}

#[test]
fn retention_counts_from_when_the_last_pod_went() {
    let mut world = in_place(cleaned(&["m.io"], 100));
    let outcome = world.uses(0, &[]).round(10);
    assert_eq!(outcome[0].next, Some(at(110)));
    assert_eq!(world.round(109)[0].next, Some(at(110)), "it counts on, whatever happens meanwhile");
    assert_eq!(world.state(0, SOURCE, COPY), Some(CopyState::Mirrored));
    assert_eq!(world.round(110)[0].next, None);
    assert_shows(&world, 0, "docker.io/library/nginx:1 unused since 10\n  m.io/library/nginx:1 Deleting 110");
    assert_eq!(world.tasks(0), ["delete docker.io/library/nginx:1 m.io/library/nginx:1"]);
    world.round(120);
    assert_shows(&world, 0, "docker.io/library/nginx:1 unused since 10\n  m.io/library/nginx:1 Deleting 110");
    world.work(0, 130);
    assert_shows(&world, 0, "");
}

#[test]
fn retention_may_have_ended_while_nobody_looked() {
    let mut world = in_place(cleaned(&["m.io"], 100));
    world.uses(0, &[]).round(10);
    let [object] = &mut world.objects[..] else { unreachable!() };
    let stored: Vec<_> = object.ledger.shelves().map(|shelf| object.ledger.draft(shelf)).collect();
    let specs = stored.into_iter().map(|draft| match draft {
        crate::ledger::Draft::Write { name, version, manner, entries, .. } => {
            let owner = object.ledger.owner().named();
            (name, version, fairlead_api::fairlead::ImageLedgerSpec { owner, manner, entries })
        }
        crate::ledger::Draft::Delete { .. } => unreachable!(),
    });
    object.ledger = Ledger::load(object.ledger.owner().clone(), specs.collect::<Vec<_>>());
    world.round(1000);
    assert_shows(
        &world,
        0,
        "docker.io/library/nginx:1 unused since 10\n  m.io/library/nginx:1 Deleting 1000",
    );
}

#[test]
fn retention_of_nothing_is_at_once() {
    let mut world = in_place(cleaned(&["m.io"], 0));
    world.uses(0, &[]).round(10);
    assert_eq!(world.tasks(0), ["delete docker.io/library/nginx:1 m.io/library/nginx:1"]);
}

#[test]
fn back_in_use_before_it_is_gone() {
    let mut world = in_place(cleaned(&["m.io"], 0));
    world.uses(0, &[]).round(10);
    world.record(0, SOURCE, COPY, Finding::DeletionFailed { error: "the registry is down".to_owned() }, 11);
    world.uses(0, &[SOURCE]).round(20);
    assert_shows(&world, 0, "docker.io/library/nginx:1\n  m.io/library/nginx:1 Pending 20");
    assert_eq!(world.tasks(0), ["copy docker.io/library/nginx:1 m.io/library/nginx:1"]);
    // The deletion that was under way ends only now: the copy is made again all the same.
    world.record(0, SOURCE, COPY, Finding::Deleted, 21);
    assert_eq!(world.tasks(0), ["copy docker.io/library/nginx:1 m.io/library/nginx:1"]);
    world.work(0, 22);
    world.record(0, SOURCE, COPY, Finding::Deleted, 23);
    assert_eq!(
        world.state(0, SOURCE, COPY),
        Some(CopyState::Pending),
        "and even after it was found in place"
    );
}

#[test]
fn a_retention_made_longer_saves_what_is_not_gone_yet() {
    let mut world = in_place(cleaned(&["m.io"], 0));
    world.uses(0, &[]).round(10);
    let outcome = world.edit(0, &cleaned(&["m.io"], 100)).round(20);
    assert_eq!(outcome[0].next, Some(at(110)));
    assert!(world.tasks(0).is_empty(), "nobody knows whether it is still there, and nobody needs it");
    world.uses(0, &[SOURCE]).round(30);
    assert_eq!(world.tasks(0), ["copy docker.io/library/nginx:1 m.io/library/nginx:1"]);
}

#[test]
fn each_mirror_may_have_a_say_of_its_own() {
    let mut spec = cleaned(&["m.io", "keep.io", "long.io"], 10);
    spec["mirrors"][1]["cleanup"] = json!({ "enabled": false });
    spec["mirrors"][2]["cleanup"] = json!({ "enabled": true, "retention": "1m" });
    let mut world = in_place(spec);
    let outcome = world.uses(0, &[]).round(100);
    assert_eq!(outcome[0].next, Some(at(110)));
    let outcome = world.round(110);
    assert_eq!(outcome[0].next, Some(at(160)));
    assert_shows(
        &world,
        0,
        "
            docker.io/library/nginx:1 unused since 100
              m.io/library/nginx:1 Deleting 110
              keep.io/library/nginx:1 Mirrored 2
              long.io/library/nginx:1 Mirrored 2
        ",
    );
    world.work(0, 111).round(160);
    world.work(0, 161).round(170);
    assert_shows(
        &world,
        0,
        "docker.io/library/nginx:1 unused since 100\n  keep.io/library/nginx:1 Mirrored 2",
    );

    let mut only_here = mirrors(&["m.io", "keep.io"]);
    only_here["mirrors"][0]["cleanup"] = json!({ "enabled": true });
    let mut world = in_place(only_here);
    world.uses(0, &[]).round(100);
    assert_eq!(world.tasks(0), ["delete docker.io/library/nginx:1 m.io/library/nginx:1"]);
}

#[test]
fn what_the_filter_no_longer_lets_pass_goes_at_once() {
    let narrow = |retention| {
        let mut spec = cleaned(&["m.io"], retention);
        spec["filter"] = json!({ "include": [{ "image": "quay.io/.*" }] });
        spec
    };
    let mut world = in_place(cleaned(&["m.io"], 100));
    world.uses(0, &[]).edit(0, &narrow(100)).round(10);
    assert_shows(
        &world,
        0,
        "docker.io/library/nginx:1 no longer matching\n  m.io/library/nginx:1 Deleting 10",
    );

    // Edited back: retention starts anew, and what is gone is not known to be there.
    let outcome = world.edit(0, &cleaned(&["m.io"], 100)).round(20);
    assert_shows(&world, 0, "docker.io/library/nginx:1 unused since 20\n  m.io/library/nginx:1 Pending 20");
    assert_eq!(outcome[0].next, Some(at(120)));

    let mut kept = mirrors(&["m.io"]);
    kept["filter"] = json!({ "include": [{ "image": "quay.io/.*" }] });
    let mut world = in_place(mirrors(&["m.io"]));
    world.uses(0, &[]).edit(0, &kept).round(10);
    assert_shows(
        &world,
        0,
        "docker.io/library/nginx:1 no longer matching\n  m.io/library/nginx:1 Mirrored 2",
    );
}

#[test]
fn a_mirror_taken_out_takes_its_copies_along_where_clean_up_is_on() {
    let mut world = in_place(cleaned(&["m.io", "n.io"], 100));
    world.edit(0, &cleaned(&["n.io"], 100)).round(10);
    assert_shows(
        &world,
        0,
        "
            docker.io/library/nginx:1
              n.io/library/nginx:1 Mirrored 2
              m.io/library/nginx:1 Deleting 10
        ",
    );
    world.record(0, SOURCE, COPY, Finding::DeletionGivenUp, 20);
    world.round(30);
    assert_shows(&world, 0, "docker.io/library/nginx:1\n  n.io/library/nginx:1 Mirrored 2");

    let mut world = in_place(mirrors(&["m.io", "n.io"]));
    world.edit(0, &mirrors(&["n.io"])).round(10);
    assert_shows(&world, 0, "docker.io/library/nginx:1\n  n.io/library/nginx:1 Mirrored 2");
    world.edit(0, &mirrors(&[])).uses(0, &[]).round(20);
    assert_shows(&world, 0, "");
}

#[test]
fn a_mirror_that_is_put_back_is_used_again() {
    let mut world = in_place(cleaned(&["m.io", "n.io"], 100));
    world.edit(0, &cleaned(&["n.io"], 100)).round(10);
    world.edit(0, &cleaned(&["n.io", "m.io"], 100)).round(20);
    assert_eq!(world.tasks(0), ["copy docker.io/library/nginx:1 m.io/library/nginx:1"]);
}

#[test]
fn a_mirror_that_moves_keeps_the_old_copy_until_the_new_one_is_there() {
    let mut world = in_place(cleaned(&["m.io"], 0));
    world.edit(0, &cleaned(&["m.io/new"], 0)).round(10);
    assert_eq!(world.tasks(0), ["copy docker.io/library/nginx:1 m.io/new/library/nginx:1"]);
    world.record(
        0,
        SOURCE,
        "m.io/new/library/nginx:1",
        Finding::CopyFailed { error: "source is gone".to_owned() },
        11,
    );
    world.round(12);
    assert_eq!(world.state(0, SOURCE, COPY), Some(CopyState::Mirrored));
    world.work(0, 13).round(14);
    assert_eq!(world.tasks(0), ["delete docker.io/library/nginx:1 m.io/library/nginx:1"]);

    let mut unused = in_place(cleaned(&["m.io"], 1000));
    unused.uses(0, &[]).round(10);
    unused.edit(0, &cleaned(&["m.io/new"], 1000)).round(20);
    assert_eq!(unused.tasks(0), ["delete docker.io/library/nginx:1 m.io/library/nginx:1"]);
}

#[test]
fn an_entry_that_is_broken_for_a_moment_deletes_nothing() {
    let mut world = in_place(cleaned(&["m.io", "n.io"], 0));
    let before = world.shows(0);
    let mut broken = cleaned(&["m.io", "n.io"], 0);
    broken["mirrors"][0]["credentialSecret"] = json!({ "name": "push" });
    world.edit(0, &broken).round(10);
    assert_eq!(
        world.objects[0].policy.problems().len(),
        1,
        "a cluster-wide object has to name the namespace"
    );
    let copies =
        |text: &str| text.lines().skip(1).map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(copies(&world.shows(0)), copies(&before));
    world.edit(0, &cleaned(&["m.io", "n.io"], 0)).round(20);
    assert_eq!(copies(&world.shows(0)), copies(&before));
}

#[test]
fn rows_that_stand_for_nothing_are_forgotten_with_their_image() {
    let mut world = World::one(mirrors(&["m.io"]));
    world.uses(0, &["typo:1"]).round(1);
    world.record(
        0,
        "typo:1",
        "m.io/library/typo:1",
        Finding::CopyFailed { error: "not found".to_owned() },
        2,
    );
    world.uses(0, &[]).round(3);
    assert_shows(&world, 0, "");

    let mut world = World::one(cleaned(&["m.io"], 10));
    world.uses(0, &["typo:1"]).round(1);
    world.uses(0, &[]).round(3);
    assert!(world.tasks(0).is_empty(), "nobody waits for a copy that was not made in time");
    world.round(13);
    assert_eq!(
        world.tasks(0),
        ["delete docker.io/library/typo:1 m.io/library/typo:1"],
        "it may have been made without anybody hearing of it"
    );
}

#[test]
fn what_another_object_or_entry_needs_is_not_deleted() {
    let mut world = World::new(&[("m", cleaned(&["m.io"], 0)), ("team/n", mirrors(&["m.io"]))]);
    world.uses(0, &[SOURCE]).uses(1, &[SOURCE]).round(1);
    world.work(0, 2).work(1, 2).uses(0, &[]).round(10);
    assert_shows(&world, 0, "");
    assert_shows(&world, 1, "docker.io/library/nginx:1\n  m.io/library/nginx:1 Mirrored 2");

    // Unused there too, but kept.
    world.uses(0, &[SOURCE]).uses(1, &[]).round(20);
    world.work(0, 21).uses(0, &[]).round(30);
    assert_shows(&world, 0, "");

    let mut world = World::one(cleaned(&["m.io"], 0));
    world.uses(0, &["nginx", "nginx:latest"]).round(1);
    world.work(0, 2).uses(0, &["nginx"]).round(3);
    assert_shows(&world, 0, "docker.io/library/nginx\n  m.io/library/nginx Mirrored 2");
    world.uses(0, &[]).round(4);
    assert_eq!(world.tasks(0), ["delete docker.io/library/nginx m.io/library/nginx"]);
}

#[test]
fn an_object_that_makes_no_sense_just_now_protects_its_copies() {
    let mut world = World::new(&[("m", cleaned(&["m.io"], 0)), ("n", mirrors(&["m.io"]))]);
    world.uses(0, &[SOURCE]).uses(1, &[SOURCE]).round(1);
    world.work(0, 2).work(1, 2).uses(0, &[]);
    let index = world.index();
    let loops = Loops::of(&index);
    let [one, broken] = &mut world.objects[..] else { unreachable!() };
    let holdings = [
        Holding { ledger: &one.ledger, policy: Some(&one.policy), used: &one.used, leaving: false },
        Holding { ledger: &broken.ledger, policy: None, used: &[], leaving: false },
    ];
    let claims = Claims::gather(&holdings, &loops, at(10));
    let inputs = Inputs {
        policy: &one.policy,
        used: &one.used,
        loops: &loops,
        claims: &claims,
        replicas: &|_, _| false,
        now: at(10),
    };
    reconcile(&mut one.ledger, &inputs);
    assert_shows(&world, 0, "");
}
