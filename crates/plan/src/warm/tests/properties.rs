//! Whatever happens in whatever order, limits hold, and no image is pulled twice for nothing.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Run(u64),
    Restart,
    Join,
    Leave(usize),
    Cordon(usize),
    Uncordon,
    Down(bool),
    /// It is not decided for a while what the image is pulled as, as after an edit.
    Undecide(usize),
    DecideAll,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..8_u64).prop_map(Step::Run),
        2 => Just(Step::Restart),
        2 => Just(Step::Join),
        1 => (0..10_usize).prop_map(Step::Leave),
        1 => (0..10_usize).prop_map(Step::Cordon),
        1 => Just(Step::Uncordon),
        1 => any::<bool>().prop_map(Step::Down),
        1 => (0..3_usize).prop_map(Step::Undecide),
        2 => Just(Step::DecideAll),
    ]
}

/// The most Pods that existed at once for one image and for one node, and in all, of those that were not over and whose
/// nodes were there.
fn active(sim: &Sim) -> (usize, usize, usize) {
    let (mut images, mut nodes) = (BTreeMap::new(), BTreeMap::new());
    let is_there = |node: &str| sim.nodes.values().any(|(known, _)| *known.uid == *node);
    let pods = sim.pods.values().filter(|pod| pod.phase == Phase::Pending && is_there(&pod.record.node));
    let mut total = 0;
    for pod in pods {
        total += 1;
        *nodes.entry(Arc::clone(&pod.record.node)).or_insert(0_usize) += 1;
        for pull in &pod.record.pulls {
            *images.entry(Arc::clone(&pull.image)).or_insert(0_usize) += 1;
        }
    }
    (images.into_values().max().unwrap_or(0), nodes.into_values().max().unwrap_or(0), total)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn limits_hold_and_each_node_gets_each_image_once(
        batch in any::<bool>(),
        concurrent in 1..4_usize,
        per_node in 1..3_usize,
        total in proptest::option::of(1..5_usize),
        pull_time in 1..6_u64,
        steps in proptest::collection::vec(step(), 1..30),
    ) {
        let caps = Caps { per_node, total };
        let mut sim = Sim::new(WarmSettings { batch, caps, ..settings() });
        sim.pull_time = Duration::from_secs(pull_time);
        sim.policy("p", &json!({"maxConcurrentNodes": concurrent, "minDelayBetweenPulls": "2s"}));
        for name in ["a", "b", "c"] {
            sim.image(name, &json!({"image": format!("r.io/{name}"), "policyRef": {"name": "p"}}));
        }
        let (mut joined, decided) = (0, sim.routed.clone());
        let healthy = [Step::Down(false), Step::Uncordon, Step::DecideAll, Step::Join];
        for step in steps.into_iter().chain(healthy) {
            let name = |sim: &Sim, at: usize| sim.nodes.keys().nth(at).cloned();
            match step {
                Step::Run(seconds) => for _ in 0..seconds {
                    sim.run(1);
                    let (of_image, on_node, all) = active(&sim);
                    prop_assert!(of_image <= concurrent && on_node <= per_node);
                    prop_assert!(total.is_none_or(|total| all <= total));
                },
                Step::Restart => sim.restart(),
                Step::Join => {
                    joined += 1;
                    sim.node(&format!("n{joined}"), |_| {});
                }
                Step::Leave(at) => if let Some(name) = name(&sim, at).filter(|_| sim.nodes.len() > 1) {
                    sim.nodes.remove(&name);
                },
                Step::Cordon(at) => if let Some(name) = name(&sim, at) {
                    sim.node(&name, |node| node.unschedulable = true);
                },
                Step::Uncordon => {
                    let names: Vec<_> = sim.nodes.keys().cloned().collect();
                    for name in names {
 sim.node(&name, |node| node.unschedulable = false);
}
                }
                Step::Down(down) => sim.api_is_down = down,
                Step::Undecide(image) => _ = sim.routed.remove(["uid-a", "uid-b", "uid-c"][image]),
                Step::DecideAll => sim.routed.clone_from(&decided),
            }
        }
        sim.run(600);
        for name in ["a", "b", "c"] {
            let count = sim.nodes.len();
            prop_assert_eq!(sim.ready(name), format!("{count}/{count}"));
        }
        prop_assert!(sim.pods.is_empty());
        let mut pulls = BTreeMap::new();
        for (_, _, record) in &sim.created {
            for pull in &record.pulls {
                *pulls.entry((Arc::clone(&record.node), Arc::clone(&pull.uid))).or_insert(0) += 1;
            }
        }
        // A Pod of a node that left and came back is another node's; here none comes back.
        prop_assert!(pulls.values().all(|count| *count == 1), "{:?}", pulls);
        // The next lease holder has nothing to do.
        let before = sim.created.len();
        sim.restart();
        sim.run(30);
        prop_assert_eq!(sim.created.len(), before);
    }
}
