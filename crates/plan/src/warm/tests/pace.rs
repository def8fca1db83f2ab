//! Limits, delays and turns.

use super::*;

fn starts(sim: &Sim, image: &str) -> Vec<i64> {
    let of =
        sim.created.iter().filter(|(_, _, record)| record.pulls.iter().any(|pull| *pull.image == *image));
    of.map(|(when, _, _)| when.duration_since(at(0)).as_secs()).collect()
}

/// Images with one policy.
fn images(policy: &Value, names: &[&str], nodes: usize) -> Sim {
    let mut sim = Sim::new(settings());
    sim.policy("p", policy);
    for name in names {
        sim.image(name, &json!({"image": format!("r.io/{name}"), "policyRef": {"name": "p"}}));
    }
    (0..nodes).for_each(|number| sim.node(&format!("n{number}"), |_| {}));
    sim
}

#[test]
fn the_delay_counts_from_the_latest_start_also_with_one_node_at_a_time() {
    let mut sim = images(&json!({"minDelayBetweenPulls": "10s"}), &["a"], 3);
    sim.run(60);
    assert_eq!(starts(&sim, "a"), [1, 11, 21], "pulls take two seconds");
}

#[test]
fn free_slots_start_together() {
    let mut sim = images(&json!({"minDelayBetweenPulls": "10s", "maxConcurrentNodes": 2}), &["a"], 5);
    sim.run(60);
    assert_eq!(starts(&sim, "a"), [1, 1, 11, 11, 21]);
    // A slot that becomes free is used after the delay, not before.
    let mut sim = images(&json!({"minDelayBetweenPulls": "10s", "maxConcurrentNodes": 2}), &["a"], 3);
    sim.pull_time = Duration::from_secs(15);
    sim.run(60);
    assert_eq!(starts(&sim, "a"), [1, 1, 16]);
}

#[test]
fn without_a_policy_or_with_one_that_is_missing_the_defaults_hold() {
    for spec in [json!({"image": "r.io/a"}), json!({"image": "r.io/a", "policyRef": {"name": "gone"}})] {
        let mut sim = Sim::new(settings());
        sim.image("a", &spec);
        (0..3).for_each(|number| sim.node(&format!("n{number}"), |_| {}));
        sim.run(60);
        assert_eq!(starts(&sim, "a"), [1, 11, 21], "{spec}");
        let missing = sim.condition("a", "Ready").1.contains("PullPolicy gone is missing");
        assert_eq!(missing, spec["policyRef"].is_object());
    }
}

#[test]
fn a_policy_limits_its_images_together_and_no_others() {
    let mut sim = images(
        &json!({"maxConcurrentNodes": 10, "maxConcurrentPulls": 3, "minDelayBetweenPulls": "1ms"}),
        &["a", "b"],
        5,
    );
    sim.policy("free", &json!({"maxConcurrentNodes": 10, "minDelayBetweenPulls": "1ms"}));
    sim.image("c", &json!({"image": "r.io/c", "policyRef": {"name": "free"}}));
    sim.run(1);
    let of = |sim: &Sim, image: &str| starts(sim, image).len();
    assert_eq!(of(&sim, "a") + of(&sim, "b"), 3);
    assert_eq!(of(&sim, "c"), 5, "the cap of another policy is not its");
    sim.run(60);
    assert_eq!((of(&sim, "a"), of(&sim, "b")), (5, 5));
}

#[test]
fn slots_go_round_robin() {
    let mut sim = images(
        &json!({"maxConcurrentNodes": 10, "maxConcurrentPulls": 1, "minDelayBetweenPulls": "1ms"}),
        &["a", "b", "c"],
        3,
    );
    sim.run(60);
    let order: Vec<&str> = sim.created.iter().map(|(_, _, record)| &*record.pulls[0].image).collect();
    assert_eq!(order, ["a", "b", "c", "a", "b", "c", "a", "b", "c"]);
}

#[test]
fn lower_numbers_come_first() {
    let mut sim = Sim::new(WarmSettings { caps: Caps { per_node: 9, total: Some(1) }, ..settings() });
    sim.policy("p", &json!({"maxConcurrentNodes": 9, "minDelayBetweenPulls": "1ms"}));
    for (name, priority) in [("a", 5), ("b", -1), ("c", 0)] {
        let mut spec = json!({"image": format!("r.io/{name}"), "policyRef": {"name": "p"}});
        if priority != 0 {
            spec["priority"] = priority.into();
        }
        sim.image(name, &spec);
    }
    sim.node("n0", |_| {});
    sim.node("n1", |_| {});
    sim.run(60);
    let order: Vec<&str> = sim.created.iter().map(|(_, _, record)| &*record.pulls[0].image).collect();
    assert_eq!(order, ["b", "b", "c", "c", "a", "a"]);
}

#[test]
fn a_node_has_its_own_cap_and_so_has_the_cluster() {
    let mut sim =
        images(&json!({"maxConcurrentNodes": 9, "minDelayBetweenPulls": "1ms"}), &["a", "b", "c"], 2);
    sim.settings.caps = Caps { per_node: 2, total: None };
    sim.restart();
    sim.run(1);
    for node in ["n0", "n1"] {
        assert_eq!(sim.pulled().iter().filter(|name| **name == node).count(), 2, "{node}");
    }
    sim.run(60);
    assert_eq!(sim.created.len(), 6);

    let mut sim = images(&json!({"maxConcurrentNodes": 9, "minDelayBetweenPulls": "1ms"}), &["a", "b"], 9);
    sim.settings.caps = Caps { per_node: 9, total: Some(4) };
    sim.restart();
    sim.run(1);
    assert_eq!(sim.created.len(), 4);
}

/// After a restart, and after an edit, the Pods of an image are there before it is decided what it is pulled as.
#[test]
fn pulls_of_an_image_that_is_not_decided_about_count() {
    type Limit = fn(&mut Sim);
    let limits: [(&str, Limit); 3] = [
        ("policy", |sim| {
            let policy =
                json!({"maxConcurrentNodes": 9, "maxConcurrentPulls": 4, "minDelayBetweenPulls": "1ms"});
            sim.policy("p", &policy);
        }),
        ("cluster", |sim| sim.settings.caps.total = Some(4)),
        ("node", |sim| sim.settings.caps.per_node = 1),
    ];
    for batch in [false, true] {
        for (what, limit) in limits {
            for restarts in [false, true] {
                let mut sim =
                    images(&json!({"maxConcurrentNodes": 9, "minDelayBetweenPulls": "1ms"}), &["a", "b"], 4);
                limit(&mut sim);
                sim.settings.batch = batch;
                sim.restart();
                sim.pull_time = Duration::from_mins(1);
                let b = sim.routed.remove("uid-b").unwrap();
                // In a batch one image waits for the other one for a while.
                sim.run(20);
                assert_eq!((sim.created.len(), sim.warming.active_pulls(sim.now)), (4, 4), "{what} {batch}");
                let a = sim.routed.remove("uid-a").unwrap();
                if restarts {
                    sim.restart();
                }
                sim.routed.insert("uid-b".into(), b);
                sim.run(30);
                assert_eq!((sim.created.len(), sim.warming.active_pulls(sim.now)), (4, 4), "{what} {batch}");
                sim.routed.insert("uid-a".into(), a);
                sim.run(120);
                assert_eq!(
                    (sim.created.len(), sim.ready("a"), sim.ready("b")),
                    (8, "4/4".into(), "4/4".into())
                );
            }
        }
    }
}

#[test]
fn a_pull_that_is_stuck_takes_no_slot() {
    let mut sim = images(&json!({"maxConcurrentPulls": 1, "minDelayBetweenPulls": "1ms"}), &["a", "b"], 1);
    sim.fates.insert("n0".to_owned(), Fate::Waits("ErrImagePull", "net/http: TLS handshake timeout"));
    sim.run(3);
    assert_eq!(sim.pods.len(), 2, "the second image starts beside the stuck one");
}

#[test]
fn limits_hold_where_no_kubelet_speaks() {
    let mut sim = images(&json!({"maxConcurrentNodes": 2, "minDelayBetweenPulls": "1s"}), &["a", "b"], 9);
    let names: Vec<_> = sim.nodes.keys().cloned().collect();
    for name in names {
        sim.fates.insert(name, Fate::Hangs);
    }
    sim.run(30 * 60);
    assert_eq!((starts(&sim, "a").len(), starts(&sim, "b").len()), (2, 2));
    sim.fates.clear();
    sim.run(60);
    assert_eq!((sim.ready("a").as_str(), sim.ready("b").as_str()), ("9/9", "9/9"));
}

#[test]
fn a_node_that_hangs_does_not_hold_up_the_others() {
    for (nodes, hanging) in [(2, 1), (5, 3)] {
        let mut sim = images(&json!({"maxConcurrentNodes": nodes, "minDelayBetweenPulls": "1s"}), &["a"], 20);
        for number in 0..hanging {
            sim.fates.insert(format!("n{number}"), Fate::Hangs);
        }
        sim.run(300);
        assert_eq!(sim.ready("a"), format!("{}/20", 20 - hanging), "{nodes} {hanging}");
    }
    // Where only one pulls at a time, the deadline ends it.
    let mut sim = images(&json!({"minDelayBetweenPulls": "1s"}), &["a"], 1);
    sim.fates.insert("n0".to_owned(), Fate::Hangs);
    sim.run(2);
    sim.node("n1", |_| {});
    sim.run(1800);
    assert_eq!(sim.created.len(), 1);
    sim.run(120);
    assert_eq!(sim.ready("a"), "1/2");
    // One that is not ready is not waited for.
    let mut sim = images(&json!({"minDelayBetweenPulls": "1s"}), &["a"], 1);
    sim.fates.insert("n0".to_owned(), Fate::Hangs);
    sim.run(2);
    sim.node("n0", |node| node.ready = false);
    sim.node("n1", |_| {});
    sim.run(10);
    assert_eq!(sim.ready("a"), "1/1");
}

#[test]
fn a_registry_in_trouble_gets_no_new_pulls() {
    let mut sim = images(&json!({"maxConcurrentNodes": 9}), &["a"], 3);
    let trouble = Trouble { what: "down".into(), until: Some(at(20)) };
    sim.troubles.insert("uid-a".into(), trouble);
    sim.run(15);
    assert!(sim.created.is_empty());
    assert_eq!(sim.look_again, Some(at(20)));
    assert!(sim.condition("a", "Ready").1.contains("no new pulls while registry r.io is down"));
    let trouble = Trouble { what: "rate-limited".into(), until: Some(at(20)) };
    sim.troubles.insert("uid-a".into(), trouble);
    sim.run(2);
    assert!(sim.condition("a", "Ready").1.contains("no new pulls while registry r.io is rate-limited"));
    sim.troubles.clear();
    sim.run(10);
    assert_eq!(sim.ready("a"), "3/3");
}

#[test]
fn a_bad_node_does_not_delay_the_others() {
    let policy = json!({"maxConcurrentNodes": 2, "minDelayBetweenPulls": "1s"});
    let time = |bad: usize| {
        let mut sim = images(&policy, &["a"], 50);
        (0..bad).for_each(|number| {
            sim.fates
                .insert(format!("n{}", number * 10), Fate::Waits("ErrImagePull", "no space left on device"));
        });
        let done = format!("{}/50", 50 - bad);
        let finished = (1..200).find(|_| {
            sim.run(1);
            sim.ready("a") == done
        });
        assert_eq!(sim.status("a").consecutive_failures.is_some(), bad > 0);
        finished.unwrap()
    };
    let (good, bad) = (time(0), time(5));
    assert!(bad * 10 <= good * 12, "{bad} s with bad nodes, {good} s without");
}

#[test]
fn a_node_that_joins_does_not_wait_for_bad_ones() {
    let policy = json!({"minDelayBetweenPulls": "1s", "failureBackoff": {"initial": "1h", "max": "1h"}});
    let mut sim = images(&policy, &["a"], 2);
    sim.run(10);
    for number in 0..7 {
        let name = format!("bad{number}");
        sim.fates.insert(name.clone(), Fate::Waits("ErrImagePull", "connection refused"));
        sim.node(&name, |_| {});
    }
    sim.run(60);
    assert_eq!((sim.ready("a").as_str(), sim.created.len()), ("2/9", 9), "each is tried once");
    for number in 0..6 {
        sim.node(&format!("good{number}"), |_| {});
    }
    sim.run(60);
    assert_eq!((sim.ready("a").as_str(), sim.created.len()), ("8/15", 15));
    // All bad nodes are due again. None of them is a reason to wait either.
    sim.run(3600);
    sim.node("late", |node| node.taints = [taint("fairlead.dev/warming", "", "NoSchedule")].into());
    sim.run(10);
    assert_eq!(sim.ready("a"), "9/16");
}

#[test]
fn a_node_that_failed_waits_longer_each_time() {
    let mut sim = images(&json!({"minDelayBetweenPulls": "1ms"}), &["a"], 1);
    sim.fates.insert("n0".to_owned(), Fate::Waits("ErrImagePull", "no space left on device"));
    sim.run(400);
    let starts = starts(&sim, "a");
    let pauses: Vec<_> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses[..3], [32, 62, 122], "two seconds for the pull, then 30, 60, 120");
}

#[test]
fn an_edit_that_cures_a_failure_acts_at_once() {
    let spec = |secret: &str| json!({"image": "r.io/a", "imagePullSecrets": [{"name": secret}]});
    let mut sim = images(&json!({}), &[], 2);
    sim.image("a", &spec("wrong"));
    for node in ["n0", "n1"] {
        sim.fates.insert(node.to_owned(), Fate::Waits("ErrImagePull", "401 Unauthorized"));
    }
    sim.run(200);
    let tried = sim.created.len();
    sim.fates.clear();
    sim.image("a", &spec("right"));
    sim.run(15);
    assert_eq!((sim.created.len(), sim.ready("a").as_str()), (tried + 2, "2/2"), "at the pace of the policy");
}

#[test]
fn an_image_that_is_nowhere_is_not_tried_on_every_node() {
    for message in [
        "manifest unknown",
        "dial tcp 10.0.0.1:5000: connect: connection refused",
        "dial tcp: lookup r.io: no such host",
        "unexpected status: 503 Service Unavailable",
        "429 Too Many Requests",
        "dial tcp 10.0.0.1:5000: i/o timeout",
    ] {
        let mut sim = images(&json!({"maxConcurrentNodes": 5, "minDelayBetweenPulls": "1s"}), &["a"], 200);
        let names: Vec<_> = sim.nodes.keys().cloned().collect();
        for name in names {
            sim.fates.insert(name, Fate::Waits("ErrImagePull", message));
        }
        sim.run(600);
        assert!(sim.created.len() < 120, "{message}: {}", sim.created.len());
        assert!(sim.routes > 0, "{message}: another place is looked for");
        assert_eq!(sim.reason("a"), "ErrImagePull");
        sim.fates.clear();
        sim.run(600);
        assert_eq!(sim.ready("a"), "200/200", "{message}");
    }
}

#[test]
fn each_node_is_pulled_again_after_its_own_interval() {
    let mut sim = images(&json!({"minDelayBetweenPulls": "10s", "repullInterval": "1m"}), &["a"], 2);
    sim.run(59);
    assert_eq!(starts(&sim, "a"), [1, 11]);
    sim.run(6);
    assert_eq!(starts(&sim, "a"), [1, 11, 63], "two seconds for the pull, then a minute");
    assert_eq!(sim.ready("a"), "2/2", "what is there is there while it is refreshed");
    sim.run(10);
    assert_eq!(starts(&sim, "a"), [1, 11, 63, 73]);
    // A node that joins does not push the others back.
    sim.node("late", |_| {});
    sim.run(55);
    assert_eq!(starts(&sim, "a").len(), 6, "{:?}", starts(&sim, "a"));
}

#[test]
fn two_policies_have_caps_of_their_own() {
    let mut sim = images(
        &json!({"maxConcurrentNodes": 99, "maxConcurrentPulls": 2, "minDelayBetweenPulls": "1ms"}),
        &["a"],
        30,
    );
    sim.policy(
        "q",
        &json!({"maxConcurrentNodes": 99, "maxConcurrentPulls": 20, "minDelayBetweenPulls": "1ms"}),
    );
    sim.image("b", &json!({"image": "r.io/b", "policyRef": {"name": "q"}}));
    sim.run(1);
    assert_eq!((starts(&sim, "a").len(), starts(&sim, "b").len()), (2, 20));
}
