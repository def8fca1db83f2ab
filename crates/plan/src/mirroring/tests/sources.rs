//! From where copies are made, and what the watch looks at.

use super::*;
use crate::availability::MirrorLooks;

const SOURCE: &str = "docker.io/library/nginx:1";

fn task(destination: &str) -> Task {
    Task { source: image(SOURCE), destination: image(destination), work: Work::Copy }
}

fn sources(world: &World, object: usize, destination: &str, original_answers: bool) -> Vec<String> {
    let objects = (0..world.objects.len()).map(|number| world.planned(number));
    let found =
        copy_sources(&task(destination), &world.planned(object), objects, &world.index(), original_answers);
    found.iter().map(|source| format!("{:?} {}", source.kind, source.reference)).collect()
}

#[test]
fn a_copy_comes_from_the_original_then_from_copies_then_from_declared_replicas() {
    let mut world = World::new(&[
        ("a", mirrors(&["m.io", "n.io"])),
        ("b", mirrors(&["o.io"])),
        ("team/c", mirrors(&["t.io"])),
    ]);
    world.others.push(replicated());
    for object in 0..3 {
        world.uses(object, &[SOURCE]);
    }
    world.round(1);
    let original = format!("Original {SOURCE}");
    assert_eq!(sources(&world, 0, "m.io/library/nginx:1", true), [&*original], "its digest is unknown");
    world.work(0, 2).work(1, 2).work(2, 2).round(3);
    let digest = content(SOURCE);
    let elsewhere = [
        format!("Copy n.io/library/nginx@{digest}"),
        format!("Copy o.io/library/nginx@{digest}"),
        format!("Upstream quay.io/library/nginx@{digest}"),
    ];
    let all: Vec<_> = std::iter::once(original.clone()).chain(elsewhere.clone()).collect();
    assert_eq!(sources(&world, 0, "m.io/library/nginx:1", true), all);
    assert_eq!(sources(&world, 0, "m.io/library/nginx:1", false), elsewhere, "its registry is down");
    let own = [original, format!("Upstream quay.io/library/nginx@{digest}")];
    assert_eq!(sources(&world, 2, "t.io/library/nginx:1", true), own, "copies of others are not a tenant's");
}

#[test]
fn platforms_are_chosen_once_and_never_under_a_digest() {
    let source = |kind| {
        let original = CopySource::original(&image(SOURCE), None, &Index::default());
        CopySource { kind, ..original }
    };
    let tag = image("m.io/library/nginx:1");
    let pinned = tag.with_digest(&content(SOURCE));
    assert!(source(SourceKind::Original).chooses_platforms(&tag));
    assert!(source(SourceKind::Upstream).chooses_platforms(&tag));
    assert!(!source(SourceKind::Copy).chooses_platforms(&tag));
    assert!(!source(SourceKind::Original).chooses_platforms(&pinned));
}

#[test]
fn the_watch_looks_at_copies_and_at_sources_that_may_move() {
    let pinned = format!("docker.io/library/redis@{}", content("docker.io/library/redis"));
    let mut world = World::one(mirrors(&["m.io"]));
    world.uses(0, &[SOURCE, &pinned, "quay.io/app:2"]).round(1);
    world.copied(0, SOURCE, "m.io/library/nginx:1", 2);
    let copy = format!("m.io/library/redis@{}", content("docker.io/library/redis"));
    world.record(0, &pinned, &copy, written(content("docker.io/library/redis")), 3);
    let looks = |world: &World, leaving| {
        let object = MirrorObject { leaving, ..world.planned(0) };
        let looks = MirrorLooks::of_objects([object], &world.index());
        looks.iter().map(|look| format!("{} {}", look.reference, look.last.as_second())).collect::<Vec<_>>()
    };
    let expected = [format!("{SOURCE} 2"), "m.io/library/nginx:1 2".to_owned(), format!("{copy} 3")];
    assert_eq!(looks(&world, false), expected, "quay.io/app:2 is not copied yet");
    assert!(looks(&world, true).is_empty(), "the object goes");
    world.uses(0, &[]).round(4);
    assert_eq!(looks(&world, false), expected[1..], "drift of what is unused is found when it is used");
}

#[test]
fn a_manifest_goes_with_its_tags_only_if_nothing_needs_them() {
    let (one, other) = (content("one"), content("other"));
    assert_eq!(confirm_manifest(&[other], one), Ok(()));
    assert_eq!(confirm_manifest(&[other, one], one), Err(Veto::DigestNeeded));
    assert_eq!(confirm_tags(OtherTags::None), Ok(()));
    assert_eq!(confirm_tags(OtherTags::Found("v2")), Err(Veto::Tagged { tag: "v2".into() }));
    let veto = confirm_tags(OtherTags::Unknown).unwrap_err();
    assert!(veto.to_string().starts_with("the registry cannot delete a tag alone, and "), "{veto}");
}
