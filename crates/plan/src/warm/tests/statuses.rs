//! What statuses say.

use fairlead_api::drop::CachedImagePhase as Phase;

use super::super::status::policy_statuses;
use super::*;

#[test]
fn a_status_follows_the_pulls() {
    let mut sim = Sim::simple(2);
    sim.policy("fast", &json!({"minDelayBetweenPulls": "10s"}));
    sim.run(1);
    assert_eq!(sim.status("web").phase, Some(Phase::Pulling));
    assert_eq!(sim.condition("web", "PullProgress").0, "Pulling");
    assert_eq!((sim.ready("web").as_str(), sim.reason("web").as_str()), ("0/2", "InProgress"));
    sim.run(5);
    let status = sim.status("web");
    assert_eq!((status.phase, status.ready.as_deref()), (Some(Phase::Pulling), Some("1/2")));
    assert_eq!((status.nodes_ready, status.nodes_targeted, status.nodes_pulling), (Some(1), Some(2), None));
    assert_eq!(sim.condition("web", "PullProgress").0, "Idle");
    sim.run(20);
    let status = sim.status("web");
    assert_eq!((status.phase, status.ready.as_deref()), (Some(Phase::Ready), Some("2/2")));
    assert_eq!(status.cached_nodes, ["n0", "n1"]);
    assert_eq!(status.resolved_digest, Some(format!("sha256:{}", "a".repeat(64))));
    assert_eq!(status.last_pulled_at, Some(at(13).into()));
    assert_eq!(status.last_attempted_at, Some(at(11).into()));
    assert_eq!(status.observed_generation, Some(1));
    assert_eq!(sim.condition("web", "Ready").0, "Cached");
    assert_eq!(sim.condition("web", "PullProgress").0, "Complete");
}

#[test]
fn what_failed_is_told_until_it_does_not_fail_any_more() {
    let mut sim = Sim::simple(3);
    sim.fates.insert("n1".to_owned(), Fate::Waits("ErrImagePull", "no space left on device"));
    sim.run(5);
    let status = sim.status("web");
    assert_eq!((status.phase, status.ready.as_deref()), (Some(Phase::Degraded), Some("2/3")));
    assert_eq!(status.consecutive_failures, Some(1));
    let (reason, message) = sim.condition("web", "Ready");
    assert_eq!(reason, "ErrImagePull");
    assert!(
        message.contains("2 of 3 nodes") && message.contains("node n1: the disk of the node is full"),
        "{message}"
    );
    assert_eq!(sim.condition("web", "PullProgress").0, "Stalled");
    sim.run(60);
    assert_eq!(sim.status("web").consecutive_failures, Some(2));
    sim.fates.clear();
    sim.run(200);
    let status = sim.status("web");
    assert_eq!((status.phase, status.consecutive_failures), (Some(Phase::Ready), None), "zero disappears");
    // A node that is no target any more does not keep the image degraded.
    let mut sim = Sim::simple(2);
    sim.fates.insert("n1".to_owned(), Fate::Waits("ErrImagePull", "no space left on device"));
    sim.run(5);
    sim.nodes.remove("n1");
    sim.run(2);
    assert_eq!(sim.status("web").phase, Some(Phase::Ready));
}

#[test]
fn a_refusal_is_told_while_there_is_something_to_pull() {
    let mut sim = Sim::simple(2);
    // So that none is asked for again.
    sim.policy("fast", &json!({"maxConcurrentNodes": 9, "minDelayBetweenPulls": "1h"}));
    sim.queue = Some(Vec::new());
    sim.run(1);
    let is_of_other =
        |action: &Action| matches!(action, Action::Create(creation) if &*creation.order.node.name == "n1");
    let (other, first): (Vec<_>, Vec<_>) = sim.queue.take().unwrap().into_iter().partition(is_of_other);
    for action in first {
        sim.act(action);
    }
    sim.run(1);
    let [Action::Create(creation)] = &other[..] else { panic!("{other:?}") };
    let refusal = Refusal { reason: "Forbidden", message: "exceeded quota" };
    sim.warming.not_created(&creation.name, refusal, sim.now);
    sim.run(5);
    assert_eq!((sim.ready("web").as_str(), sim.reason("web").as_str()), ("1/2", "Forbidden"));
    sim.node("n1", |node| node.unschedulable = true);
    sim.run(2);
    assert_eq!((sim.ready("web").as_str(), sim.reason("web").as_str()), ("1/1", "Cached"));
}

#[test]
fn digest_and_time_are_those_of_the_reference_that_is_asked_for() {
    let mut sim = Sim::simple(1);
    sim.run(5);
    let digest = Some(format!("sha256:{}", "a".repeat(64)));
    assert_eq!(sim.status("web").resolved_digest, digest);
    sim.restart();
    sim.run(2);
    assert_eq!(sim.status("web").resolved_digest, digest, "also after a restart");
    sim.fates.insert("n0".to_owned(), Fate::Waits("ErrImagePull", "manifest unknown"));
    let spec = |tag: &str| json!({"image": "r.io/web", "tag": tag, "policyRef": {"name": "fast"}});
    sim.image("web", &spec("2"));
    sim.run(5);
    let status = sim.status("web");
    assert_eq!((status.phase, &status.resolved_digest), (Some(Phase::Degraded), &None));
    assert_eq!(status.last_pulled_at, None, "2 was never pulled");
    // A pull of which the runtime tells no digest takes none away.
    sim.fates.clear();
    sim.image("web", &spec("1"));
    sim.run(5);
    assert_eq!(sim.status("web").resolved_digest, digest);
    sim.policy("fast", &json!({"minDelayBetweenPulls": "1ms", "repullInterval": "10s"}));
    sim.fates.insert("n0".to_owned(), Fate::Hangs);
    sim.run(10);
    sim.change_pod("n0", |pod| pod.phase = super::super::pod_state::Phase::Succeeded);
    sim.run(2);
    assert_eq!(sim.status("web").resolved_digest, digest);
}

#[test]
fn skipped_nodes_are_counted_with_their_reasons() {
    let mut sim = Sim::simple(2);
    sim.node("n1", |node| node.disk_pressure = true);
    sim.run(5);
    assert_eq!(sim.ready("web"), "1/1");
    let (_, message) = sim.condition("web", "Ready");
    assert_eq!(message, "1 of 1 nodes hold the image; 1 skipped: disk pressure");
}

#[test]
fn a_pull_secret_that_cannot_be_had_is_told() {
    let mut sim = Sim::simple(1);
    sim.run(5);
    let mut say = |problem: Option<&str>| {
        sim.routed.get_mut("uid-web").unwrap().secret_problem = problem.map(Into::into);
        sim.run(2);
        sim.condition("web", "Ready").1
    };
    let problem = "Secret keys/login does not exist";
    assert_eq!(say(Some(problem)), format!("1 of 1 nodes hold the image; {problem}"));
    assert_eq!(say(None), "1 of 1 nodes hold the image");
}

#[test]
fn an_image_that_is_not_one_is_told() {
    let mut sim = Sim::simple(1);
    sim.image("web", &json!({"image": "r.io/UPPER"}));
    sim.run(2);
    assert_eq!(
        (sim.reason("web").as_str(), sim.status("web").phase),
        ("InvalidImageName", Some(Phase::Degraded))
    );
    assert!(sim.created.is_empty());
    sim.image("web", &json!({"image": "r.io/web"}));
    sim.run(20);
    assert_eq!(sim.reason("web"), "Cached");
}

#[test]
fn an_image_waits_until_routing_has_decided() {
    let mut sim = Sim::simple(1);
    let routed = sim.routed.remove("uid-web").unwrap();
    sim.run(5);
    assert_eq!((sim.created.len(), sim.reason("web").as_str()), (0, "InProgress"));
    sim.routed.insert("uid-web".into(), Routed { reference: Ok(reference("mirror.io/web:1")), ..routed });
    sim.run(5);
    assert_eq!(&*sim.created[0].2.pulls[0].reference, "mirror.io/web:1");
}

#[test]
fn statuses_stay_bounded_and_are_not_written_for_nothing() {
    let mut sim = Sim::simple(1200);
    sim.run(20);
    assert_eq!(sim.ready("web"), "1200/1200");
    assert_eq!(sim.status("web").cached_nodes.len(), 1000);
    let before = sim.status("web");
    sim.restart();
    while sim.round() {
        assert_eq!(sim.status("web"), before, "a new lease holder has nothing to add");
    }
}

#[test]
fn events_tell_of_starts_and_ends() {
    let mut sim = Sim::simple(1);
    sim.fates.insert("n0".to_owned(), Fate::Waits("ErrImagePull", "manifest unknown"));
    sim.run(5);
    sim.fates.clear();
    sim.run(60);
    let kinds = sim.events.iter().map(|event| match &event.kind {
        EventKind::Started => "started".to_owned(),
        EventKind::Succeeded { took } => format!("succeeded after {} s", took.as_secs()),
        EventKind::Failed(failure) => failure.reason.to_string(),
    });
    assert_eq!(kinds.collect::<Vec<_>>(), ["started", "ErrImagePull", "started", "succeeded after 2 s"]);
}

#[test]
fn a_policy_tells_who_uses_it() {
    let mut sim = Sim::simple(0);
    sim.policy("idle", &json!({}));
    sim.image("api", &json!({"image": "r.io/api", "policyRef": {"name": "fast"}}));
    let statuses = policy_statuses(&sim.policies, &sim.images, at(0));
    let [(fast, in_use), (idle, unused)] = &statuses[..] else { panic!("{statuses:?}") };
    assert_eq!(
        (fast.as_str(), in_use.user_count, in_use.users.join(" ").as_str()),
        ("fast", Some(2), "api web")
    );
    assert_eq!(
        (idle.as_str(), unused.user_count, &*unused.conditions[0].reason),
        ("idle", Some(0), "Unused")
    );
    let written = sim.policies.iter().zip(&statuses).map(|(policy, (_, status))| {
        let mut policy = PullPolicy::clone(policy);
        policy.status = Some(status.clone());
        Arc::new(policy)
    });
    assert_eq!(policy_statuses(&written.collect::<Vec<_>>(), &sim.images, at(9)), [], "nothing has changed");
}
