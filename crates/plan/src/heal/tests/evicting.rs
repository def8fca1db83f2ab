//! Pods that only a new Pod can heal.

use super::super::evict::{Allowed, Evictions, NotEvicted, Subject, has_other_place, needs_new_pod};
use super::offered::{ASKED, container, offers};
use super::*;
use crate::owners::Controller;

fn job(kind: &'static str) -> Controller<'static> {
    let api_version = if kind == "Job" { "batch/v1" } else { "apps/v1" };
    Controller { api_version, kind, name: "web", uid: "owner" }
}

#[test]
fn only_pods_that_a_controller_replaces_are_evicted_and_only_where_that_helps() {
    let on = Allowed { unpatchable: true, jobs: false };
    let pod = Subject { controller: Some(job("ReplicaSet")), in_use: false, has_other_place: true };
    for (subject, allowed, expected) in [
        (pod, on, Ok(())),
        (pod, Allowed::default(), Err(NotEvicted::Off)),
        (Subject { controller: None, ..pod }, on, Err(NotEvicted::Bare)),
        (Subject { controller: Some(job("Job")), ..pod }, on, Err(NotEvicted::Jobs)),
        (Subject { controller: Some(job("Job")), ..pod }, Allowed { jobs: true, ..on }, Ok(())),
        (Subject { in_use: true, ..pod }, on, Err(NotEvicted::InUse)),
        (Subject { has_other_place: false, ..pod }, on, Err(NotEvicted::NothingElse)),
    ] {
        assert_eq!(Evictions::default().decide(&subject, allowed, at(0)), expected, "{subject:?}");
    }
}

#[test]
fn pods_of_one_controller_are_evicted_slowly_and_not_for_ever() {
    let allowed = Allowed { unpatchable: true, jobs: false };
    let pod = Subject { controller: Some(job("ReplicaSet")), in_use: false, has_other_place: true };
    let mut evictions = Evictions::default();
    for round in 0..5 {
        let now = at(30 * round);
        assert_eq!(evictions.decide(&pod, allowed, now), Ok(()));
        assert_eq!(
            evictions.decide(&pod, allowed, at(30 * round + 29)),
            Err(NotEvicted::Later(at(30 * round + 30)))
        );
    }
    assert_eq!(evictions.decide(&pod, allowed, at(600)), Err(NotEvicted::TooOften));
    assert_eq!(evictions.decide(&pod, allowed, at(4000)), Ok(()), "an hour later");
    evictions.undo("owner", at(4000));
    assert_eq!(evictions.decide(&pod, allowed, at(4001)), Ok(()), "the API server refused the last one");
}

#[test]
fn volumes_and_missing_secrets_need_a_new_pod_and_what_only_waits_does_not() {
    let uid: Arc<str> = "u".into();
    let image: Arc<str> = ASKED.into();
    let with_volume = FailingContainer {
        volume: Some(FailingVolume { name: "model", image: "l.io/model:1" }),
        ..container(&image)
    };
    let side = FailingContainer { place: Place::Container("side"), ..container(&image) };
    let pod = FailingPod { uid: &uid, containers: vec![side, with_volume], written: Written::default() };
    let waits = |locked| Choice::Wait { why: "away".to_owned(), locked };
    let name = |unpatchable: &[usize], choices: &[(usize, Choice)]| {
        needs_new_pod(&pod, unpatchable, choices).map(|one| one.name().to_owned())
    };
    assert_eq!(name(&[], &[(0, waits(0))]), None);
    assert_eq!(name(&[], &[(0, waits(1))]).as_deref(), Some("side"));
    assert_eq!(name(&[1], &[(0, waits(1))]).as_deref(), Some("main"), "volumes first");
    assert_eq!(name(&[0], &[]), None, "an image that cannot be patched for another reason");
    assert_eq!(name(&[7], &[(7, waits(1))]), None);
}

#[test]
fn a_new_pod_helps_if_admission_would_give_it_another_image() {
    let planned = offers(&[("a.io", None), ("b.io", None), ("c.io", None)]);
    let (up, down) =
        (Verdict::Available { digest: None }, Verdict::Unreachable { reason: "it is down".into() });
    let list: Vec<_> = planned.list().iter().map(|place| place.reference.to_string()).collect();
    assert_eq!(list.first().map(String::as_str), Some(ASKED));
    for (failed, verdicts, helps) in [
        (ASKED, [&down, &up, &up], true),
        (ASKED, [&up, &up, &up], false),
        (ASKED, [&down, &down, &down], false),
        ("b.io/team/app:1", [&down, &up, &up], false),
        ("b.io/team/app:1", [&down, &down, &up], true),
        ("b.io/team/app:1", [&up, &down, &down], true),
    ] {
        let verdicts = verdicts.map(Clone::clone);
        assert_eq!(has_other_place(failed, &planned, &verdicts), helps, "{failed} {verdicts:?}");
    }
    assert!(!has_other_place(ASKED, &planned, &[]), "nothing was asked");
}
