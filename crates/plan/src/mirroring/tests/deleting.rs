//! What becomes of copies when their object goes.

use super::*;

const SOURCE: &str = "docker.io/library/nginx:1";
const COPY: &str = "m.io/library/nginx:1";

fn leaving(world: &mut World, object: usize, failing: Option<&str>, second: i64) -> Finalization {
    let claims = world.claims_when(&[object], second);
    let World { objects, direct, .. } = world;
    let Object { policy, ledger, .. } = &mut objects[object];
    let leaving = DeletedMirror { failing, ..from(policy, &claims, direct) };
    part(ledger, &DeletedMirror { now: at(second), ..leaving })
}

fn part(ledger: &mut Ledger, leaving: &DeletedMirror<'_>) -> Finalization {
    let (finalization, changes) = finalization(ledger, leaving);
    ledger.apply(changes);
    finalization
}

/// An object that was deleted at 100; it is 110.
fn from<'a>(policy: &'a Policy, claims: &'a DestinationOwners, direct: &'a DirectUses) -> DeletedMirror<'a> {
    let (deletion, now) = (at(100), at(110));
    DeletedMirror {
        policy: Some(policy),
        claims,
        direct,
        other_clusters: &alone,
        deletion,
        tried_since: deletion,
        failing: None,
        now,
    }
}

fn in_place(spec: Value) -> World {
    let mut world = World::one(spec);
    world.uses(0, &[SOURCE]).round(1);
    world.work(0, 2).round(3);
    world
}

fn deletes(finalization: &Finalization) -> Vec<&str> {
    match finalization {
        Finalization::Clean { tasks, .. } => {
            assert!(tasks.iter().all(|task| matches!(task.work, Work::Delete | Work::Identify)));
            tasks.iter().map(|task| task.destination.as_str()).collect()
        }
        Finalization::Done { .. } => Vec::new(),
    }
}

#[test]
fn with_clean_up_on_the_copies_go_first() {
    let mut world = in_place(cleaned(&["m.io"], 1000));
    let first = leaving(&mut world, 0, None, 110);
    assert_eq!(deletes(&first), [COPY], "retention is not waited for, and neither are Pods");
    let Finalization::Clean { until, why, .. } = first else { unreachable!() };
    assert_eq!((until, why.as_str()), (at(700), "1 copy is still to be deleted"));
    world.record(0, SOURCE, COPY, Finding::Deleted, 111);
    assert_eq!(leaving(&mut world, 0, None, 112), Finalization::Done { left: None });
}

#[test]
fn with_clean_up_off_everything_stays() {
    let mut world = in_place(mirrors(&["m.io"]));
    assert_eq!(leaving(&mut world, 0, None, 110), Finalization::Done { left: None });

    let mut partly = cleaned(&["m.io", "keep.io"], 0);
    partly["mirrors"][1]["cleanup"] = json!({ "enabled": false });
    assert_eq!(deletes(&leaving(&mut in_place(partly), 0, None, 110)), [COPY]);

    let mut only_one = mirrors(&["m.io", "keep.io"]);
    only_one["mirrors"][0]["cleanup"] = json!({ "enabled": true });
    assert_eq!(deletes(&leaving(&mut in_place(only_one), 0, None, 110)), [COPY]);
}

#[test]
fn it_is_given_up_after_ten_minutes() {
    let mut world = in_place(cleaned(&["m.io", "n.io"], 0));
    let waiting = leaving(&mut world, 0, Some("Secret registries/push is gone"), 699);
    let Finalization::Clean { tasks, until, why, .. } = waiting else { unreachable!() };
    assert_eq!((tasks.len(), until), (2, at(700)), "it is tried until then");
    assert!(why.contains("2 copies") && why.ends_with("Secret registries/push is gone"), "{why}");
    assert!(why.contains("1970-01-01T00:11:40Z"), "{why}");
    let Finalization::Done { left: Some(left) } = leaving(&mut world, 0, Some("still"), 700) else {
        unreachable!()
    };
    assert_eq!(left, "2 copies could not be deleted, the first m.io/library/nginx:1: still");
}

/// No replica led for longer than that: what nothing has tried is not given up.
#[test]
fn the_first_replica_after_a_long_time_tries_before_it_gives_up() {
    let mut world = in_place(cleaned(&["m.io"], 0));
    let claims = world.claims_when(&[0], 5000);
    let World { objects, direct, .. } = &mut world;
    let Object { policy, ledger, .. } = &mut objects[0];
    let late = DeletedMirror { tried_since: at(5000), now: at(5000), ..from(policy, &claims, direct) };
    let finalization = part(ledger, &late);
    assert_eq!(deletes(&finalization), [COPY]);
    let failing = part(ledger, &DeletedMirror { failing: Some("it is down"), now: at(5001), ..late });
    assert!(matches!(failing, Finalization::Done { left: Some(_) }), "{failing:?}");
    let slow = part(ledger, &DeletedMirror { now: at(5600), ..late });
    assert!(matches!(slow, Finalization::Done { left: Some(_) }), "nor does it wait for ever: {slow:?}");
}

#[test]
fn a_broken_object_can_be_deleted() {
    let mut world = in_place(cleaned(&["m.io"], 0));
    let (claims, direct) = (DestinationOwners::default(), DirectUses::default());
    let Object { policy, ledger, .. } = &mut world.objects[0];
    let done = part(ledger, &DeletedMirror { policy: None, ..from(policy, &claims, &direct) });
    assert_eq!(done, Finalization::Done { left: None });
}

#[test]
fn what_others_need_stays() {
    let mut world = World::new(&[("m", cleaned(&["m.io"], 0)), ("team/n", mirrors(&["m.io"]))]);
    world.uses(0, &[SOURCE, "redis:1"]).uses(1, &[SOURCE]).round(1);
    world.work(0, 2).work(1, 2).round(3);
    assert_eq!(deletes(&leaving(&mut world, 0, None, 110)), ["m.io/library/redis:1"]);

    // Another source waits for the place.
    let mut world = World::new(&[("m", cleaned(&["m.io"], 0)), ("n", mirrors(&["m.io"]))]);
    world.uses(0, &["docker.io/x:1"]).uses(1, &["quay.io/library/x:1"]).round(1);
    world.work(0, 2).round(3);
    assert_eq!(world.state(1, "quay.io/library/x:1", "m.io/library/x:1"), Some(CopyState::Refused));
    assert_eq!(leaving(&mut world, 0, None, 110), Finalization::Done { left: None });
}

#[test]
fn of_what_was_refused_nothing_is_ours() {
    let mut world = World::new(&[("a", mirrors(&["m.io"])), ("b", cleaned(&["m.io"], 0))]);
    world.uses(0, &["docker.io/x:1"]).uses(1, &["quay.io/library/x:1"]).round(1);
    assert_eq!(leaving(&mut world, 1, None, 110), Finalization::Done { left: None });
}

#[test]
fn two_objects_that_go_together_leave_nothing_behind() {
    let mut world = World::new(&[("a", cleaned(&["m.io"], 0)), ("b", cleaned(&["m.io"], 0))]);
    world.uses(0, &[SOURCE]).uses(1, &[SOURCE]).round(1);
    world.work(0, 2).work(1, 2).round(3);
    let claims = world.claims_when(&[0, 1], 110);
    for object in &mut world.objects {
        let Object { ledger, policy, .. } = object;
        let leaving = part(ledger, &from(policy, &claims, &world.direct));
        assert_eq!(deletes(&leaving), [COPY]);
    }
}

#[test]
fn copies_of_a_mirror_taken_out_before_stay() {
    let mut world = in_place(cleaned(&["m.io", "n.io"], 0));
    world.edit(0, &cleaned(&["n.io"], 0)).round(4);
    assert_eq!(deletes(&leaving(&mut world, 0, None, 110)), ["n.io/library/nginx:1"]);
}

#[test]
fn a_copy_that_a_pod_names_stays_and_is_told_of() {
    let mut world = in_place(cleaned(&["m.io", "n.io"], 0));
    world.names(&[COPY]);
    assert_eq!(deletes(&leaving(&mut world, 0, None, 110)), ["n.io/library/nginx:1"]);
    world.record(0, SOURCE, "n.io/library/nginx:1", Finding::Deleted, 111);
    let Finalization::Done { left: Some(left) } = leaving(&mut world, 0, None, 112) else { unreachable!() };
    assert_eq!(left, "1 copy stay because Pods name them, the first m.io/library/nginx:1: Pod shop/web");
}

#[test]
fn a_copy_that_was_there_before_stays() {
    let mut world = World::one(cleaned(&["m.io"], 0));
    world.uses(0, &[SOURCE]).round(1);
    let digest = content(SOURCE);
    world.record(0, SOURCE, COPY, Finding::Copied { digest, source_digest: digest, written: false }, 2);
    assert_eq!(leaving(&mut world, 0, None, 110), Finalization::Done { left: None });
}

#[test]
fn what_other_clusters_use_stays_behind() {
    let mut world = in_place(cleaned(&["m.io", "n.io"], 0));
    let claims = world.claims_when(&[0], 110);
    let World { objects, direct, .. } = &mut world;
    let Object { policy, ledger, .. } = &mut objects[0];
    let unread = |_: &Reference| Err(Withheld::NotRead);
    let waiting = part(ledger, &DeletedMirror { other_clusters: &unread, ..from(policy, &claims, direct) });
    let Finalization::Clean { tasks, lists_wanted: true, why, .. } = waiting else {
        unreachable!("{waiting:?}")
    };
    assert_eq!((tasks.len(), why.as_str()), (0, "2 copies are still to be deleted"));
    let used = |copy: &Reference| match copy.as_str() {
        COPY => Err(Withheld::Used { cluster: "east".into() }),
        _ => Ok(()),
    };
    let leaving = DeletedMirror { other_clusters: &used, ..from(policy, &claims, direct) };
    assert_eq!(deletes(&part(ledger, &leaving)), ["n.io/library/nginx:1"]);
    let end = DeletedMirror { now: at(700), failing: Some("still"), ..leaving };
    let Finalization::Done { left: Some(left) } = part(ledger, &end) else { unreachable!() };
    assert!(
        left.ends_with(
            "1 copy stay because of other clusters, the first m.io/library/nginx:1: cluster east uses it"
        ),
        "{left}"
    );
}
