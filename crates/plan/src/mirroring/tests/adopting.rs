//! Taking over from kuik.

use fairlead_api::kuik::MirrorSetStatus;

use super::*;

fn status(images: &Value) -> MirrorSetStatus {
    serde_json::from_value(json!({ "matchingImages": images })).unwrap()
}

fn take_over(world: &mut World, stored: &MirrorSetStatus) {
    let ledger = &mut world.objects[0].ledger;
    let changes = adopt(ledger, stored, at(30));
    ledger.apply(changes);
}

#[test]
fn everything_that_a_status_lists_is_looked_at_again() {
    let mut world = World::one(cleaned(&["m.io"], 100));
    let stored = status(&json!([
        { "image": "docker.io/library/nginx:1", "mirrors": [
            { "image": "m.io/library/nginx:1", "mirroredAt": "1970-01-01T00:00:05Z" },
        ]},
        { "image": "docker.io/library/failed:1", "mirrors": [
            { "image": "m.io/library/failed:1", "lastError": "no route to host" },
        ]},
        { "image": "docker.io/library/unused:1", "unusedSince": "1970-01-01T00:00:20Z", "mirrors": [
            { "image": "m.io/library/unused:1", "mirroredAt": "1970-01-01T00:00:05Z" },
            { "image": "old.io/library/unused:1" },
        ]},
        { "image": "docker.io/library/expired:1", "unusedSince": "0001-01-01T01:00:00Z", "mirrors": [
            { "image": "m.io/library/expired:1", "mirroredAt": "1970-01-01T00:00:05Z" },
        ]},
        { "image": "docker.io/library/nothing:1", "unusedSince": "1970-01-01T00:00:20Z" },
        { "image": "NOT A REFERENCE", "mirrors": [{ "image": "m.io/x:1" }] },
    ]));
    take_over(&mut world, &stored);
    assert_shows(
        &world,
        0,
        "
            docker.io/library/expired:1 unused since -62135593200
              m.io/library/expired:1 Pending 5
            docker.io/library/failed:1
              m.io/library/failed:1 Pending 30
            docker.io/library/nginx:1
              m.io/library/nginx:1 Pending 5
            docker.io/library/unused:1 unused since 20
              m.io/library/unused:1 Pending 5
        ",
    );
    world.uses(0, &["nginx:1", "failed:1"]);
    let outcome = world.round(40);
    assert_eq!(outcome[0].next, Some(at(120)), "retention goes on from where it was");
    assert_eq!(
        world.tasks(0),
        [
            "identify docker.io/library/expired:1 m.io/library/expired:1",
            "copy docker.io/library/failed:1 m.io/library/failed:1",
            "identify docker.io/library/nginx:1 m.io/library/nginx:1",
            "identify docker.io/library/unused:1 m.io/library/unused:1",
        ]
    );
    let unused = ("unused:1", "m.io/library/unused:1");
    world.record(0, unused.0, unused.1, Finding::Identified { digest: Some(content("by kuik")) }, 41);
    assert_eq!(
        world.objects[0].ledger.get(&image(unused.0)).unwrap().copies[0].written.to_vec(),
        [content("by kuik")]
    );
    world.work(0, 41);
    assert_eq!(world.tasks(0), ["copy docker.io/library/nginx:1 m.io/library/nginx:1"]);
    // What was found at the takeover counts as written.
    let digest = content("docker.io/library/nginx:1");
    let found = Finding::Copied { digest, source_digest: digest, written: false };
    world.record(0, "nginx:1", "m.io/library/nginx:1", found, 42);
    assert_eq!(world.objects[0].ledger.get(&image("nginx:1")).unwrap().copies[0].written.to_vec(), [digest]);
    world.round(120);
    assert!(world.tasks(0).contains(&"delete docker.io/library/unused:1 m.io/library/unused:1".to_owned()));
}

#[test]
fn copies_of_mirrors_that_kuik_forgot_stay_and_are_listed() {
    let mut world = World::one(cleaned(&["m.io"], 100));
    let stored = status(&json!([{ "image": "docker.io/library/nginx:1", "mirrors": [
        { "image": "m.io/library/nginx:1", "mirroredAt": "1970-01-01T00:00:05Z" },
        { "image": "removed.io/library/nginx:1", "mirroredAt": "1970-01-01T00:00:05Z" },
    ]}]));
    take_over(&mut world, &stored);
    world.uses(0, &["nginx:1"]).round(40);
    assert_eq!(world.tasks(0), ["identify docker.io/library/nginx:1 m.io/library/nginx:1"]);
    assert_eq!(world.shows(0).lines().last(), Some("  removed.io/library/nginx:1 Pending 40 kept"));
}

#[test]
fn nothing_is_deleted_before_it_was_looked_at() {
    let mut world = World::one(cleaned(&["m.io"], 0));
    let stored =
        status(&json!([{ "image": "docker.io/library/nginx:1", "unusedSince": "1970-01-01T00:00:01Z",
            "mirrors": [{ "image": "m.io/library/nginx:1", "mirroredAt": "1970-01-01T00:00:05Z" }],
        }]));
    take_over(&mut world, &stored);
    world.round(40);
    assert_eq!(world.tasks(0), ["identify docker.io/library/nginx:1 m.io/library/nginx:1"]);
    world.record(0, "nginx:1", "m.io/library/nginx:1", Finding::Identified { digest: None }, 41);
    world.round(42);
    assert_shows(&world, 0, "");
}

#[test]
fn what_the_ledger_knows_already_stays() {
    let mut world = World::one(mirrors(&["m.io"]));
    world.uses(0, &["nginx:1"]).round(1);
    world.work(0, 2);
    let before = world.shows(0);
    let stored = status(&json!([{ "image": "docker.io/library/nginx:1", "mirrors": [
        { "image": "m.io/library/nginx:1" }, { "image": "n.io/library/nginx:1" },
    ]}]));
    take_over(&mut world, &stored);
    assert_eq!(world.shows(0), before);
}

#[test]
fn copies_that_kuik_made_for_two_sources_get_one_owner() {
    let mut world = World::one(mirrors(&["m.io"]));
    let copy =
        |second: u8| json!([{ "image": "m.io/x:1", "mirroredAt": format!("1970-01-01T00:00:0{second}Z") }]);
    let stored = status(&json!([
        { "image": "a.io/x:1", "mirrors": copy(7) }, { "image": "b.io/x:1", "mirrors": copy(5) },
    ]));
    take_over(&mut world, &stored);
    let outcome = world.uses(0, &["a.io/x:1", "b.io/x:1"]).round(40);
    assert!(outcome[0].refused[0].why.contains("b.io/x:1"), "the first of them");
    assert_eq!(world.tasks(0), ["identify b.io/x:1 m.io/x:1"]);
    world.work(0, 41);
    assert_eq!(world.tasks(0), ["copy b.io/x:1 m.io/x:1"]);
}
