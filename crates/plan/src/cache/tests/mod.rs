//! Plans and statuses, by table; what holds of every plan is in `properties`.

mod former;
mod offered;
mod properties;
mod unhealthy;

use std::time::Duration;

use fairlead_api::conditions::{ConditionStatus, find, merge, types};
use fairlead_api::reef::{
    HEALTHY, OWNED, ProxyCacheHealth, ProxyCachePhase, ProxyCacheSpec, ProxyCacheStatus, SYNCED,
};
use fairlead_domain::harbor::{Endpoint, Health, Login, Project};
use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::mirroring::GIVE_UP;

const QUAY: &str = "https://quay.io";

fn mark() -> Mark {
    Mark { cluster: "c1".to_owned(), name: "cache".to_owned(), uid: Some("u1".to_owned()) }
}

fn login(password: &str) -> UpstreamLogin {
    let hash = password.bytes().fold(7, |hash, byte| hash * 31 + u64::from(byte));
    let login = Login { user: "robot".to_owned(), password: password.to_owned() };
    UpstreamLogin { login, version: format!("uid/{password}"), hash }
}

fn spec(kind: &str) -> ProxyCacheSpec {
    let spec = json!({"type": kind, "name": "quay", "url": QUAY, "credentials": {"secretName": "s"}});
    serde_json::from_value(spec).unwrap()
}

fn endpoint(change: impl FnOnce(&mut Endpoint)) -> Endpoint {
    let mut endpoint = Endpoint {
        id: 5,
        name: "quay".to_owned(),
        adapter: "docker-registry".to_owned(),
        url: QUAY.to_owned(),
        access_key: Some("robot".to_owned()),
        insecure: false,
        description: mark().to_string(),
        health: Health::Healthy,
    };
    change(&mut endpoint);
    endpoint
}

fn project(endpoint: Option<i64>, public: bool) -> Project {
    Project { id: 9, name: "quay".to_owned(), endpoint, public }
}

fn pair(endpoint: Endpoint, project: Option<Project>) -> Observed {
    Observed { endpoint: Some(endpoint), project, former: Vec::new() }
}

/// No other object asks for any pair.
fn nobody(_: &str) -> Option<String> {
    None
}

fn taken(version: &str) -> ProxyCacheStatus {
    ProxyCacheStatus { credentials_version: Some(version.to_owned()), ..ProxyCacheStatus::default() }
}

/// A private cache whose Secret holds `one`, of which Harbor took `one`, with a sibling named `twin`.
fn planned(
    observed: &Observed,
    status: &ProxyCacheStatus,
    login: Result<Option<&UpstreamLogin>, &str>,
) -> Plan {
    let (mark, desired) = (mark(), Desired::compile(&spec("private")).unwrap());
    let stands_for_it = |name: &str| name == "twin";
    let object =
        CacheObject { mark: &mark, status: Some(status), stands_for_it: &stands_for_it, wanted_by: &nobody };
    plan(&Facts { object, desired: &desired, observed, login, taken: None, tested: false, retain: false })
}

fn drifts(observed: &Observed) -> Vec<Drift> {
    let plan = planned(observed, &taken("uid/one"), Ok(Some(&login("one"))));
    plan.actions
        .into_iter()
        .find_map(|action| match action {
            Action::UpdateEndpoint { drifts, .. } => Some(drifts),
            _ => None,
        })
        .unwrap_or_default()
}

#[test]
fn every_difference_of_an_own_endpoint_is_a_reason_to_write_it() {
    let with = |change: fn(&mut Endpoint)| drifts(&pair(endpoint(change), Some(project(Some(5), false))));
    assert_eq!(with(|_| ()), []);
    assert_eq!(with(|one| one.url = "https://other".to_owned()), [Drift::Url]);
    assert_eq!(with(|one| one.access_key = None), [Drift::User]);
    assert_eq!(with(|one| one.insecure = true), [Drift::Insecure]);
    assert_eq!(with(|one| one.health = Health::Unhealthy), [Drift::Unhealthy]);
    assert_eq!(with(|one| one.health = Health::Unknown), [Drift::Unhealthy]);
    let rotated = planned(
        &pair(endpoint(|_| ()), Some(project(Some(5), false))),
        &taken("uid/old"),
        Ok(Some(&login("one"))),
    );
    let [Action::UpdateEndpoint { id: 5, drifts, .. }] = &*rotated.actions else { panic!("{rotated:?}") };
    assert_eq!(*drifts, [Drift::Password]);
}

#[test]
fn a_secret_that_was_touched_and_not_changed_is_not_pushed() {
    let (mark, desired) = (mark(), Desired::compile(&spec("private")).unwrap());
    let (observed, one) = (pair(endpoint(|_| ()), Some(project(Some(5), false))), login("one"));
    let status = taken("uid/before");
    let object =
        CacheObject { mark: &mark, status: Some(&status), stands_for_it: &|_| false, wanted_by: &nobody };
    let facts = Facts {
        object,
        desired: &desired,
        observed: &observed,
        login: Ok(Some(&one)),
        taken: Some(one.hash),
        tested: false,
        retain: false,
    };
    assert_eq!(plan(&facts).actions, []);
}

#[test]
fn projects_are_made_and_made_visible_and_never_taken_over() {
    let own = |project: Option<Project>| {
        planned(&pair(endpoint(|_| ()), project), &taken("uid/one"), Ok(Some(&login("one"))))
    };
    assert_eq!(own(None).actions, [Action::CreateProject { endpoint: 5 }]);
    assert_eq!(own(Some(project(Some(5), true))).actions, [Action::SetVisibility { public: false }]);
    for (endpoint, words) in [(None, "is not a proxy cache"), (Some(6), "serves from endpoint 6")] {
        let plan = own(Some(project(endpoint, false)));
        assert_eq!(plan.actions, []);
        assert!(plan.problem.unwrap().0.contains(words));
    }
    // Before an endpoint is made, a project that is in the way is seen.
    let blocked = Observed { project: Some(project(None, true)), ..Observed::default() };
    let plan = planned(&blocked, &taken("x"), Ok(Some(&login("one"))));
    assert_eq!((plan.actions, plan.problem.is_some()), (vec![], true));
    let absent = planned(&Observed::default(), &taken("x"), Ok(Some(&login("one"))));
    assert_eq!(absent.actions, [Action::CreateEndpoint]);
    let missing = planned(&Observed::default(), &taken("x"), Err("Secret ns/s not found"));
    assert_eq!((missing.actions, missing.problem.unwrap().0.as_str()), (vec![], "Secret ns/s not found"));
}

#[test]
fn an_endpoint_is_ours_by_its_mark_or_by_an_old_status() {
    let (of_other, of_twin, of_dead) = (
        "Managed by Fairlead: cluster c2, ProxyCache cache",
        "Managed by Fairlead: cluster c1, ProxyCache twin",
        "Managed by Fairlead: cluster c1, ProxyCache gone",
    );
    let adopted = ProxyCacheStatus { registry_id: Some(5), ..taken("uid/one") };
    let findings = [fairlead_api::conditions::Finding::new(OWNED, false, "Foreign", "")];
    let conditions = merge(&[], &findings, None, Timestamp::UNIX_EPOCH);
    let disowned = ProxyCacheStatus { conditions, ..adopted.clone() };
    let of = |description: &str, status: &ProxyCacheStatus| {
        let observed =
            pair(endpoint(|one| description.clone_into(&mut one.description)), Some(project(Some(5), false)));
        planned(&observed, status, Ok(Some(&login("one"))))
    };
    for (description, status, ours) in [
        ("made by hand", &taken("uid/one"), false),
        ("made by hand", &adopted, true),
        ("made by hand", &disowned, false),
        (of_other, &adopted, false),
        (of_twin, &adopted, false),
        (of_dead, &taken("uid/one"), true),
    ] {
        let plan = of(description, status);
        assert_eq!(matches!(plan.ownership, Ownership::Foreign(_)), !ours, "{description} {status:?}");
        // A pair that fits is used as it is.
        assert_eq!(plan.problem, None);
        let marks =
            matches!(&*plan.actions, [Action::UpdateEndpoint { drifts, .. }] if *drifts == [Drift::Mark]);
        assert_eq!(marks, ours, "{description}: {:?}", plan.actions);
    }
    let foreign = pair(
        endpoint(|one| {
            of_other.clone_into(&mut one.description);
            one.url = "https://other".to_owned();
            one.access_key = None;
        }),
        None,
    );
    let plan = planned(&foreign, &adopted, Ok(Some(&login("one"))));
    let problem = plan.problem.unwrap().0;
    assert_eq!(plan.actions, []);
    for words in
        ["https://other and should be https://quay.io", "no user", "no project", "cache of cluster c2"]
    {
        assert!(problem.contains(words), "{words}: {problem}");
    }
}

#[test]
fn another_type_is_a_problem_with_a_way_out() {
    let observed = pair(endpoint(|one| one.adapter = "aws-ecr".to_owned()), Some(project(Some(5), false)));
    let plan = planned(&observed, &taken("uid/one"), Ok(Some(&login("one"))));
    assert!(plan.actions.is_empty() && plan.problem.unwrap().0.contains("another value"));
}

fn former_pair(id: i64, name: &str) -> Pair {
    let project = Project { name: name.to_owned(), ..project(Some(id), false) };
    Pair { endpoint: endpoint(|one| (one.id, one.name) = (id, name.to_owned())), project: Some(project) }
}

#[test]
fn the_pair_of_a_former_name_goes_when_the_new_one_stands() {
    let former = vec![former_pair(3, "old")];
    let status = ProxyCacheStatus { registry_id: Some(3), ..taken("uid/one") };
    let login = login("one");
    let unfinished = Observed { former: former.clone(), ..pair(endpoint(|_| ()), None) };
    let first = planned(&unfinished, &status, Ok(Some(&login)));
    assert_eq!(first.actions, [Action::CreateProject { endpoint: 5 }]);
    let finished = Observed { project: Some(project(Some(5), false)), ..unfinished };
    let plan = planned(&finished, &status, Ok(Some(&login)));
    let [Action::RemoveFormer(pair)] = &*plan.actions else { panic!("{plan:?}") };
    assert_eq!(pair.removals().len(), 3);
    // Also beside a pair of others that fits.
    let theirs = endpoint(|one| one.description.clear());
    let beside = Observed { endpoint: Some(theirs), ..finished };
    let plan = planned(&beside, &status, Ok(Some(&login)));
    assert!(matches!((&plan.ownership, &*plan.actions), (Ownership::Foreign(_), [Action::RemoveFormer(_)])));
}

/// Whatever became of the look in which an endpoint was made, it says for which object.
#[test]
fn pairs_of_former_names_are_known_by_their_mark() {
    let former = |description: &str, name: &str| {
        let described = endpoint(|one| {
            (one.name, one.description) = (name.to_owned(), description.to_owned());
        });
        is_former(&described, "quay", &mark())
    };
    let own = mark().to_string();
    assert!(former(&own, "old"));
    assert!(!former(&own, "quay"), "that is its name");
    for other in [
        "",
        "Managed by Fairlead: cluster c1, ProxyCache cache",
        // An object of the same name that was deleted, and its pair retained.
        "Managed by Fairlead: cluster c1, ProxyCache cache, UID u0",
        "Managed by Fairlead: cluster c1, ProxyCache twin, UID u1",
        "Managed by Fairlead: cluster c2, ProxyCache cache, UID u1",
    ] {
        assert!(!former(other, "old"), "{other}");
    }
}

#[test]
fn a_former_pair_that_another_object_asks_for_stays() {
    let (mark, desired, one) = (mark(), Desired::compile(&spec("private")).unwrap(), login("one"));
    let (status, stands_for_it) = (taken("uid/one"), |_: &str| false);
    let wanted_by = |name: &str| (name == "old").then(|| "heir".to_owned());
    let object = CacheObject {
        mark: &mark,
        status: Some(&status),
        stands_for_it: &stands_for_it,
        wanted_by: &wanted_by,
    };
    let own = pair(endpoint(|_| ()), Some(project(Some(5), false)));
    let observed = Observed { former: vec![former_pair(3, "old"), former_pair(4, "older")], ..own };
    let facts = Facts {
        object,
        desired: &desired,
        observed: &observed,
        login: Ok(Some(&one)),
        taken: None,
        tested: false,
        retain: false,
    };
    let [Action::RemoveFormer(gone)] = &*plan(&facts).actions else { panic!("the other one goes") };
    assert_eq!(gone.endpoint.name, "older");
    let alone = Observed { former: vec![former_pair(3, "old")], ..observed.clone() };
    assert_eq!(plan(&Facts { observed: &alone, ..facts }).actions, []);

    let deletion = Timestamp::UNIX_EPOCH;
    let leaving = DeletedCache {
        object,
        name: "quay",
        retain: false,
        observed: Some(&observed),
        failing: None,
        deletion,
        now: deletion,
    };
    let Finalization::Remove { removals, left: None } = finalization(&leaving) else { panic!("two go") };
    let mut pairs: Vec<_> = removals.iter().map(Removal::pair).collect();
    pairs.dedup();
    assert_eq!(pairs, ["quay", "older"]);
    let wanted_by = |name: &str| (name != "older").then(|| "heir".to_owned());
    let object = CacheObject { wanted_by: &wanted_by, ..object };
    let Finalization::Remove { removals, left: Some(left) } =
        finalization(&DeletedCache { object, ..leaving })
    else {
        panic!("one goes")
    };
    assert!(removals.iter().all(|removal| removal.pair() == "older") && left.contains("ProxyCache heir"));
}

/// Harbor tests an endpoint before it stores anything, and the former pair waits for that.
#[test]
fn a_status_names_the_endpoint_of_the_present_name() {
    let status = ProxyCacheStatus { registry_id: Some(3), ..taken("uid/old") };
    let own = pair(endpoint(|_| ()), Some(project(Some(5), false)));
    let observed = Observed { former: vec![former_pair(3, "old")], ..own };
    let plan = planned(&observed, &status, Ok(Some(&login("one"))));
    assert!(matches!(&*plan.actions, [Action::UpdateEndpoint { .. }]), "{plan:?}");
    let seen = Seen {
        observed,
        plan,
        failed: None,
        former: None,
        refused: Some("wrong password".to_owned()),
        rejected: false,
        taken: None,
    };
    assert!(!seen.is_complete(), "the former pair is looked for again");
    let report = report(Some(&status), Some(1), &Outcome::Seen(Box::new(seen)), 0, Timestamp::UNIX_EPOCH);
    assert_eq!(report.status.registry_id, Some(5));
}

fn seen(health: Health, refused: Option<&str>) -> Outcome {
    let observed = pair(endpoint(|one| one.health = health), Some(project(Some(5), false)));
    let plan = Plan { ownership: Ownership::Ours, actions: vec![], problem: None };
    let refused = refused.map(str::to_owned);
    let taken = Some("uid/one".to_owned());
    Outcome::Seen(Box::new(Seen {
        observed,
        plan,
        failed: None,
        former: None,
        refused,
        rejected: false,
        taken,
    }))
}

fn condition(report: &Report, type_: &str) -> (ConditionStatus, String) {
    let conditions = merge(&[], &report.findings, Some(1), Timestamp::UNIX_EPOCH);
    let one = find(&conditions, type_).unwrap();
    (one.status, one.reason.clone())
}

#[test]
fn statuses_say_what_harbor_says() {
    use ConditionStatus::{False, True, Unknown};
    let report =
        |outcome: &Outcome, refusals| report(None, Some(1), outcome, refusals, Timestamp::UNIX_EPOCH);
    for (outcome, phase, health, healthy, reason) in [
        (
            seen(Health::Healthy, None),
            ProxyCachePhase::Ready,
            ProxyCacheHealth::Healthy,
            True,
            "RegistryHealthy",
        ),
        (
            seen(Health::Unhealthy, None),
            ProxyCachePhase::Ready,
            ProxyCacheHealth::Unhealthy,
            False,
            "RegistryUnhealthy",
        ),
        (
            seen(Health::Unknown, None),
            ProxyCachePhase::Ready,
            ProxyCacheHealth::Unknown,
            Unknown,
            "HealthUnknown",
        ),
        (
            Outcome::Failed("down".to_owned()),
            ProxyCachePhase::Error,
            ProxyCacheHealth::Unknown,
            Unknown,
            "ReconcileError",
        ),
    ] {
        let report = report(&outcome, 0);
        assert_eq!((report.status.phase, report.status.health), (Some(phase), Some(health)));
        assert_eq!(condition(&report, HEALTHY), (healthy, reason.to_owned()));
    }
    let down = report(&Outcome::Failed("down".to_owned()), 0);
    assert_eq!(condition(&down, types::READY), (False, "ReconcileError".to_owned()));
    assert_eq!((down.healthy, down.again), (None, Duration::from_secs(30)));
    assert_eq!((down.status.message.as_deref(), down.status.last_reconciled), (Some("down"), None));
    let good = report(&seen(Health::Healthy, None), 0);
    assert_eq!((good.healthy, good.again), (Some(true), Duration::from_mins(5)));
    assert_eq!((good.status.registry_id, good.status.project_created), (Some(5), Some(true)));
    assert_eq!(condition(&good, types::READY), (True, "Reconciled".to_owned()));
    assert_eq!(condition(&good, OWNED).0, True);

    // An upstream that refuses what the object asks for: the gauge follows Harbor, and attempts become rare.
    let refused = report(&seen(Health::Unhealthy, Some("no")), 0);
    assert_eq!((refused.healthy, refused.status.phase), (Some(false), Some(ProxyCachePhase::Ready)));
    assert_eq!(condition(&refused, SYNCED), (False, "UpdateRefused".to_owned()));
    let pauses: Vec<_> =
        (0..6).map(|times| report(&seen(Health::Unhealthy, Some("no")), times).again.as_secs()).collect();
    assert_eq!(pauses, [30, 60, 120, 240, 300, 300]);
}

/// Routing sends Pods that name the new upstream to a cache that is ready.
#[test]
fn a_cache_whose_new_upstream_is_refused_is_not_ready() {
    let refused = |change: fn(&mut Endpoint), login: &UpstreamLogin| {
        let observed = pair(endpoint(change), Some(project(Some(5), false)));
        let plan = planned(&observed, &taken("uid/one"), Ok(Some(login)));
        let refused = Some("Harbor cannot log in".to_owned());
        let seen = Seen { observed, plan, failed: None, former: None, refused, rejected: false, taken: None };
        report(None, Some(2), &Outcome::Seen(Box::new(seen)), 1, Timestamp::UNIX_EPOCH)
    };
    let moved = refused(|one| one.url = "https://former".to_owned(), &login("one"));
    assert_eq!(moved.status.phase, Some(ProxyCachePhase::Error));
    assert_eq!(condition(&moved, types::READY), (ConditionStatus::False, "ReconcileError".to_owned()));
    assert_eq!(condition(&moved, SYNCED), (ConditionStatus::False, "UpdateRefused".to_owned()));
    assert_eq!(moved.again, Duration::from_mins(1), "each attempt is a login at the upstream");
    let message = moved.status.message.unwrap();
    assert!(message.contains("former upstream: Harbor cannot log in"), "{message}");
    let rotated = refused(|_| (), &login("two"));
    assert_eq!(rotated.status.phase, Some(ProxyCachePhase::Ready), "the upstream is the one that is named");
}

#[test]
fn attempts_at_an_endpoint_that_is_not_taken_become_rare() {
    let plan = planned(&Observed::default(), &taken("x"), Ok(Some(&login("one"))));
    let pauses = [(true, [30, 60, 300]), (false, [30, 30, 30])].map(|(rejected, expected)| {
        let seen = Seen {
            observed: Observed::default(),
            plan: plan.clone(),
            failed: Some("cannot create endpoint quay".to_owned()),
            former: None,
            refused: None,
            rejected,
            taken: None,
        };
        let outcome = Outcome::Seen(Box::new(seen));
        let again = |times| report(None, Some(1), &outcome, times, Timestamp::UNIX_EPOCH).again.as_secs();
        (expected, [0, 1, 6].map(again))
    });
    assert!(pauses.iter().all(|(expected, pauses)| expected == pauses), "{pauses:?}");
}

#[test]
fn a_cache_that_is_being_deleted_is_not_ready() {
    let stored = ProxyCacheStatus { phase: Some(ProxyCachePhase::Ready), ..taken("uid/one") };
    let report = leaving(Some(&stored), Some(2), "project quay is in use");
    assert_eq!(report.status.phase, Some(ProxyCachePhase::Error));
    assert_eq!(condition(&report, types::READY), (ConditionStatus::False, "Deleting".to_owned()));
}

#[test]
fn a_status_that_says_the_same_is_not_written() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let first = report(None, Some(1), &seen(Health::Healthy, None), 0, at(10));
    assert!(!says(None, &first));
    let conditions = merge(&[], &first.findings, Some(1), at(10));
    let stored = ProxyCacheStatus { conditions, ..first.status };
    let later = report(Some(&stored), Some(1), &seen(Health::Healthy, None), 0, at(310));
    assert!(says(Some(&stored), &later), "the time alone is no news");
    let edited = report(Some(&stored), Some(2), &seen(Health::Healthy, None), 0, at(310));
    assert!(!says(Some(&stored), &edited));
    let ill = report(Some(&stored), Some(1), &seen(Health::Unhealthy, None), 0, at(310));
    assert!(!says(Some(&stored), &ill));
}

/// Whoever deletes it should look for the pair in Harbor.
#[test]
fn an_invalid_object_that_had_a_pair_says_that_it_is_left() {
    let owned = |holds| {
        let finding = fairlead_api::conditions::Finding::new(OWNED, holds, "Owned", "");
        let conditions = merge(&[], &[finding], Some(1), Timestamp::UNIX_EPOCH);
        ProxyCacheStatus { conditions, ..ProxyCacheStatus::default() }
    };
    let old = ProxyCacheStatus { registry_id: Some(5), ..ProxyCacheStatus::default() };
    for (status, retain, is_told) in [
        (&owned(true), false, true),
        (&old, false, true),
        (&owned(true), true, false),
        (&owned(false), false, false),
        (&ProxyCacheStatus::default(), false, false),
    ] {
        let left = left_by_invalid(status, "spec.url is missing", retain);
        assert_eq!(left.is_some(), is_told, "{status:?}");
        assert!(left.is_none_or(|left| left.contains("spec.url is missing")));
    }
}

#[test]
fn objects_are_held_from_before_anything_is_made_until_everything_is_removed() {
    let (live, deleted) = (|configured| Stage::Live { configured }, |released| Stage::Deleted { released });
    for (held, stage, wanted, why) in [
        (false, live(true), true, "something will be made for it"),
        (true, live(true), true, "something was made for it"),
        (false, live(false), false, "nothing is made for it"),
        (true, live(false), true, "something may have been made for it while a Harbor was configured"),
        (true, deleted(false), true, "its pair is still to be removed"),
        (true, deleted(true), false, "its pair is gone or given up"),
        (false, deleted(false), false, "deleted objects take no new finalizer"),
        (false, deleted(true), false, "it is let go already"),
    ] {
        assert_eq!(wants_finalizer(held, stage), wanted, "{why}");
    }
}

#[test]
fn what_goes_with_an_object() {
    let (mark, deletion) = (mark(), Timestamp::UNIX_EPOCH);
    let stands_for_it = |name: &str| name == "twin";
    let object = CacheObject { mark: &mark, status: None, stands_for_it: &stands_for_it, wanted_by: &nobody };
    let own = pair(endpoint(|_| ()), Some(project(Some(5), false)));
    let leaving = DeletedCache {
        object,
        name: "quay",
        retain: false,
        observed: Some(&own),
        failing: None,
        deletion,
        now: deletion,
    };
    let endpoint_goes = Removal::Endpoint { id: 5, name: "quay".to_owned() };
    let removals = vec![
        Removal::Repositories { project: "quay".to_owned() },
        Removal::Project { name: "quay".to_owned() },
        endpoint_goes.clone(),
    ];
    let all = Finalization::Remove { removals, left: None };
    let done = Finalization::Done { left: None };
    assert_eq!(finalization(&leaving), all);
    assert_eq!(finalization(&DeletedCache { retain: true, ..leaving }), done);
    assert_eq!(finalization(&DeletedCache { observed: None, ..leaving }), Finalization::Look);
    assert_eq!(finalization(&DeletedCache { observed: Some(&Observed::default()), ..leaving }), done);
    let foreign = pair(endpoint(|one| one.description.clear()), Some(project(Some(5), false)));
    assert_eq!(finalization(&DeletedCache { observed: Some(&foreign), ..leaving }), done);
    let elsewhere = pair(endpoint(|_| ()), Some(project(Some(6), false)));
    let only_endpoint = Finalization::Remove { removals: vec![endpoint_goes], left: None };
    assert_eq!(finalization(&DeletedCache { observed: Some(&elsewhere), ..leaving }), only_endpoint);
    let wanted_by = |name: &str| (name == "quay").then(|| "twin".to_owned());
    let wanted = CacheObject { wanted_by: &wanted_by, ..object };
    let Finalization::Done { left: Some(left) } = finalization(&DeletedCache { object: wanted, ..leaving })
    else {
        panic!("it stays")
    };
    assert!(left.contains("ProxyCache twin"), "{left}");
    let late = deletion + GIVE_UP;
    let untried = DeletedCache { now: late, ..leaving };
    assert_eq!(finalization(&untried), all, "no replica led for so long: nothing was tried yet");
    assert_eq!(finalization(&DeletedCache { observed: None, ..untried }), Finalization::Look);
    let given_up =
        finalization(&DeletedCache { observed: None, failing: Some("Harbor is down"), now: late, ..leaving });
    let Finalization::Done { left: Some(left) } = given_up else { panic!("{given_up:?}") };
    assert!(left.contains("Harbor is down"), "{left}");
    let pauses: Vec<_> = (0..6).map(|failures| next_attempt(failures).as_secs()).collect();
    assert_eq!(pauses, [2, 4, 8, 16, 30, 30]);
}
