//! What was found out, and what follows.

use std::collections::HashMap;

use fairlead_api::fairlead::LedgerManner;

use super::*;

const SOURCE: &str = "docker.io/library/nginx:1";
const COPY: &str = "m.io/library/nginx:1";

fn in_place(places: &[&str]) -> World {
    let mut world = World::one(mirrors(places));
    world.uses(0, &[SOURCE]).round(1);
    world.work(0, 2).round(3);
    world
}

fn see(world: &mut World, seen: &[(&str, Sighting)], second: i64) -> (usize, usize) {
    let seen: HashMap<ImageKey, Sighting> =
        seen.iter().map(|(text, seen)| (image(text).key(), *seen)).collect();
    let observed = observe(&world.objects[0].ledger, &seen, at(second));
    world.objects[0].ledger.apply(observed.changes);
    (observed.missing, observed.moved)
}

#[test]
fn a_copy_that_is_gone_is_made_again() {
    for sighting in [Sighting::Gone, Sighting::Digest(content("something else"))] {
        let mut world = in_place(&["m.io", "n.io"]);
        assert_eq!(see(&mut world, &[(COPY, sighting)], 10), (1, 0));
        assert_eq!(world.tasks(0), ["copy docker.io/library/nginx:1 m.io/library/nginx:1"]);
        let entry = world.objects[0].ledger.get(&image(SOURCE)).unwrap();
        assert_eq!(entry.copies[0].digest, Some(content(SOURCE)), "it was there, and by whom is known");
        assert_eq!(see(&mut world, &[(COPY, sighting)], 11), (0, 0), "told once");
    }
}

#[test]
fn a_copy_that_is_right_stays() {
    let mut world = in_place(&["m.io"]);
    let before = world.shows(0);
    let right = Sighting::Digest(content(SOURCE));
    assert_eq!(see(&mut world, &[(COPY, right), (SOURCE, right), ("quay.io/z", Sighting::Gone)], 10), (0, 0));
    assert_eq!(see(&mut world, &[(SOURCE, Sighting::Gone)], 11), (0, 0), "the copy is for that");
    assert_eq!(see(&mut world, &[], 12), (0, 0));
    assert_eq!(world.shows(0), before);
}

#[test]
fn a_tag_that_moves_is_followed() {
    let mut world = in_place(&["m.io", "n.io"]);
    let newer = content("newer");
    assert_eq!(see(&mut world, &[(SOURCE, Sighting::Digest(newer))], 10), (0, 1));
    assert_eq!(world.tasks(0).len(), 2);
    assert_eq!(world.objects[0].ledger.get(&image(SOURCE)).unwrap().source_digest, Some(newer));
    assert_eq!(see(&mut world, &[(SOURCE, Sighting::Digest(newer))], 11), (0, 0), "told once");
}

#[test]
fn a_tag_that_moves_between_two_copies_is_followed_by_the_first() {
    let mut world = in_place(&["m.io"]);
    world.edit(0, &mirrors(&["m.io", "n.io"])).round(5);
    let newer = content("newer");
    world.record(0, SOURCE, "n.io/library/nginx:1", written(newer), 6);
    world.round(7);
    assert_eq!(world.tasks(0), ["copy docker.io/library/nginx:1 m.io/library/nginx:1"]);
}

#[test]
fn a_copy_tells_that_its_source_has_moved() {
    let world = in_place(&["m.io"]);
    let mut unread = world.objects[0].ledger.get(&image(SOURCE)).cloned().unwrap();
    unread.source_digest = None;
    let mut ledger = Ledger::new(world.objects[0].ledger.owner().clone());
    ledger.insert(image("quay.io/unread:1"), unread);
    let (same, newer) = (content(SOURCE), content("newer"));
    let moved = Some(Finding::SourceMoved { digest: newer });
    let present = Finding::Copied { digest: same, source_digest: newer, written: false };
    for (ledger, source, finding, expected) in [
        (&world.objects[0].ledger, SOURCE, written(same), None),
        (&world.objects[0].ledger, SOURCE, written(newer), moved.clone()),
        // The platforms that are copied may have stayed the same.
        (&world.objects[0].ledger, SOURCE, present, moved),
        (&world.objects[0].ledger, SOURCE, Finding::Compared { digest: newer, source_digest: newer }, None),
        (&world.objects[0].ledger, SOURCE, Finding::Deleted, None),
        (&world.objects[0].ledger, "quay.io/unknown:1", written(newer), None),
        (&ledger, "quay.io/unread:1", written(newer), None),
    ] {
        assert_eq!(source_moved(ledger, &image(source), &finding), expected, "{source} {finding:?}");
    }
}

#[test]
fn a_tag_that_moved_is_followed_however_that_is_found_out() {
    let mut world = World::new(&[("a", mirrors(&["m.io"])), ("b", mirrors(&["m.io", "n.io"]))]);
    world.uses(0, &["quay.io/library/nginx:1"]).round(1);
    world.copied(0, "quay.io/library/nginx:1", COPY, 2);
    world.uses(1, &[SOURCE]).round(3);
    world.copied(1, SOURCE, "n.io/library/nginx:1", 4);
    assert_eq!(world.tasks(1), ["compare docker.io/library/nginx:1 m.io/library/nginx:1"]);
    let newer = content("newer");
    world.record(1, SOURCE, COPY, Finding::Compared { digest: newer, source_digest: newer }, 5);
    world.round(6);
    assert_eq!(world.tasks(1), ["copy docker.io/library/nginx:1 n.io/library/nginx:1"]);
}

#[test]
fn chosen_platforms_give_a_copy_a_digest_of_its_own() {
    let mut world = World::one(mirrors(&["m.io", "n.io"]));
    world.uses(0, &[SOURCE]).round(1);
    let (digest, source_digest) = (content("reduced"), content(SOURCE));
    for copy in [COPY, "n.io/library/nginx:1"] {
        world.record(0, SOURCE, copy, Finding::Copied { digest, source_digest, written: true }, 2);
    }
    let seen = [(SOURCE, Sighting::Digest(source_digest)), (COPY, Sighting::Digest(digest))];
    assert_eq!(see(&mut world, &seen, 3), (0, 0));
}

fn adopt_manner(ledger: &mut Ledger, manner: &LedgerManner, now: Timestamp) -> usize {
    let outdated = ledger.adopt_manner(manner);
    let changes = make_again(ledger, &outdated, now);
    ledger.apply(changes);
    outdated.len()
}

#[test]
fn copies_are_made_again_in_another_manner() {
    let digest = content("pinned");
    let (pinned, held) = (format!("quay.io/x@{digest}"), format!("m.io/x@{digest}"));
    let mut world = World::one(mirrors(&["m.io"]));
    world.uses(0, &[SOURCE, &pinned]).round(1);
    world.copied(0, SOURCE, COPY, 2);
    world.record(0, &pinned, &held, written(digest), 2);
    let verbatim = LedgerManner::default();
    let ledger = &mut world.objects[0].ledger;
    assert_eq!(adopt_manner(ledger, &verbatim, at(3)), 0);
    let one_platform = LedgerManner { platforms: vec!["linux/amd64".into()], referrers: false };
    assert_eq!(adopt_manner(ledger, &one_platform, at(4)), 2);
    assert_eq!(adopt_manner(ledger, &one_platform, at(5)), 0, "that is settled");
    let entry = ledger.get(&image(SOURCE)).unwrap();
    assert_eq!(entry.copies[0].digest, Some(content(SOURCE)), "what is there is known to be ours");
    world.round(6);
    assert_eq!(world.tasks(0).len(), 2, "both are looked at, and stay if they are right");
}

#[test]
fn what_nobody_uses_is_cleaned_up_in_whatever_manner_it_was_made() {
    let mut world = World::one(cleaned(&["m.io"], 60));
    world.uses(0, &[SOURCE]).round(1);
    world.work(0, 2).uses(0, &[]).round(3);
    let referring = LedgerManner { platforms: Vec::new(), referrers: true };
    assert_eq!(adopt_manner(&mut world.objects[0].ledger, &referring, at(4)), 1);
    world.round(5);
    assert_eq!(world.tasks(0), [] as [&str; 0], "nobody needs it now");
    world.round(70);
    assert_eq!(world.tasks(0), ["delete docker.io/library/nginx:1 m.io/library/nginx:1"]);
}

#[test]
fn drift_of_an_unused_image_waits_for_its_next_use() {
    let mut world = in_place(&["m.io"]);
    let newer = Sighting::Digest(content("newer"));
    world.uses(0, &[]).round(10);
    assert_eq!(see(&mut world, &[(SOURCE, newer)], 11), (0, 0));
    world.uses(0, &[SOURCE]).round(12);
    assert_eq!(see(&mut world, &[(SOURCE, newer)], 13), (0, 1));
}

#[test]
fn a_digest_does_not_move() {
    let digest = content("pinned");
    let (source, copy) = (format!("quay.io/x@{digest}"), format!("m.io/x@{digest}"));
    let mut world = World::one(mirrors(&["m.io"]));
    world.uses(0, &[&source]).round(1);
    world.record(0, &source, &copy, written(digest), 2);
    assert_eq!(see(&mut world, &[(&source, Sighting::Digest(content("other")))], 3), (0, 0));
}

#[test]
fn findings_about_what_is_no_longer_there_change_nothing() {
    let mut world = in_place(&["m.io"]);
    let before = world.shows(0);
    let digest = content("x");
    let failed = || "failed".to_owned();
    for finding in [
        super::failed("failed"),
        Finding::Compared { digest, source_digest: digest },
        Finding::DeletionFailed { error: failed() },
        Finding::Kept { why: failed(), foreign: None },
    ] {
        world.record(0, SOURCE, COPY, finding, 10);
    }
    world.record(0, SOURCE, "elsewhere.io/x:1", Finding::Missing, 10);
    world.record(0, "quay.io/unknown:1", COPY, written(digest), 10);
    assert_eq!(world.shows(0), before);
}

#[test]
fn a_copy_that_ends_while_it_is_to_be_deleted() {
    let mut world = World::one(cleaned(&["m.io"], 0));
    world.uses(0, &[SOURCE]).round(1);
    world.uses(0, &[]).round(2);
    world.record(0, SOURCE, COPY, Finding::Writing { digest: content(SOURCE) }, 3);
    world.copied(0, SOURCE, COPY, 3).round(4);
    assert_eq!(world.tasks(0), ["delete docker.io/library/nginx:1 m.io/library/nginx:1"]);
    let entry = world.objects[0].ledger.get(&image(SOURCE)).unwrap();
    assert_eq!(entry.copies[0].digest, Some(content(SOURCE)));
}

#[test]
fn findings_are_written_only_when_they_say_something_new() {
    let mut world = in_place(&["m.io"]);
    let ledger = &mut world.objects[0].ledger;
    for shard in ledger.dirty() {
        let crate::ledger::Draft::Write { ticket, .. } = ledger.draft(shard) else { unreachable!() };
        ledger.written(shard, ticket, Some("1".to_owned()));
    }
    world.copied(0, SOURCE, COPY, 50);
    world.round(60);
    assert!(world.objects[0].ledger.dirty().is_empty());
}

#[test]
fn a_digest_that_other_copies_need_is_shared() {
    let mut world = World::new(&[("a", cleaned(&["m.io"], 0)), ("b", mirrors(&["m.io"]))]);
    let same = content("same");
    world.uses(0, &["x/y:1", "x/y:2", "x/z:1"]).uses(1, &["x/y:3"]).round(1);
    for (object, tag) in [(0, "x/y:1"), (0, "x/y:2"), (0, "x/z:1"), (1, "x/y:3")] {
        let copied = written(same);
        world.record(object, tag, &format!("m.io/{tag}"), copied, 2);
    }
    let shared = |world: &World, text: &str| {
        needed_digests(world.objects.iter().map(|object| &object.ledger), &image(text)).contains(&same)
    };
    world.uses(0, &["x/y:2"]).round(3);
    assert!(shared(&world, "m.io/x/y:1"), "by a tag of the same object");
    world.uses(0, &[]).round(4);
    assert!(shared(&world, "m.io/x/y:1"), "by a tag of another object");
    world.edit(1, &cleaned(&["m.io"], 0)).uses(1, &[]).round(5);
    assert!(!shared(&world, "m.io/x/y:1"), "all of them are to be deleted");
    let pinned = format!("x/y@{same}");
    world.uses(1, &[&pinned]).round(6);
    assert!(shared(&world, "m.io/x/y:1"), "by its name, before it is copied");
    assert!(!shared(&world, "m.io/x/z:1"), "in the same repository only");
}
