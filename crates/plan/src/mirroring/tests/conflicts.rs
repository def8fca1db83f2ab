//! Sources that meet in one destination.

use super::*;

const DOCKER: &str = "docker.io/x/y:1";
const QUAY: &str = "quay.io/x/y:1";
const COPY: &str = "m.io/x/y:1";

/// Whom a contested destination belongs to.
fn owner(claims: &DestinationOwners, destination: &str) -> Option<Reference> {
    claims.at(&image(destination))?.owner.as_ref().map(|title| title.source.clone())
}

#[test]
fn of_two_sources_in_one_object_the_first_gets_the_place() {
    let mut world = World::one(mirrors(&["m.io", "n.io/quay"]));
    let outcome = world.uses(0, &[QUAY, DOCKER]).round(1);
    assert_shows(
        &world,
        0,
        "
            docker.io/x/y:1
              m.io/x/y:1 Pending 1
              n.io/quay/x/y:1 Pending 1
            quay.io/x/y:1
              m.io/x/y:1 Refused 1
              n.io/quay/x/y:1 Refused 1
        ",
    );
    let refused = &outcome[0].refused[0];
    assert_eq!((refused.source.as_str(), refused.destination.as_str()), (QUAY, COPY));
    assert!(refused.why.contains(DOCKER), "{}", refused.why);
    let said = world.objects[0].ledger.get(&image(QUAY)).unwrap().copies[0].last_error.clone().unwrap();
    assert!(said.contains(DOCKER), "{said}");
    assert_eq!(
        world.tasks(0),
        ["copy docker.io/x/y:1 m.io/x/y:1", "copy docker.io/x/y:1 n.io/quay/x/y:1"],
        "one task for a destination: the comparison comes after the copy"
    );
    world.work(0, 2).round(3);
    assert_eq!(world.tasks(0), ["compare quay.io/x/y:1 m.io/x/y:1", "compare quay.io/x/y:1 n.io/quay/x/y:1"]);
    world.work(0, 4).round(5);
    assert!(world.tasks(0).is_empty(), "what a source contains is asked once");
    assert_eq!(world.state(0, QUAY, COPY), Some(CopyState::Refused));
}

#[test]
fn the_ledger_keeps_the_owner_while_it_is_in_use() {
    let mut world = World::new(&[("late", mirrors(&["m.io"])), ("early", mirrors(&["m.io"]))]);
    world.uses(1, &[QUAY]).round(1);
    // Before the copy is made …
    world.uses(0, &[DOCKER]).round(1);
    assert_eq!(world.state(0, DOCKER, COPY), Some(CopyState::Refused));
    // … after it …
    world.work(1, 3).round(4);
    assert_eq!(world.state(0, DOCKER, COPY), Some(CopyState::Refused));
    // … while it is made again …
    world.record(1, QUAY, COPY, Finding::Missing, 5);
    world.round(6);
    assert_eq!(world.state(1, QUAY, COPY), Some(CopyState::Pending));
    world.record(1, QUAY, COPY, unreadable("down"), 7);
    world.round(8);
    assert_eq!(world.state(0, DOCKER, COPY), Some(CopyState::Refused));
    world.work(1, 9).round(10);
    assert_eq!(owner(&world.claims(10), COPY), Some(image(QUAY)));
}

#[test]
fn an_unused_copy_yields_to_one_in_use() {
    let mut world = World::new(&[("late", mirrors(&["m.io"])), ("early", mirrors(&["m.io"]))]);
    world.uses(1, &[QUAY]).round(1);
    world.work(1, 2).uses(0, &[DOCKER]).round(3);
    world.uses(1, &[]).round(4);
    assert_eq!(world.tasks(0), ["copy docker.io/x/y:1 m.io/x/y:1"]);
    assert_eq!(world.state(1, QUAY, COPY), Some(CopyState::Mirrored), "it is what is there so far");
    let row = world.objects[0].ledger.get(&image(DOCKER)).unwrap().copies[0].clone();
    assert!(row.replaces, "and must not be served as the other");
    world.work(0, 5).round(6);
    assert_shows(&world, 0, "docker.io/x/y:1\n  m.io/x/y:1 Mirrored 5");
    assert_shows(&world, 1, "");
    assert!(!world.objects[0].ledger.get(&image(DOCKER)).unwrap().copies[0].replaces);

    // Not while a Pod runs it.
    let mut world = World::new(&[("late", mirrors(&["m.io"])), ("early", mirrors(&["m.io"]))]);
    world.uses(1, &[QUAY]).round(1);
    world.work(1, 2).uses(0, &[DOCKER]).uses(1, &[]).names(&[COPY]).round(3);
    assert_eq!(world.state(0, DOCKER, COPY), Some(CopyState::Refused));
    world.names(&[]).round(4);
    assert_eq!(world.state(0, DOCKER, COPY), Some(CopyState::Pending));
}

#[test]
fn cluster_scoped_objects_come_before_namespaced_ones() {
    let mut world = World::new(&[("cluster", mirrors(&["m.io"])), ("team/own", mirrors(&["m.io"]))]);
    world.uses(1, &[DOCKER]).round(1);
    world.work(1, 2).uses(0, &[QUAY]);
    let outcome = world.round(3);
    assert_eq!(world.tasks(0), ["copy quay.io/x/y:1 m.io/x/y:1"]);
    assert_eq!(
        world.state(1, DOCKER, COPY),
        Some(CopyState::Refused),
        "although it was first, and is in place"
    );
    assert!(outcome[1].refused[0].why.contains(QUAY));
    world.work(0, 4).round(5);
    assert_eq!(owner(&world.claims(5), COPY), Some(image(QUAY)));
    world.uses(0, &[]).round(6);
    assert_eq!(owner(&world.claims(6), COPY), Some(image(QUAY)), "also while it is kept for later");

    // A Pod that was given the copy would find another image under its name.
    let mut world = World::new(&[("cluster", mirrors(&["m.io"])), ("team/own", mirrors(&["m.io"]))]);
    world.uses(1, &[DOCKER]).round(1);
    let outcome = world.work(1, 2).uses(0, &[QUAY]).names(&[COPY]).round(3);
    let why = &outcome[0].refused[0].why;
    assert_eq!(
        **why,
        *"holds the copy of docker.io/x/y:1 for Pod shop/web: it is replaced when no Pod names it"
    );
    assert!(world.tasks(0).iter().all(|task| task.starts_with("compare")));
    assert_eq!(world.state(1, DOCKER, COPY), Some(CopyState::Refused), "and no other Pod is given it");
    world.names(&[]).round(4);
    assert_eq!(world.tasks(0), ["copy quay.io/x/y:1 m.io/x/y:1"]);
}

#[test]
fn a_source_that_cannot_be_copied_owns_nothing() {
    for (first, second) in [("team/typo", "cluster"), ("cluster", "team/own"), ("a", "b")] {
        let mut world = World::new(&[(first, mirrors(&["m.io"])), (second, mirrors(&["m.io"]))]);
        world.uses(0, &[DOCKER]).round(1);
        world.record(0, DOCKER, COPY, unreadable("not found"), 2);
        world.uses(1, &[QUAY]).round(3);
        assert_eq!(world.tasks(1), ["copy quay.io/x/y:1 m.io/x/y:1"], "{first} {second}");
        world.work(1, 4).round(5);
        assert_eq!(world.state(1, QUAY, COPY), Some(CopyState::Mirrored));
        assert_eq!(world.state(0, DOCKER, COPY), Some(CopyState::Refused));
    }
    // The registry of the mirror is at fault: nothing changes hands.
    let mut world = World::new(&[("a", mirrors(&["m.io"])), ("b", mirrors(&["m.io"]))]);
    world.uses(0, &[DOCKER]).round(1);
    world.record(0, DOCKER, COPY, failed("push denied"), 2);
    world.uses(1, &[QUAY]).round(3);
    assert_eq!(world.state(1, QUAY, COPY), Some(CopyState::Refused));
}

/// Also if no Pod uses it any more: what was written there is still its copy.
#[test]
fn a_copy_that_gave_way_to_one_that_cannot_be_made_gets_its_place_back() {
    let mut world = World::new(&[("a", mirrors(&["m.io"])), ("team/c", mirrors(&["m.io"]))]);
    world.uses(1, &[QUAY]).round(1);
    world.work(1, 2).uses(0, &[DOCKER]).round(3);
    assert_eq!(world.state(1, QUAY, COPY), Some(CopyState::Refused), "cluster-scoped objects come first");
    world.uses(1, &[]).round(4);
    world.record(0, DOCKER, COPY, unreadable("not found"), 5);
    for _ in 0..2 {
        world.round(6);
        assert_eq!(world.state(0, DOCKER, COPY), Some(CopyState::Refused));
        assert_eq!(world.state(1, QUAY, COPY), Some(CopyState::Pending));
    }
}

#[test]
fn two_sources_that_cannot_be_copied_do_not_take_turns() {
    let mut world = World::new(&[("a", mirrors(&["m.io"])), ("b", mirrors(&["m.io"]))]);
    world.uses(0, &[DOCKER]).uses(1, &[QUAY]).round(1);
    world.record(1, QUAY, COPY, Finding::CompareFailed, 2);
    world.record(0, DOCKER, COPY, unreadable("not found"), 2);
    let mut owners = Vec::new();
    for second in 3..8 {
        world.round(second);
        for (object, source) in [(0, DOCKER), (1, QUAY)] {
            world.record(object, source, COPY, unreadable("not found"), second);
            world.record(object, source, COPY, Finding::CompareFailed, second);
        }
        owners.push(owner(&world.claims(second), COPY).unwrap());
    }
    owners.dedup();
    assert_eq!(owners, [image(DOCKER)]);
    // As soon as one of them can be read, it is its turn.
    let digest = content(QUAY);
    world.record(1, QUAY, COPY, Finding::Compared { digest, source_digest: digest }, 9);
    world.round(10);
    assert_eq!(world.tasks(1), ["copy quay.io/x/y:1 m.io/x/y:1"]);
}

#[test]
fn what_cannot_be_copied_keeps_nothing_from_being_cleaned_up() {
    let mut world = World::new(&[("a", cleaned(&["m.io"], 0)), ("team/typo", mirrors(&["m.io"]))]);
    world.uses(0, &[QUAY]).uses(1, &[DOCKER]).round(1);
    world.work(0, 2);
    world.record(1, DOCKER, COPY, Finding::CompareFailed, 2);
    world.uses(0, &[]).round(3);
    assert_eq!(world.tasks(0), ["delete quay.io/x/y:1 m.io/x/y:1"]);

    // The last copy of an image that is gone at its source is all that the image has.
    let mut world = World::new(&[("a", cleaned(&["m.io"], 0)), ("team/late", mirrors(&["m.io"]))]);
    world.uses(0, &[QUAY]).round(1);
    world.work(0, 2).uses(1, &[QUAY]).round(3);
    world.record(1, QUAY, COPY, unreadable("not found"), 4);
    world.uses(0, &[]).round(5);
    assert!(world.tasks(0).is_empty());
}

#[test]
fn the_last_object_that_wants_a_copy_cleans_up_what_another_wrote() {
    let mut world = World::new(&[("a", cleaned(&["m.io"], 0)), ("team/b", cleaned(&["m.io"], 0))]);
    world.uses(0, &[DOCKER]).uses(1, &[DOCKER]).round(1);
    world.work(0, 2);
    let digest = content(DOCKER);
    world.record(1, DOCKER, COPY, Finding::Copied { digest, source_digest: digest, written: false }, 3);
    world.round(4);
    world.uses(0, &[]).round(5);
    assert_shows(&world, 0, "");
    world.uses(1, &[]).round(6);
    assert_eq!(world.tasks(1), ["delete docker.io/x/y:1 m.io/x/y:1"]);
}

#[test]
fn admission_serves_a_copy_for_its_own_source_only() {
    use CopyState::{Failed, Mirrored, Pending, Refused};
    let row = |own, state, filled, replaces| Claimed { own, state, filled, replaces };
    for (rows, foreign) in [
        (vec![], false),
        (vec![row(true, Mirrored, true, false)], false),
        (vec![row(true, Pending, false, false)], false),
        (vec![row(true, Failed, false, false)], false),
        (vec![row(false, Mirrored, true, false)], true),
        (vec![row(false, Pending, false, false)], true),
        // A copy that could never be made claims nothing.
        (vec![row(false, Failed, false, false)], false),
        (vec![row(false, Failed, true, false)], true),
        (vec![row(false, Refused, false, false)], false),
        (vec![row(true, Refused, false, false)], true),
        // The destination is its own, and what is there is another's.
        (vec![row(true, Pending, false, true)], true),
        (vec![row(true, Refused, false, true), row(false, Refused, false, true)], true),
        (vec![row(false, Refused, false, true)], true),
        (vec![row(true, Refused, false, false), row(true, Mirrored, true, false)], false),
        (vec![row(true, Mirrored, true, false), row(false, Refused, false, true)], false),
    ] {
        assert_eq!(is_foreign(rows.clone()), foreign, "{rows:?}");
    }
}

#[test]
fn when_the_use_of_the_owner_ends_the_other_source_follows_at_once() {
    let mut world = World::one(cleaned(&["m.io"], 10));
    world.uses(0, &[QUAY]).round(1);
    world.work(0, 2).uses(0, &[QUAY, DOCKER]).round(3);
    assert_eq!(world.state(0, DOCKER, COPY), Some(CopyState::Refused));
    world.uses(0, &[DOCKER]).round(20);
    assert_eq!(world.tasks(0), ["copy docker.io/x/y:1 m.io/x/y:1"], "and nothing deletes what it writes");
    world.work(0, 21).round(30);
    assert_shows(&world, 0, "docker.io/x/y:1\n  m.io/x/y:1 Mirrored 21");
}

#[test]
fn a_claim_without_a_copy_ends_with_its_use() {
    let mut world = World::one(mirrors(&["m.io"]));
    world.uses(0, &[DOCKER, QUAY]).round(1);
    world.uses(0, &[QUAY]).round(2);
    assert_shows(&world, 0, "quay.io/x/y:1\n  m.io/x/y:1 Pending 2");
}

#[test]
fn a_claim_ends_with_the_mirror_or_the_object() {
    let mut world = World::new(&[("a", mirrors(&["m.io"])), ("b", mirrors(&["m.io"]))]);
    world.uses(0, &[DOCKER]).uses(1, &[QUAY]).round(1);
    world.work(0, 2).round(3);
    assert_eq!(world.state(1, QUAY, COPY), Some(CopyState::Refused));
    world.edit(0, &mirrors(&["elsewhere.io"])).round(4);
    assert_eq!(world.state(1, QUAY, COPY), Some(CopyState::Pending));
}

#[test]
fn a_ledger_claims_only_what_its_policy_would_copy_there() {
    let mut world = World::new(&[("team/forged", mirrors(&["own.io"])), ("m", mirrors(&["m.io"]))]);
    world.uses(0, &[DOCKER]).uses(1, &[QUAY]).round(1);
    let mirrored = |destination: &str| Copy {
        digest: Some(content("evil")),
        state: CopyState::Mirrored,
        ..Copy::pending(image(destination), at(0))
    };
    world.objects[0].ledger.edit(&image(DOCKER), |entry| entry.copies.push(mirrored(COPY)));
    let claims = world.claims(2);
    assert_eq!(owner(&claims, COPY), Some(image(QUAY)));
    // A row in its mirror that is not the source's own place is no better.
    world.edit(0, &mirrors(&["m.io"]));
    world.objects[0].ledger.edit(&image(DOCKER), |entry| entry.copies = vec![mirrored("m.io/other:1")]);
    world.uses(0, &["~docker.io/x/y:1"]);
    assert_eq!(owner(&world.claims(2), "m.io/other:1"), None);
}

#[test]
fn replicas_share_one_copy() {
    let mut world = World::new(&[("a", mirrors(&["m.io"])), ("b", mirrors(&["m.io"]))]);
    world.others.push(replicated());
    world.uses(0, &[DOCKER, QUAY]).uses(1, &[QUAY]).round(1);
    assert_eq!(world.tasks(0), ["copy docker.io/x/y:1 m.io/x/y:1"], "one of two in the same object");
    assert_eq!(world.tasks(1), ["copy quay.io/x/y:1 m.io/x/y:1"]);
    world.work(0, 2).round(3);
    for object in [0, 1] {
        let copy = &world.objects[object].ledger.get(&image(QUAY)).unwrap().copies[0];
        assert!(is_shared(copy));
        assert_eq!(copy.digest, Some(content(DOCKER)), "whatever they contain themselves");
        assert!(world.tasks(object).is_empty());
    }
    // Both were under way: the second has overwritten the first, which is looked at again.
    world.record(1, QUAY, COPY, written(content(QUAY)), 4);
    world.round(5);
    assert_eq!(world.tasks(0), ["copy docker.io/x/y:1 m.io/x/y:1"]);
    assert!(world.tasks(1).is_empty());
    world.work(0, 6).round(7);
    assert!(world.tasks(0).is_empty() && world.tasks(1).is_empty());

    // The one that was copied goes: the other takes over, and looks for itself.
    world.uses(0, &[]).edit(0, &cleaned(&["m.io"], 0)).round(8);
    assert_shows(&world, 0, "");
    world.round(9);
    assert_eq!(world.tasks(1), ["copy quay.io/x/y:1 m.io/x/y:1"]);
}

#[test]
fn replicas_do_not_overwrite_each_other_where_an_idle_object_of_the_cluster_owns_the_place() {
    let mut world = World::new(&[("a", mirrors(&["m.io"])), ("team/b", mirrors(&["m.io"]))]);
    world.others.push(replicated());
    world.uses(0, &[DOCKER]).uses(1, &[DOCKER, QUAY]).round(1);
    world.work(1, 2).round(3);
    world.uses(0, &[]).round(4);
    for second in 5..15 {
        world.work(1, second).round(second);
    }
    assert!(world.tasks(0).is_empty() && world.tasks(1).is_empty(), "{:?}", world.tasks(1));
    assert_eq!(world.objects[1].ledger.get(&image(QUAY)).unwrap().copies[0].digest, Some(content(DOCKER)));
}

#[test]
fn a_replica_helps_out_while_the_first_fails() {
    let mut world = World::one(mirrors(&["m.io"]));
    world.others.push(replicated());
    world.uses(0, &[DOCKER, QUAY]).round(1);
    world.record(0, DOCKER, COPY, failed("gone"), 2);
    world.round(3);
    assert_eq!(world.tasks(0), ["copy quay.io/x/y:1 m.io/x/y:1"]);
    world.work(0, 4).round(5);
    assert_shows(
        &world,
        0,
        "
            docker.io/x/y:1
              m.io/x/y:1 Mirrored (shared) 5
            quay.io/x/y:1
              m.io/x/y:1 Mirrored 4
        ",
    );
}

#[test]
fn equal_digests_are_no_conflict() {
    let same = content("the same");
    let mut world = World::one(mirrors(&["m.io"]));
    world.uses(0, &[DOCKER, QUAY]).round(1);
    world.record(0, DOCKER, COPY, written(same), 2);
    world.round(3);
    world.record(0, QUAY, COPY, Finding::Compared { digest: same, source_digest: same }, 4);
    assert!(world.round(5)[0].refused.is_empty());
    assert_eq!(world.state(0, QUAY, COPY), Some(CopyState::Mirrored));
    assert!(world.tasks(0).is_empty());

    // The owner moves on, and stays the owner.
    let newer = content("newer");
    enter_finding(
        &mut world.objects[0].ledger,
        &image(DOCKER),
        None,
        Finding::SourceMoved { digest: newer },
        6,
    );
    world.round(7);
    assert_eq!(world.tasks(0), ["copy docker.io/x/y:1 m.io/x/y:1"]);
    world.record(0, DOCKER, COPY, written(newer), 8);
    assert_eq!(world.round(9)[0].refused.len(), 1);
    assert_eq!(world.state(0, DOCKER, COPY), Some(CopyState::Mirrored));
    assert_eq!(world.state(0, QUAY, COPY), Some(CopyState::Refused));
    // The other follows.
    world.record(0, QUAY, COPY, Finding::Compared { digest: newer, source_digest: newer }, 10);
    world.round(11);
    assert_eq!(world.state(0, QUAY, COPY), Some(CopyState::Mirrored));
    // And parts.
    enter_finding(
        &mut world.objects[0].ledger,
        &image(QUAY),
        None,
        Finding::SourceMoved { digest: same },
        12,
    );
    world.round(13);
    assert_eq!(world.state(0, QUAY, COPY), Some(CopyState::Refused));
    assert_eq!(world.tasks(0), ["compare quay.io/x/y:1 m.io/x/y:1"], "it never writes there");
}

#[test]
fn a_comparison_made_before_the_copy_counts_too() {
    let same = content("the same");
    let mut world = World::new(&[("a", mirrors(&["m.io"])), ("b", mirrors(&["m.io"]))]);
    world.uses(0, &[DOCKER]).uses(1, &[QUAY]).round(1);
    world.record(1, QUAY, COPY, Finding::Compared { digest: same, source_digest: same }, 2);
    world.round(3);
    assert_eq!(world.state(1, QUAY, COPY), Some(CopyState::Refused));
    world.record(0, DOCKER, COPY, written(same), 4);
    world.round(5);
    assert_eq!(world.state(1, QUAY, COPY), Some(CopyState::Mirrored));
}

#[test]
fn two_that_both_believe_to_be_there() {
    let mut world = World::new(&[("a", mirrors(&["m.io"])), ("b", mirrors(&["m.io"]))]);
    world.uses(0, &[DOCKER]).uses(1, &[QUAY]).round(1);
    world.copied(0, DOCKER, COPY, 2).copied(1, QUAY, COPY, 3).round(4);
    assert_eq!(world.state(0, DOCKER, COPY), Some(CopyState::Pending), "it was overwritten");
    assert_eq!(world.state(1, QUAY, COPY), Some(CopyState::Refused));
    assert_eq!(world.tasks(0), ["copy docker.io/x/y:1 m.io/x/y:1"]);
    world.work(0, 5).work(1, 5).round(6);
    assert!(world.tasks(0).is_empty() && world.tasks(1).is_empty());
}

#[test]
fn one_source_of_two_objects_is_no_conflict() {
    let mut world = World::new(&[("a", mirrors(&["m.io"])), ("team/b", mirrors(&["m.io"]))]);
    world.uses(0, &["nginx"]).uses(1, &["nginx:latest"]);
    assert!(world.round(1).iter().all(|outcome| outcome.refused.is_empty()));
    assert_eq!(world.tasks(0), ["copy docker.io/library/nginx m.io/library/nginx"]);
    assert_eq!(world.tasks(1), ["copy docker.io/library/nginx:latest m.io/library/nginx:latest"]);
    world.work(0, 2).work(1, 2).round(3);
    assert!(world.tasks(0).is_empty() && world.tasks(1).is_empty());
}

#[test]
fn a_digest_has_one_content_whoever_it_comes_from() {
    let digest = content("pinned");
    let (one, other) = (format!("docker.io/x/y@{digest}"), format!("quay.io/x/y:1@{digest}"));
    let mut world = World::one(cleaned(&["m.io"], 0));
    assert!(world.uses(0, &[&one, &other]).round(1)[0].refused.is_empty());
    for (source, copy) in [(&one, format!("m.io/x/y@{digest}")), (&other, format!("m.io/x/y:1@{digest}"))] {
        world.record(0, source, &copy, written(digest), 2);
    }
    world.uses(0, &[&other]).round(3);
    assert_eq!(world.objects[0].ledger.len(), 1, "and what the other needs is not deleted");
    assert!(world.tasks(0).is_empty());
}
