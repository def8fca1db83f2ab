//! Pods that only a new Pod can heal.

use super::super::evict::{Allowed, Evictions, NotEvicted, Subject};
use super::at;
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
