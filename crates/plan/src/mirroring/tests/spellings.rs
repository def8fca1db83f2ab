//! A registry is the same in every spelling of its host.

use super::*;

const DOCKER: &str = "docker.io/x/y:1";
const QUAY: &str = "quay.io/x/y:1";

#[test]
fn a_second_spelling_of_a_mirror_is_not_a_second_place() {
    for other in ["REG.local", "reg.local:443", "Reg.Local:443"] {
        let mut world = World::new(&[
            ("all", mirrors(&["reg.local/m"])),
            ("team/own", mirrors(&[&format!("{other}/m")])),
        ]);
        world.uses(0, &[DOCKER]).round(1);
        world.work(0, 2).uses(1, &[QUAY]).round(3);
        let theirs = format!("{other}/m/x/y:1");
        assert_eq!(world.state(0, DOCKER, "reg.local/m/x/y:1"), Some(CopyState::Mirrored));
        assert_eq!(world.state(1, QUAY, &theirs), Some(CopyState::Refused), "{other}");
        assert!(
            !world.tasks(1).iter().any(|task| task.starts_with("copy")),
            "{other}: nothing overwrites it"
        );
    }
    // Another port is another registry.
    let mut world =
        World::new(&[("all", mirrors(&["reg.local/m"])), ("team/own", mirrors(&["reg.local:80/m"]))]);
    world.uses(0, &[DOCKER]).uses(1, &[QUAY]).round(1);
    assert_eq!(world.state(1, QUAY, "reg.local:80/m/x/y:1"), Some(CopyState::Pending));
}

#[test]
fn two_spellings_of_a_source_are_one_source() {
    let mut world = World::one(mirrors(&["m.io"]));
    world.uses(0, &["REG.local/x/y:1", "reg.local:443/x/y:1"]).round(1);
    for source in ["REG.local/x/y:1", "reg.local:443/x/y:1"] {
        assert_eq!(world.state(0, source, "m.io/x/y:1"), Some(CopyState::Pending), "{source}");
    }
    assert_eq!(world.tasks(0).len(), 1, "one copy at a time for one destination");
}

#[test]
fn an_image_in_a_mirror_is_not_copied_again_in_another_spelling() {
    let mut world = World::new(&[("all", mirrors(&["reg.local/m"])), ("team/own", mirrors(&["n.io"]))]);
    let inside = ["REG.local/m/a:1", "reg.local:443/m/b:1"];
    world.uses(0, &inside).uses(1, &inside).round(1);
    assert!(world.tasks(0).is_empty() && world.tasks(1).is_empty(), "they lie in a mirror");
    world.uses(1, &["REG.local/other/a:1"]).round(2);
    assert_eq!(world.tasks(1), ["copy REG.local/other/a:1 n.io/other/a:1"], "written as the Pod wrote it");
}

#[test]
fn spelling_a_mirror_anew_neither_copies_nor_deletes() {
    let mut world = World::one(cleaned(&["REG.local/m"], 10));
    world.uses(0, &[DOCKER]).round(1);
    world.work(0, 2).round(3);
    world.edit(0, &cleaned(&["reg.local:443/m", "reg.local/m"], 10)).round(20);
    assert_eq!(world.state(0, DOCKER, "REG.local/m/x/y:1"), Some(CopyState::Mirrored));
    assert!(world.tasks(0).is_empty(), "{:?}", world.tasks(0));
}

#[test]
fn what_is_seen_under_one_spelling_counts_for_all() {
    let mut world = World::one(mirrors(&["REG.local/m"]));
    world.uses(0, &[DOCKER]).round(1);
    world.work(0, 2).round(3);
    let seen = [(image("reg.local/m/x/y:1").key(), Sighting::Gone)]
        .into_iter()
        .collect::<std::collections::HashMap<_, _>>();
    assert_eq!(observe(&world.objects[0].ledger, &seen, at(4)).missing, 1);
    let needed = needed_digests([&world.objects[0].ledger], &image("reg.local:443/m/x/y:2"));
    assert_eq!(needed.len(), 1, "a digest of the same repository");
}
