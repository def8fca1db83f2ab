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
    let stored: Vec<_> = object.ledger.shards().map(|shard| object.ledger.draft(shard)).collect();
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
fn an_edit_of_the_filter_starts_the_retention() {
    let narrow = |retention| {
        let mut spec = cleaned(&["m.io"], retention);
        spec["filter"] = json!({ "include": [{ "image": "quay.io/.*" }] });
        spec
    };
    let mut world = in_place(cleaned(&["m.io"], 100));
    let outcome = world.uses(0, &[]).edit(0, &narrow(100)).round(10);
    assert_eq!(outcome[0].next, Some(at(110)));
    assert_shows(&world, 0, "docker.io/library/nginx:1 unused since 10\n  m.io/library/nginx:1 Mirrored 2");
    world.round(109);
    assert!(world.tasks(0).is_empty());

    // Edited back: nothing has happened.
    world.edit(0, &cleaned(&["m.io"], 100)).uses(0, &[SOURCE]).round(109);
    assert_shows(&world, 0, "docker.io/library/nginx:1\n  m.io/library/nginx:1 Mirrored 2");

    world.edit(0, &narrow(100)).uses(0, &[]).round(200);
    world.round(300);
    assert_eq!(world.tasks(0), ["delete docker.io/library/nginx:1 m.io/library/nginx:1"]);

    // A Pod that was given the copy goes on using it, whatever the filter says.
    let mut world = in_place(cleaned(&["m.io"], 0));
    world.uses(0, &[]).names(&[COPY]).edit(0, &narrow(0)).round(10);
    assert!(world.tasks(0).is_empty());
    world.names(&[]).round(20);
    assert_eq!(world.tasks(0), ["delete docker.io/library/nginx:1 m.io/library/nginx:1"]);
}

#[test]
fn what_an_earlier_version_had_for_images_outside_the_filter_is_no_time() {
    let mut world = in_place(cleaned(&["m.io"], 100));
    world.uses(0, &[]);
    world.objects[0].ledger.edit(&image(SOURCE), |entry| entry.unused_since = Some(NO_LONGER_MATCHING));
    assert_eq!(world.round(10)[0].next, Some(at(110)));
}

#[test]
fn copies_on_a_mirror_that_is_taken_out_stay_and_are_listed() {
    for spec in [|places: &[&str]| cleaned(places, 0), |places: &[&str]| mirrors(places)] {
        let mut world = in_place(spec(&["m.io", "n.io"]));
        world.edit(0, &spec(&["n.io"])).round(10);
        let listed = "
            docker.io/library/nginx:1
              n.io/library/nginx:1 Mirrored 2
              m.io/library/nginx:1 Mirrored 2 kept
        ";
        assert_shows(&world, 0, listed);
        world.record(0, SOURCE, COPY, Finding::Missing, 11);
        world.uses(0, &[]).round(20);
        world.work(0, 21).round(1000);
        let row = world.objects[0].ledger.get(&image(SOURCE)).unwrap().copy_at(&image(COPY)).unwrap().clone();
        assert_eq!(row.state, CopyState::Mirrored);
        assert_eq!(row.kept.as_deref(), Some("the object no longer names its mirror"));
        assert!(world.tasks(0).is_empty());
    }
    // Named again, it is cleaned up like any other.
    let mut world = in_place(cleaned(&["m.io", "n.io"], 100));
    world.edit(0, &cleaned(&["n.io"], 100)).uses(0, &[]).round(10);
    world.work(0, 11).edit(0, &cleaned(&["m.io"], 100)).round(50);
    assert!(world.tasks(0).is_empty());
    world.round(110);
    assert_eq!(world.tasks(0), ["delete docker.io/library/nginx:1 m.io/library/nginx:1"]);
}

#[test]
fn a_mirror_that_is_put_back_is_used_again() {
    let mut world = in_place(cleaned(&["m.io", "n.io"], 100));
    world.edit(0, &cleaned(&["n.io"], 100)).round(10);
    world.edit(0, &cleaned(&["n.io", "m.io"], 100)).round(20);
    assert_eq!(world.tasks(0), ["copy docker.io/library/nginx:1 m.io/library/nginx:1"]);
}

#[test]
fn a_mirror_that_moves_keeps_the_old_copy() {
    let mut world = in_place(cleaned(&["m.io"], 0));
    world.edit(0, &cleaned(&["m.io/new"], 0)).round(10);
    assert_eq!(world.tasks(0), ["copy docker.io/library/nginx:1 m.io/new/library/nginx:1"]);
    world.work(0, 13).round(14);
    assert!(world.tasks(0).is_empty());
    assert_eq!(world.state(0, SOURCE, COPY), Some(CopyState::Mirrored));
    // Also where the new place belongs to another image.
    let mut world = World::new(&[("a", cleaned(&["m.io/old"], 0)), ("b", mirrors(&["m.io"]))]);
    world.uses(0, &[SOURCE]).uses(1, &["quay.io/library/nginx:1"]).round(1);
    world.work(0, 2).work(1, 2).edit(0, &cleaned(&["m.io"], 0)).round(3);
    assert_eq!(world.state(0, SOURCE, COPY), Some(CopyState::Refused));
    assert_eq!(world.state(0, SOURCE, "m.io/old/library/nginx:1"), Some(CopyState::Mirrored));
    assert!(world.tasks(0).iter().all(|task| !task.starts_with("delete")));
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
    for spec in [mirrors(&["m.io"]), cleaned(&["m.io"], 0)] {
        let mut world = World::one(spec);
        world.uses(0, &["typo:1", "late:1"]).round(1);
        world.record(0, "typo:1", "m.io/library/typo:1", unreadable("not found"), 2);
        world.uses(0, &[]).round(3);
        assert_shows(&world, 0, "");
        assert!(world.tasks(0).is_empty(), "whatever has those names is not ours");
    }
}

#[test]
fn a_write_that_was_begun_is_never_forgotten() {
    let writing = || Finding::Writing { digest: content(SOURCE) };
    let mut world = World::one(cleaned(&["m.io"], 10));
    world.uses(0, &[SOURCE]).round(1);
    world.record(0, SOURCE, COPY, writing(), 2);
    world.uses(0, &[]).round(3);
    world.round(13);
    assert_eq!(world.tasks(0), ["delete docker.io/library/nginx:1 m.io/library/nginx:1"]);
    // It was interrupted after its row was given up.
    let mut world = World::one(cleaned(&["m.io"], 10));
    world.uses(0, &[SOURCE]).round(1);
    world.uses(0, &[]).round(2);
    assert_shows(&world, 0, "");
    world.record(0, SOURCE, COPY, writing(), 3);
    world.round(4);
    world.round(13);
    assert_eq!(world.tasks(0), ["delete docker.io/library/nginx:1 m.io/library/nginx:1"]);
    // The registry refused it for certain.
    let mut world = World::one(cleaned(&["m.io"], 10));
    world.uses(0, &[SOURCE]).round(1);
    world.record(0, SOURCE, COPY, writing(), 2);
    let fault = Fault::Refused(content(SOURCE));
    world.record(0, SOURCE, COPY, Finding::CopyFailed { error: "denied".to_owned(), fault }, 3);
    world.uses(0, &[]).round(4);
    assert_shows(&world, 0, "");
}

#[test]
fn only_what_we_wrote_is_deleted() {
    let found = |digest| Finding::Copied { digest, source_digest: digest, written: false };
    let mut world = World::one(cleaned(&["m.io"], 0));
    world.uses(0, &[SOURCE]).round(1);
    world.record(0, SOURCE, COPY, found(content(SOURCE)), 2);
    world.uses(0, &[]).round(3);
    let kept = |world: &World| {
        let entry = world.objects[0].ledger.get(&image(SOURCE))?;
        entry.copy_at(&image(COPY))?.kept.as_deref().map(str::to_owned)
    };
    assert_eq!(kept(&world).as_deref(), Some("Fairlead did not write it"));
    assert!(world.tasks(0).is_empty());
    // In use again it is looked at, and stays what it was.
    world.uses(0, &[SOURCE]).round(4);
    assert_eq!(world.tasks(0), ["copy docker.io/library/nginx:1 m.io/library/nginx:1"]);
    world.record(0, SOURCE, COPY, found(content(SOURCE)), 5);
    assert_eq!(kept(&world), None);
    // Written over by us, it is ours; found as another, it is not ours any more.
    world.record(0, SOURCE, COPY, written(content("newer")), 6);
    world.record(0, SOURCE, COPY, found(content("newer")), 7);
    world.uses(0, &[]).round(8);
    assert_eq!(world.tasks(0), ["delete docker.io/library/nginx:1 m.io/library/nginx:1"]);
    world.uses(0, &[SOURCE]).round(9);
    world.record(0, SOURCE, COPY, found(content("newest")), 10);
    world.uses(0, &[]).round(11);
    assert_eq!(kept(&world).as_deref(), Some("Fairlead did not write it"));
}

#[test]
fn a_row_of_an_earlier_version_says_nothing_about_who_wrote_the_copy() {
    let mut world = in_place(cleaned(&["m.io"], 0));
    world.objects[0].ledger.edit(&image(SOURCE), |entry| entry.copies[0].written = Digests::default());
    world.uses(0, &[]).round(10);
    assert!(world.tasks(0).is_empty());
}

#[test]
fn a_name_that_others_have_written_to_is_left_to_them() {
    let (ours, theirs) = (content(SOURCE), content("theirs"));
    assert_eq!(confirm(&[ours], ours), Ok(()));
    assert_eq!(confirm(&[content("before"), ours], content("before")), Ok(()));
    assert_eq!(confirm(&[], ours), Err(Veto::NotWritten));
    let veto = confirm(&[ours], theirs).unwrap_err();
    assert_eq!(veto, Veto::Changed { found: theirs });
    let mut world = in_place(cleaned(&["m.io"], 0));
    world.uses(0, &[]).round(10);
    world.record(0, SOURCE, COPY, Finding::Kept { why: veto.to_string(), foreign: Some(theirs) }, 11);
    world.round(12);
    assert_shows(
        &world,
        0,
        "docker.io/library/nginx:1 unused since 10\n  m.io/library/nginx:1 Refused 11 kept",
    );
    assert!(world.tasks(0).is_empty());
    world.uses(0, &[SOURCE]).round(20);
    assert_eq!(world.tasks(0), ["copy docker.io/library/nginx:1 m.io/library/nginx:1"]);
}

#[test]
fn a_pod_that_names_a_copy_uses_it() {
    let mut world = in_place(cleaned(&["m.io", "n.io"], 10));
    world.uses(0, &[]).names(&[COPY]).round(100);
    world.round(110);
    assert_eq!(
        world.tasks(0),
        ["delete docker.io/library/nginx:1 n.io/library/nginx:1"],
        "of this copy alone"
    );
    world.work(0, 111).round(500);
    assert!(world.tasks(0).is_empty());
    let outcome = world.names(&[]).round(600);
    assert_eq!(outcome[0].next, Some(at(610)), "retention begins when the last Pod is gone");
    world.round(610);
    assert_eq!(world.tasks(0), ["delete docker.io/library/nginx:1 m.io/library/nginx:1"]);
    // By its digest just as well.
    let mut world = in_place(cleaned(&["m.io"], 0));
    let pinned = format!("m.io/library/nginx@{}", content("docker.io/library/nginx:1"));
    world.uses(0, &[]).names(&[&pinned]).round(100);
    assert!(world.tasks(0).is_empty());
}

#[test]
fn every_veto_is_told_in_words() {
    let copy = Copy::pending(image(COPY), at(0));
    let ours = Copy { written: vec![content(SOURCE)].into(), ..copy.clone() };
    let free = Candidate {
        provenance: Provenance::of(&ours),
        due: Some(at(5)),
        named_by: None,
        wanted_elsewhere: false,
        other_clusters: &Ok(()),
        now: at(5),
    };
    assert_eq!(may_delete(&free), Ok(()));
    for (candidate, why) in [
        (Candidate { due: None, ..free }, "clean-up is off"),
        (Candidate { now: at(4), ..free }, "its retention ends at 1970-01-01T00:00:05Z"),
        (Candidate { named_by: Some("shop/web"), ..free }, "Pod shop/web names it"),
        (Candidate { wanted_elsewhere: true, ..free }, "another object or image wants it"),
        (Candidate { provenance: Provenance::of(&copy), ..free }, "Fairlead did not write it"),
        (
            Candidate { provenance: Provenance::of(&Copy { adopted: true, ..copy.clone() }), ..free },
            "its digest is not known yet",
        ),
    ] {
        assert_eq!(may_delete(&candidate).unwrap_err().to_string(), why);
    }
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
        MirrorObject { ledger: &one.ledger, policy: Some(&one.policy), used: &one.used, leaving: false },
        MirrorObject { ledger: &broken.ledger, policy: None, used: &[], leaving: false },
    ];
    let claims = DestinationOwners::gather(&holdings, &loops, &world.direct, at(10));
    let inputs = Inputs {
        policy: &one.policy,
        used: &one.used,
        loops: &loops,
        claims: &claims,
        direct: &DirectUses::default(),
        other_clusters: &alone,
        replicas: &|_, _| false,
        now: at(10),
    };
    let changes = reconcile(&one.ledger, &inputs).changes;
    one.ledger.apply(changes);
    assert_shows(&world, 0, "");
}

#[test]
fn a_copy_that_another_cluster_uses_stays_until_it_does_not() {
    let copy = "m.io/library/nginx:1";
    let mut world = World::one(cleaned(&["m.io"], 10));
    world.uses(0, &["nginx:1"]).round(1);
    world.work(0, 2).uses(0, &[]).round(3);
    let listed = |world: &World, second: i64| {
        let Object { ledger, policy, .. } = &world.objects[0];
        kept_copies(ledger, policy, at(second)).iter().map(|(_, copy)| copy.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&world, 12), [copy], "while it is retained, this cluster lists it itself");
    assert!(listed(&world, 13).is_empty(), "or two clusters would wait for each other");
    world.used_elsewhere.push(copy.to_owned());
    let outcome = world.round(20).remove(0);
    assert_eq!(outcome.withheld.into_iter().collect::<Vec<_>>(), [("cluster east uses it".to_owned(), 1)]);
    assert!(world.tasks(0).is_empty(), "{:?}", world.tasks(0));
    world.used_elsewhere.clear();
    world.round(30);
    assert_eq!(world.tasks(0).len(), 1);
}
