//! What survives a restart, a lost view and other writers.

use super::*;

#[test]
fn a_restart_pulls_nothing_again() {
    let mut sim = Sim::simple(5);
    sim.run(10);
    for _ in 0..3 {
        sim.restart();
        sim.run(5);
    }
    assert_eq!((sim.created.len(), sim.ready("web").as_str()), (5, "5/5"));
}

#[test]
fn a_status_stands_until_a_new_lease_holder_has_decided_what_to_pull() {
    let mut sim = Sim::simple(5);
    sim.run(10);
    let (routed, before) = (sim.routed.clone(), sim.status("web"));
    sim.restart();
    sim.routed.clear();
    sim.run(5);
    assert_eq!(sim.status("web"), before);
    sim.routed = routed;
    sim.run(5);
    assert_eq!((sim.status("web"), sim.created.len()), (before, 5));
}

#[test]
fn pods_in_flight_are_taken_over() {
    let mut sim = Sim::simple(5);
    sim.pull_time = Duration::from_secs(30);
    sim.run(3);
    assert_eq!(sim.pods.len(), 5);
    sim.restart();
    sim.run(60);
    assert_eq!((sim.created.len(), sim.ready("web").as_str()), (5, "5/5"));
    assert!(sim.pods.is_empty());
}

#[test]
fn pods_are_left_alone_until_it_is_decided_what_they_should_pull() {
    let mut sim = Sim::simple(3);
    sim.pull_time = Duration::from_secs(30);
    sim.run(3);
    let routed = std::mem::take(&mut sim.routed);
    sim.restart();
    sim.run(5);
    assert_eq!(sim.pods.len(), 3);
    sim.routed = routed;
    sim.run(60);
    assert_eq!((sim.created.len(), sim.ready("web").as_str()), (3, "3/3"));
    assert!(sim.pods.is_empty());
}

#[test]
fn a_pod_is_deleted_only_after_its_result_is_stored() {
    let mut sim = Sim::simple(2);
    sim.api_is_down = true;
    sim.run(20);
    assert_eq!(sim.pods.len(), 2, "nothing could be stored");
    assert_eq!(sim.ready("web"), "2/2", "what is known is known");
    // The next lease holder finds the Pods, and what they came to.
    sim.restart();
    sim.api_is_down = false;
    sim.run(10);
    assert!(sim.pods.is_empty());
    assert_eq!((sim.created.len(), sim.ready("web").as_str()), (2, "2/2"));
}

#[test]
fn a_pod_whose_result_is_stored_does_not_count_twice() {
    let mut sim = Sim::simple(1);
    sim.fates.insert("n0".to_owned(), Fate::Waits("ErrImagePull", "no space left on device"));
    sim.run(1);
    let pod = sim.pod_on("n0");
    sim.run(2);
    assert!(sim.pods.is_empty());
    // The watch still shows the Pod, as it was and as it ended.
    sim.restart();
    sim.pods.insert(Arc::clone(&pod.name), pod);
    sim.run(3);
    assert!(sim.pods.is_empty());
    assert_eq!(sim.status("web").consecutive_failures, Some(1));
    assert_eq!(sim.created.len(), 1);
}

#[test]
fn a_pod_that_is_not_seen_yet_is_not_created_twice() {
    let mut sim = Sim::simple(1);
    sim.now = at(1);
    sim.round();
    let (name, pod) = sim.pods.pop_first().unwrap();
    sim.run(9);
    assert_eq!(sim.created.len(), 1, "the watch is late");
    sim.run(5);
    assert_eq!(sim.created.len(), 2, "nothing came of it");
    assert_eq!(
        sim.created[0].2.pod_name(),
        sim.created[1].2.pod_name(),
        "the name is the same, so is the Pod"
    );
    sim.pods.insert(name, pod);
    sim.run(10);
    assert_eq!((sim.created.len(), sim.ready("web").as_str()), (2, "1/1"));
}

#[test]
fn a_request_that_waits_long_is_not_made_twice() {
    let mut sim = Sim::simple(5);
    sim.queue = Some(Vec::new());
    sim.run(60);
    assert_eq!(sim.send(), 5, "one Pod for each node");
    let starts = sim.events.iter().filter(|event| event.kind == EventKind::Started).count();
    assert_eq!(starts, 5);
    sim.queue = Some(Vec::new());
    sim.run(60);
    assert_eq!((sim.send(), sim.ready("web").as_str()), (5, "5/5"), "and each is deleted once");
    sim.run(10);
    assert!(sim.pods.is_empty());
}

#[test]
fn a_pod_that_is_still_there_after_it_was_deleted_is_deleted_again() {
    let mut sim = Sim::simple(1);
    sim.run(2);
    let (name, pod) = sim.pods.first_key_value().map(|(name, pod)| (name.clone(), pod.clone())).unwrap();
    sim.queue = Some(Vec::new());
    sim.run(10);
    sim.queue = Some(Vec::new());
    sim.warming.deleted(&name, sim.now);
    sim.run(9);
    assert_eq!(sim.queue.as_ref().map(Vec::len), Some(0), "the watch is late");
    sim.run(2);
    assert_eq!((sim.send(), pod.record.pulls.len()), (1, 1));
    assert!(sim.pods.is_empty());
}

#[test]
fn a_pod_that_is_deleted_by_hand_is_created_again_under_its_name() {
    let mut sim = Sim::simple(1);
    sim.pull_time = Duration::from_secs(30);
    sim.run(2);
    sim.pods.clear();
    sim.run(2);
    assert_eq!(sim.created.len(), 2);
    assert_eq!(sim.created[0].2, sim.created[1].2);
}

#[test]
fn of_two_pods_for_one_node_the_later_attempt_counts() {
    let mut sim = Sim::simple(1);
    sim.pull_time = Duration::from_secs(30);
    sim.run(1);
    let first = sim.pod_on("n0");
    let mut second = PullPod::clone(&first);
    Arc::make_mut(&mut second.record).pulls[0].attempt = 2;
    second.name = second.record.pod_name().into();
    sim.pods.insert(Arc::clone(&second.name), Arc::new(second.clone()));
    sim.run(2);
    assert_eq!(sim.pods.keys().collect::<Vec<_>>(), [&second.name]);
    assert_eq!(sim.status("web").nodes_pulling, Some(1));
    sim.run(40);
    assert_eq!(sim.ledgers.values().next().unwrap().spec.nodes[0].attempt, 2);
}

#[test]
fn the_delay_is_kept_over_a_restart() {
    let mut sim = Sim::simple(3);
    sim.policy("fast", &json!({"minDelayBetweenPulls": "1m"}));
    sim.run(10);
    assert_eq!(sim.created.len(), 1);
    for _ in 0..5 {
        sim.restart();
        sim.run(8);
    }
    assert_eq!(sim.created.len(), 1, "no herd after restarts");
    sim.run(20);
    assert_eq!(sim.created.len(), 2);
    // Ledgers have whole seconds.
    let mut sim = Sim::simple(2);
    sim.policy("fast", &json!({"minDelayBetweenPulls": "5s"}));
    sim.step(Duration::from_millis(900));
    sim.run(4);
    sim.restart();
    sim.step(Duration::from_millis(500));
    assert_eq!(sim.created.len(), 1, "4.5 seconds later");
    sim.run(1);
    assert_eq!(sim.created.len(), 2);
}

#[test]
fn the_delay_is_kept_over_a_restart_during_a_pull() {
    let mut sim = Sim::simple(1);
    sim.policy("fast", &json!({"maxConcurrentNodes": 2, "minDelayBetweenPulls": "5s"}));
    sim.pull_time = Duration::from_mins(1);
    sim.step(Duration::from_millis(900));
    // Pods have whole seconds.
    sim.change_pod("n0", |pod| pod.created = at(0));
    sim.node("n1", |_| {});
    sim.run(1);
    let routed = sim.routed.clone();
    sim.restart();
    sim.routed.clear();
    sim.run(2);
    sim.routed = routed;
    sim.step(Duration::from_millis(1500));
    assert_eq!(sim.created.len(), 1, "4.5 seconds later");
    sim.run(1);
    assert_eq!(sim.created.len(), 2);
    // The start of a Pod that the same lease holder has asked for is known.
    sim.node("n2", |_| {});
    sim.change_pod("n0", |pod| pod.phase = super::super::pod_state::Phase::Succeeded);
    let last = sim.created[1].0;
    sim.run(1);
    sim.change_pod("n1", |pod| pod.created = at(6));
    sim.now = after(last, Duration::from_secs(5));
    sim.round();
    assert_eq!((last, sim.created.len()), (after(at(6), Duration::from_millis(400)), 3));
}

/// The API server takes none of the Pods that were just asked for.
fn refuse(sim: &mut Sim) {
    for name in sim.pods.keys().cloned().collect::<Vec<_>>() {
        sim.pods.remove(&name);
        let refusal = Refusal { reason: "QuotaExceeded", message: "exceeded quota: pods=10" };
        sim.warming.not_created(&name, refusal, sim.now);
    }
}

#[test]
fn a_pod_that_the_api_server_refuses_is_tried_again_later() {
    let mut sim = Sim::simple(2);
    sim.now = at(1);
    sim.round();
    refuse(&mut sim);
    sim.round();
    assert_eq!((sim.reason("web").as_str(), sim.created.len()), ("QuotaExceeded", 2));
    assert!(sim.condition("web", "Ready").1.contains("exceeded quota"));
    sim.run(20);
    assert_eq!((sim.ready("web").as_str(), sim.reason("web").as_str()), ("2/2", "Cached"));
}

#[test]
fn an_api_server_that_does_not_answer_is_not_asked_for_more() {
    let mut sim = Sim::simple(50);
    sim.policy("fast", &json!({"maxConcurrentNodes": 2, "minDelayBetweenPulls": "1s"}));
    sim.queue = Some(Vec::new());
    let mut asked = std::collections::BTreeSet::new();
    for _ in 0..600 {
        sim.run(1);
        for action in sim.queue.replace(Vec::new()).unwrap() {
            let Action::Create(creation) = action else { panic!("{action:?}") };
            let why = Refusal { reason: "Unavailable", message: "429 Too Many Requests" };
            sim.warming.maybe_created(&creation.name, why, sim.now);
            asked.insert(creation.name);
        }
        let told = sim.reason("web") == "Unavailable";
        assert_eq!(told, sim.now >= at(22), "after three tries: {}", sim.now);
    }
    assert_eq!(asked.len(), 2, "each may be there, and keeps its slot");
    assert!(sim.condition("web", "Ready").1.contains("429 Too Many Requests"));
    sim.queue = None;
    sim.run(120);
    assert_eq!((sim.ready("web").as_str(), sim.reason("web").as_str()), ("50/50", "Cached"));
    assert_eq!(sim.created.len(), 50);
}

#[test]
fn pauses_after_refusals_grow_by_rounds_and_not_by_pods() {
    let mut sim = Sim::simple(50);
    sim.policy(
        "fast",
        &json!({
            "maxConcurrentNodes": 50, "minDelayBetweenPulls": "1ms", "failureBackoff": {"initial": "1h", "max": "1h"},
        }),
    );
    let mut tries = Vec::new();
    for second in 1..=20 {
        sim.now = at(second);
        sim.round();
        if !sim.pods.is_empty() {
            tries.push(second);
            refuse(&mut sim);
        }
    }
    assert_eq!(
        tries,
        [1, 2, 4, 8, 16],
        "an API server that was away for a moment is not left alone for an hour"
    );
    sim.run(20);
    assert_eq!(sim.ready("web"), "50/50");
}

#[test]
fn pods_of_an_image_that_is_gone_are_deleted() {
    let mut sim = Sim::simple(2);
    sim.pull_time = Duration::from_secs(30);
    sim.run(2);
    assert_eq!(sim.pods.len(), 2);
    sim.images.clear();
    sim.run(1);
    assert!(sim.pods.is_empty());
}

#[test]
fn an_edited_image_is_pulled_and_the_old_pull_given_up() {
    let mut sim = Sim::simple(1);
    sim.pull_time = Duration::from_secs(30);
    sim.run(2);
    let edit = |sim: &mut Sim, spec: Value| {
        let mut all = json!({"image": "r.io/web", "policyRef": {"name": "fast"}});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        sim.image("web", &all);
    };
    edit(&mut sim, json!({"tag": "2"}));
    sim.run(2);
    assert_eq!(&*sim.pod_on("n0").record.pulls[0].reference, "r.io/web:2");
    sim.run(60);
    assert_eq!((sim.ready("web").as_str(), sim.created.len()), ("1/1", 2));
    edit(&mut sim, json!({"tag": "1", "digest": format!("sha256:{}", "0".repeat(64))}));
    sim.run(1);
    assert_eq!(sim.ready("web"), "0/1", "what is there is another image");
    sim.run(60);
    assert_eq!((sim.ready("web").as_str(), sim.created.len()), ("1/1", 3));
    // What does not concern the image on the node does not pull it again.
    edit(
        &mut sim,
        json!({"digest": format!("sha256:{}", "0".repeat(64)), "priority": 3, "imagePullPolicy": "Never"}),
    );
    sim.run(60);
    assert_eq!(sim.created.len(), 3);
}

#[test]
fn a_failure_of_another_reference_does_not_count() {
    let mut sim = Sim::simple(1);
    sim.fates.insert("n0".to_owned(), Fate::Waits("ErrImagePull", "manifest unknown"));
    sim.run(5);
    assert_eq!(sim.reason("web"), "ErrImagePull");
    sim.fates.clear();
    sim.image("web", &json!({"image": "r.io/web", "tag": "2", "policyRef": {"name": "fast"}}));
    sim.run(5);
    assert_eq!((sim.ready("web").as_str(), sim.reason("web").as_str()), ("1/1", "Cached"));
    let node = &sim.ledgers.values().next().unwrap().spec.nodes[0];
    assert_eq!((node.attempt, node.failures), (2, 0));
}

#[test]
fn a_pull_has_a_deadline_even_if_its_kubelet_is_gone() {
    let mut sim = Sim::simple(1);
    sim.fates.insert("n0".to_owned(), Fate::Hangs);
    sim.run(1900);
    assert_eq!(sim.reason("web"), "DeadlineExceeded");
    assert_eq!(sim.created.len(), 2);
}

#[test]
fn a_kubelet_may_get_over_a_failure_that_passes() {
    let mut sim = Sim::simple(1);
    sim.fates.insert("n0".to_owned(), Fate::Waits("ErrImagePull", "net/http: TLS handshake timeout"));
    sim.run(10);
    assert_eq!(sim.created.len(), 1);
    sim.fates.clear();
    sim.run(10);
    assert_eq!((sim.ready("web").as_str(), sim.created.len()), ("1/1", 1));
    assert!(sim.events.iter().all(|event| !matches!(event.kind, EventKind::Failed(_))));

    let mut sim = Sim::simple(1);
    sim.fates.insert("n0".to_owned(), Fate::Waits("ErrImagePull", "net/http: TLS handshake timeout"));
    sim.run(24);
    assert_eq!(sim.reason("web"), "ErrImagePull", "but not for ever");
    assert!(sim.pods.is_empty());
}

#[test]
fn ledgers_that_others_wrote_count_for_nothing() {
    let mut sim = Sim::simple(1);
    sim.run(5);
    let own = WarmLedger::clone(sim.ledgers.values().next().unwrap());
    let changes: [fn(&mut WarmLedger); 3] = [
        |ledger| ledger.metadata.owner_references = None,
        |ledger| ledger.metadata.name = Some("warm-other-0".to_owned()),
        |ledger| ledger.spec.owner.name = "other".to_owned(),
    ];
    for change in changes {
        let mut forged = own.clone();
        change(&mut forged);
        let mut fresh = Sim::simple(1);
        fresh.warming = Warming::new(settings(), [Arc::new(forged)]);
        fresh.run(5);
        assert_eq!(fresh.created.len(), 1);
    }
    let mut fresh = Sim::simple(1);
    fresh.ledgers.clone_from(&sim.ledgers);
    fresh.restart();
    fresh.run(5);
    assert_eq!(fresh.created.len(), 0);
}

#[test]
fn a_pull_that_is_the_first_for_long_is_of_what_pods_would_be_given_by_then() {
    let mut sim = Sim::simple(3);
    sim.run(10);
    assert_eq!((sim.created.len(), sim.routes), (3, 0), "one rollout is of one reference");
    sim.run(400);
    sim.node("late", |_| {});
    sim.run(10);
    assert_eq!((sim.created.len(), sim.routes), (4, 1));
    sim.node("later", |_| {});
    sim.run(10);
    assert_eq!((sim.created.len(), sim.routes), (5, 1), "that was a moment ago");
}

#[test]
fn pulls_that_never_pause_are_of_what_pods_would_be_given_too() {
    // A copy of one of three nodes is due every four minutes.
    let mut sim = Sim::simple(0);
    sim.policy("fast", &json!({"minDelayBetweenPulls": "1ms", "repullInterval": "12m"}));
    for number in 0..3 {
        sim.node(&format!("n{number}"), |_| {});
        sim.run(4 * 60);
    }
    assert_eq!((sim.created.len(), sim.routes), (3, 0), "one rollout is of one reference");
    for (pulls, routes) in [(4, 1), (5, 1), (6, 2), (7, 2)] {
        sim.run(4 * 60);
        assert_eq!((sim.created.len(), sim.routes), (pulls, routes));
    }
    // A node joins every four minutes.
    let mut sim = Sim::simple(0);
    for number in 0..30 {
        sim.node(&format!("n{number}"), |_| {});
        sim.run(4 * 60);
        assert_eq!(sim.routes, number * 4 / 60, "once an hour");
        assert_eq!(sim.ready("web"), format!("{0}/{0}", number + 1));
    }
}

#[test]
fn after_failures_it_is_asked_anew_where_the_image_is() {
    let mut sim = Sim::simple(1);
    sim.fates.insert("n0".to_owned(), Fate::Waits("ErrImagePull", "manifest unknown"));
    sim.run(10);
    assert_eq!(sim.routes, 0);
    sim.run(120);
    assert!(sim.routes >= 1);
}

#[test]
fn nodes_of_a_deleted_ledger_are_warmed_again() {
    let mut sim = Sim::simple(2);
    sim.run(60);
    assert_eq!(sim.created.len(), 2);
    sim.warming.miss_ledgers(|_| false, sim.now);
    sim.run(5);
    assert_eq!(sim.created.len(), 2, "the watch is late");
    sim.warming.miss_ledgers(|_| true, sim.now);
    sim.run(5);
    assert_eq!(sim.created.len(), 2);
    sim.ledgers.clear();
    sim.warming.miss_ledgers(|_| false, sim.now);
    sim.run(10);
    assert_eq!((sim.created.len(), sim.ready("web").as_str()), (4, "2/2"));
    assert_eq!(sim.ledgers.len(), 1);
}
