//! Lease holders that know nothing of each other.

use super::*;

/// A second leader plans with what the watch showed before the first one began, as after a network was split.
#[test]
fn two_leaders_with_an_old_view_create_one_pod_each() {
    for batch in [false, true] {
        let mut sim = Sim::new(WarmSettings { batch, ..settings() });
        sim.run(15);
        sim.policy("fast", &json!({"maxConcurrentNodes": 9, "minDelayBetweenPulls": "1ms"}));
        for name in ["a", "b"] {
            sim.image(name, &json!({"image": format!("r.io/{name}"), "policyRef": {"name": "fast"}}));
        }
        (0..4).for_each(|number| sim.node(&format!("n{number}"), |_| {}));
        sim.pull_time = Duration::from_mins(1);
        let (pods, ledgers) = (sim.pods.clone(), sim.ledgers.clone());
        sim.run(5);
        let made = sim.pods.clone();
        assert_eq!(made.len(), if batch { 4 } else { 8 });
        // What both have created is in the cluster, and each sees its own part only.
        sim.warming = Warming::new(sim.settings.clone(), ledgers.into_values());
        sim.pods = pods;
        sim.run(15);
        let names = |pods: &BTreeMap<Arc<str>, Arc<PullPod>>| pods.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&sim.pods), names(&made), "batch: {batch}");
        sim.run(120);
        assert_eq!((sim.ready("a").as_str(), sim.ready("b").as_str()), ("4/4", "4/4"));
    }
}

/// Whenever the leader dies, each node gets each image once, also where a Pod pulls several.
#[test]
fn leaders_that_die_any_time_have_nothing_pulled_twice() {
    for batch in [false, true] {
        for death in 1..25 {
            let mut sim = Sim::new(WarmSettings { batch, ..settings() });
            sim.policy("p", &json!({"maxConcurrentNodes": 3, "minDelayBetweenPulls": "1s"}));
            for name in ["a", "b", "c"] {
                sim.image(name, &json!({"image": format!("r.io/{name}"), "policyRef": {"name": "p"}}));
            }
            (0..9).for_each(|number| sim.node(&format!("n{number}"), |_| {}));
            for _ in 0..10 {
                sim.run(death);
                sim.restart();
            }
            sim.run(120);
            let mut pulls = BTreeMap::new();
            for pull in sim
                .created
                .iter()
                .flat_map(|(_, node, record)| record.pulls.iter().map(move |pull| (node, pull)))
            {
                *pulls.entry((pull.0.clone(), Arc::clone(&pull.1.image))).or_insert(0) += 1;
            }
            assert_eq!(pulls.len(), 27, "{batch} {death}");
            assert!(pulls.values().all(|count| *count == 1), "{batch} {death}: {pulls:?}");
            assert!(sim.pods.is_empty());
        }
    }
}
