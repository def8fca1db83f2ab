use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

const CONTROLLER: Controller<'_> =
    Controller { api_version: "db.example.com/v1", kind: "Database", name: "orders", uid: "o" };

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn owner(namespace: &str, uid: &str) -> OwnerKey {
    OwnerKey { namespace: namespace.into(), uid: uid.into() }
}

/// One controller and its rewritten Pods.
struct Rig {
    recreations: Recreations,
    owner: OwnerKey,
}

impl Rig {
    fn new() -> Self {
        Self { recreations: Recreations::default(), owner: owner("shop", "o") }
    }

    fn create(&mut self, pod: &str, second: i64) -> bool {
        self.recreations.created(&self.owner, &CONTROLLER, &Arc::from(pod), at(second)).is_some()
    }

    fn delete(&mut self, pod: &str, second: i64) {
        self.recreations.deleted(&self.owner, pod, at(second));
    }

    fn is_paused(&self, second: i64) -> bool {
        self.recreations.paused_until(&self.owner, at(second)).is_some()
    }

    /// Replaces one Pod so many times, one replacement each `period` seconds; whether that led to a pause.
    fn replace(&mut self, times: i64, period: i64) -> bool {
        self.create("p0", 0);
        for number in 0..times {
            self.delete(&format!("p{number}"), number * period);
            self.create(&format!("p{}", number + 1), number * period + 1);
        }
        self.is_paused(times * period)
    }
}

#[test]
fn the_sixth_replacement_in_ten_minutes_is_one_too_many() {
    assert!(!Rig::new().replace(5, 10));
    assert!(Rig::new().replace(6, 10));
    assert!(Rig::new().replace(6, 110), "the first and the last are 550 seconds apart");
    assert!(!Rig::new().replace(6, 120), "the first is forgotten when the last comes");
    assert!(!Rig::new().replace(100, 120), "so slow a loop goes on");
    assert!(Rig::new().replace(100, 119));
}

#[test]
fn a_pause_lasts_an_hour_and_may_follow_another() {
    let mut rig = Rig::new();
    rig.replace(6, 1);
    let begun = 6;
    assert!(rig.is_paused(begun + PAUSE_SECONDS - 2));
    assert!(!rig.is_paused(begun + PAUSE_SECONDS));
    rig.create("q0", begun + PAUSE_SECONDS);
    for number in 0..6 {
        assert!(!rig.is_paused(begun + PAUSE_SECONDS + number), "after {number} more");
        rig.delete(&format!("q{number}"), begun + PAUSE_SECONDS + number);
        rig.create(&format!("q{}", number + 1), begun + PAUSE_SECONDS + number);
    }
    assert!(rig.is_paused(begun + PAUSE_SECONDS + 6));
}

#[test]
fn what_happens_during_a_pause_does_not_count_after_it() {
    let mut rig = Rig::new();
    rig.replace(6, 1);
    for number in 10..100 {
        rig.delete(&format!("r{number}"), 3500);
        rig.create(&format!("r{}", number + 1), 3500);
    }
    assert!(!rig.is_paused(7 + PAUSE_SECONDS));
}

#[test]
fn one_pass_over_many_pods_is_one_round() {
    let pods: Vec<String> = (0..50).map(|number| format!("p{number}")).collect();
    // All go, then as many come: a scale-down and a scale-up.
    let mut scaled = Rig::new();
    for pod in &pods {
        scaled.create(pod, 0);
    }
    for pod in &pods {
        scaled.delete(pod, 1);
    }
    for pod in &pods {
        scaled.create(&format!("new-{pod}"), 2);
    }
    assert!(!scaled.is_paused(3));
    // One after the other: a rollout.
    let mut rolled = Rig::new();
    for (second, pod) in (0..).zip(&pods) {
        rolled.delete(pod, second);
        rolled.create(&format!("new-{pod}"), second);
    }
    assert!(!rolled.is_paused(60));
    // Five such rollouts are allowed, the sixth is a loop.
    for (rollout, paused) in [(1, false), (2, false), (3, false), (4, false), (5, true)] {
        let name =
            |rollout: i64, pod: &str| format!("{}{pod}", "new-".repeat(usize::try_from(rollout).unwrap()));
        for pod in &pods {
            rolled.delete(&name(rollout, pod), 60 * rollout);
            rolled.create(&name(rollout + 1, pod), 60 * rollout);
        }
        assert_eq!(rolled.is_paused(60 * rollout + 1), paused, "rollout {rollout}");
    }
}

#[test]
fn pods_that_only_go_or_only_come_are_no_replacements() {
    let mut rig = Rig::new();
    for number in 0..100 {
        rig.create(&format!("p{number}"), number);
    }
    for number in 0..100 {
        rig.delete(&format!("p{number}"), 100 + number);
    }
    assert!(!rig.is_paused(200));
}

#[test]
fn controllers_and_namespaces_are_told_apart() {
    let mut recreations = Recreations::default();
    for number in 0..6 {
        for (namespace, uid) in [("shop", "a"), ("shop", "b"), ("other", "a")] {
            let pod = |number: i64| Arc::from(format!("{namespace}-{uid}-{number}"));
            // One of them has half as many as the others together.
            if uid == "b" && number % 2 == 1 {
                continue;
            }
            recreations.deleted(&owner(namespace, uid), &pod(number), at(number));
            let previous = if uid == "b" { number + 2 } else { number + 1 };
            recreations.created(&owner(namespace, uid), &CONTROLLER, &pod(previous), at(number));
        }
    }
    let paused: Vec<_> = recreations.paused(at(10)).map(|(owner, _)| owner.clone()).collect();
    assert_eq!(paused, [owner("other", "a"), owner("shop", "a")]);
}

#[test]
fn a_recorded_pause_counts_and_never_for_longer_than_an_hour() {
    let mut rig = Rig::new();
    let mut adopt = |until: i64, now: i64| {
        rig.recreations.adopt(&rig.owner, &CONTROLLER, at(until), at(now)).map(|pause| pause.until)
    };
    assert_eq!(adopt(-1, 0), None, "it is over");
    assert_eq!(adopt(600, 0), Some(at(600)));
    assert_eq!(adopt(600, 1), None, "it is known");
    assert_eq!(adopt(500, 1), None);
    assert_eq!(adopt(99_999_999, 2), Some(at(2 + PAUSE_SECONDS)));
}

#[test]
fn one_namespace_cannot_push_out_the_pauses_of_others() {
    let mut recreations = Recreations::default();
    recreations.adopt(&owner("quiet", "o"), &CONTROLLER, at(100), at(0));
    for number in 0..1500 {
        recreations.adopt(&owner("loud", &number.to_string()), &CONTROLLER, at(3000), at(0));
        recreations.deleted(&owner("loud", &format!("d{number}")), "p", at(0));
    }
    assert!(recreations.paused_until(&owner("quiet", "o"), at(1)).is_some());
    assert!(recreations.paused(at(1)).count() <= 1024);
}

#[test]
fn groups_are_told_by_the_api_version_of_the_controller() {
    let skipped = ApiGroup::known();
    for (api_version, group, is_skipped) in [
        ("postgresql.cnpg.io/v1", "postgresql.cnpg.io", true),
        ("asdb.aerospike.com/v1beta1", "asdb.aerospike.com", true),
        ("sub.postgresql.cnpg.io/v1", "sub.postgresql.cnpg.io", false),
        ("apps/v1", "apps", false),
        ("v1", "", false),
        ("", "", false),
    ] {
        let controller = Controller { api_version, ..CONTROLLER };
        assert_eq!(controller.group(), group);
        let exempt = exemption(&controller, &skipped, None);
        assert_eq!(exempt.is_some(), is_skipped, "{api_version}");
        assert!(exempt.is_none_or(|exempt| exempt.why.contains("routing.skipOwners has its API group")));
    }
    let paused = exemption(&CONTROLLER, &skipped, Some(at(0))).unwrap();
    assert_eq!(
        paused.why,
        "rewriting is paused until 2027-01-15T08:00:00Z for Pods of Database.db.example.com/orders: it replaced \
         rewritten Pods more than 5 times in ten minutes before they had started"
    );
    let route = paused.route("nginx");
    assert_eq!((route.used.as_str(), route.paused_until.as_str()), ("nginx", "2027-01-15T08:00:00Z"));
}

#[test]
fn a_group_is_written_without_version_and_kind() {
    for (text, expected) in [
        ("postgresql.cnpg.io", Ok("postgresql.cnpg.io")),
        (" apps ", Ok("apps")),
        ("postgresql.cnpg.io/v1", Err("without its version, `postgresql.cnpg.io`")),
        ("Cluster.postgresql.cnpg.io", Err("lower case")),
        ("*.cnpg.io", Err("such as `postgresql.cnpg.io`")),
        ("a..b", Err("must be an API group")),
        ("-a", Err("must be an API group")),
        ("", Err("must be an API group")),
    ] {
        match (text.parse::<ApiGroup>(), expected) {
            (Ok(group), Ok(expected)) => assert_eq!(group.as_str(), expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
        }
    }
}

#[test]
fn the_event_names_the_remedy_that_fits_the_controller() {
    let message = paused_message(&CONTROLLER, at(0));
    assert!(message.contains("add db.example.com to routing.skipOwners"), "{message}");
    let of_deployment = Controller { api_version: "apps/v1", kind: "ReplicaSet", ..CONTROLLER };
    let message = paused_message(&of_deployment, at(0));
    assert!(
        message.contains("leave its Pods out with skipLabels") && !message.contains("add apps"),
        "{message}"
    );
}

#[test]
fn a_record_counts_while_it_is_about_the_images_of_the_pod() {
    let record = r#"{"v":1,"images":{"web":{"asked":"nginx","used":"m.io/nginx","by":"x"},
        "volume:v":{"asked":"data","used":"data","by":"original"}}}"#;
    for (images, rewritten) in [
        (vec![(Place::Container("web"), "m.io/nginx")], true),
        (vec![(Place::Container("web"), "nginx")], false),
        (vec![(Place::Container("other"), "m.io/nginx")], false),
        (vec![(Place::Volume("v"), "data")], false),
        (vec![(Place::Volume("v"), "data"), (Place::Init("web"), "m.io/nginx")], true),
    ] {
        assert_eq!(is_rewritten(record, images.clone()), rewritten, "{images:?}");
    }
    assert!(!is_rewritten("{}", [(Place::Container("web"), "m.io/nginx")]));
    assert_eq!(recorded_pause(record), None);
    let paused = r#"{"v":1,"images":{"web":{"asked":"a","used":"a","by":"original",
        "pausedUntil":"2027-01-15T08:00:00Z"}}}"#;
    assert_eq!(recorded_pause(paused), Some(at(0)));
    assert_eq!(recorded_pause(&paused.replace("2027", "soon")), None);
}

proptest! {
    /// Whatever happens, a pause needs more than five replacements in ten minutes, each of them a deletion before a
    /// creation.
    #[test]
    fn a_pause_needs_six_deletions_and_six_creations(
        steps in proptest::collection::vec((any::<bool>(), 0_u8..6, 0_i64..200), 0..80),
    ) {
        let mut rig = Rig::new();
        let (mut now, mut deletions, mut creations) = (0, Vec::new(), Vec::new());
        let mut generations = BTreeMap::<u8, u32>::new();
        for (deletes, pod, pause) in steps {
            now += pause;
            let generation = generations.entry(pod).or_default();
            if deletes {
                rig.delete(&format!("{pod}-{generation}"), now);
                deletions.push(now);
            } else {
                *generation += 1;
                creations.push(now);
                if rig.create(&format!("{pod}-{generation}"), now) {
                    let recent = |times: &[i64]| times.iter().filter(|time| now - **time < 2 * WINDOW_SECONDS).count();
                    prop_assert!(recent(&deletions) > MOST_REPLACEMENTS, "{deletions:?}");
                    prop_assert!(recent(&creations) > MOST_REPLACEMENTS, "{creations:?}");
                    prop_assert!(rig.is_paused(now));
                    rig = Rig::new();
                    (deletions, creations) = (Vec::new(), Vec::new());
                }
            }
        }
    }
}
