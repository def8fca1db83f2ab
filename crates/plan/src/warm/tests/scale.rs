//! Many nodes and many images.

use super::*;

/// A cluster of this size, all of it warm.
fn warm(nodes: usize, images: usize) -> Sim {
    let mut sim = Sim::new(settings());
    sim.policy("p", &json!({"maxConcurrentNodes": 50, "minDelayBetweenPulls": "100ms"}));
    for number in 0..images {
        sim.image(
            &format!("i{number}"),
            &json!({"image": format!("r.io/i{number}"), "policyRef": {"name": "p"}}),
        );
    }
    (0..nodes).for_each(|number| sim.node(&format!("n{number}"), |_| {}));
    sim.pull_time = Duration::from_millis(200);
    let done = format!("{nodes}/{nodes}");
    for _ in 0..2000 {
        sim.step(Duration::from_millis(100));
        if (0..images).all(|number| sim.ready(&format!("i{number}")) == done) {
            break;
        }
    }
    assert!((0..images).all(|number| sim.ready(&format!("i{number}")) == done));
    sim
}

#[test]
fn every_node_gets_every_image_exactly_once() {
    let sim = warm(200, 5);
    assert_eq!(sim.created.len(), 1000);
    let names: std::collections::BTreeSet<_> =
        sim.created.iter().map(|(_, _, record)| record.pod_name()).collect();
    assert_eq!(names.len(), 1000);
}

/// How long 180 good nodes take to get an image beside 20 others.
fn time_beside(fate: &Fate) -> Duration {
    let mut sim = Sim::new(settings());
    sim.policy("p", &json!({"maxConcurrentNodes": 50, "minDelayBetweenPulls": "100ms"}));
    sim.image("i", &json!({"image": "r.io/i", "policyRef": {"name": "p"}}));
    for number in 0..200 {
        let name = format!("n{number}");
        sim.node(&name, |_| {});
        if number % 10 == 0 {
            sim.fates.insert(name, fate.clone());
        }
    }
    sim.pull_time = Duration::from_secs(3);
    let begun = sim.now;
    let good = |sim: &Sim| sim.status("i").cached_nodes.iter().filter(|name| !name.ends_with('0')).count();
    while good(&sim) < 180 {
        sim.step(Duration::from_millis(100));
        assert!(sim.now < after(begun, Duration::from_mins(10)), "{} good nodes", good(&sim));
    }
    sim.now.duration_since(begun).unsigned_abs()
}

#[test]
fn a_tenth_of_bad_nodes_slows_the_others_by_a_tenth_at_most() {
    let alone = time_beside(&Fate::Pulled);
    for message in ["connection refused", "manifest unknown", "no space left on device"] {
        let beside = time_beside(&Fate::Waits("ErrImagePull", message));
        assert!(beside <= alone * 11 / 10, "{message}: {beside:?} instead of {alone:?}");
    }
}

#[test]
fn ledgers_of_five_thousand_nodes_are_many_and_small() {
    let mut sim = warm(5000, 1);
    sim.run(10);
    assert_eq!(sim.ledgers.len(), 20);
    for ledger in sim.ledgers.values() {
        assert_eq!(ledger.spec.nodes.len(), 250);
        let size = serde_json::to_string(&**ledger).unwrap().len();
        assert!(size < 64 * 1024, "{size}");
    }
}
