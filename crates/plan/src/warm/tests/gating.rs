//! Nodes that get their images before Pods.

use super::super::gate::Release;
use super::*;

fn gated(node: &mut Node) {
    node.taints = [taint("fairlead.dev/warming", "", "NoSchedule")].into();
}

/// Two images, of which `web` has a gate.
fn gate() -> Sim {
    let mut sim = Sim::simple(0);
    let spec = json!({"image": "r.io/web", "tag": "1", "policyRef": {"name": "fast"}, "gate": true});
    sim.image("web", &spec);
    sim.image(
        "other",
        &json!({"image": "r.io/other", "policyRef": {"name": "fast"}, "nodeSelector": {"no": "where"}}),
    );
    sim
}

fn released(sim: &Sim) -> Vec<(&str, Release)> {
    sim.released.iter().map(|(node, why)| (node.as_str(), *why)).collect()
}

#[test]
fn a_node_is_opened_when_its_images_are_there() {
    let mut sim = gate();
    sim.pull_time = Duration::from_secs(30);
    sim.node("n", gated);
    sim.run(25);
    assert!(sim.released.is_empty());
    assert_eq!(sim.look_again, Some(at(600)));
    sim.run(10);
    assert_eq!(released(&sim), [("n", Release::Warm)]);
}

#[test]
fn an_image_that_its_set_has_not_created_yet_is_waited_for_where_it_belongs() {
    let mut sim = gate();
    sim.coming_gates =
        vec![serde_json::from_value(json!({"image": "", "nodeSelector": {"pool": "a"}})).unwrap()];
    sim.node("here", |node| {
        gated(node);
        node.labels = [("pool".into(), "a".into())].into();
    });
    sim.node("elsewhere", gated);
    sim.run(20);
    assert_eq!(released(&sim), [("elsewhere", Release::Warm)]);
    sim.coming_gates.clear();
    sim.run(1);
    assert_eq!(released(&sim)[1], ("here", Release::Warm));
}

#[test]
fn a_node_is_opened_when_the_deadline_passes_whatever_happens() {
    for fate in [Fate::Hangs, Fate::Waits("ErrImagePull", "not found")] {
        let mut sim = gate();
        sim.fates.insert("n".to_owned(), fate);
        sim.node("n", gated);
        sim.run(590);
        assert!(sim.released.is_empty());
        sim.run(15);
        assert_eq!(released(&sim), [("n", Release::Deadline)]);
    }
}

#[test]
fn a_node_that_joined_while_the_operator_was_down_is_opened_at_once() {
    let mut sim = gate();
    sim.node("n", gated);
    sim.fates.insert("n".to_owned(), Fate::Hangs);
    sim.now = at(3600);
    sim.restart();
    sim.run(1);
    assert_eq!(released(&sim), [("n", Release::Deadline)]);
}

#[test]
fn only_what_can_come_is_waited_for() {
    let mut sim = gate();
    sim.image("web", &json!({"image": "r.io/web", "gate": true, "nodeSelector": {"pool": "a"}}));
    sim.node("n", gated);
    sim.run(1);
    assert_eq!(released(&sim), [("n", Release::Warm)], "the image is not for this node");

    let mut sim = gate();
    sim.node("n", gated);
    sim.node("n", |node| node.ready = false);
    sim.run(60);
    assert!(sim.released.is_empty(), "a node that is not ready yet will be");
    sim.node("n", |node| node.ready = true);
    sim.run(10);
    assert_eq!(released(&sim), [("n", Release::Warm)]);

    let mut sim = gate();
    sim.node("n", |node| {
        let startup = taint("example.com/startup", "", "NoSchedule");
        node.taints = [taint("fairlead.dev/warming", "", "NoSchedule"), startup].into();
    });
    sim.run(60);
    assert!(sim.released.is_empty(), "another startup taint goes away, too");
    sim.node("n", gated);
    sim.run(10);
    assert_eq!(released(&sim), [("n", Release::Warm)]);

    let mut sim = gate();
    sim.image("web", &json!({"image": "r.io/UPPER", "gate": true}));
    sim.node("n", gated);
    sim.run(1);
    assert_eq!(released(&sim), [("n", Release::Warm)], "what is no image will never be there");

    let mut sim = Sim::simple(0);
    sim.node("n", gated);
    sim.run(1);
    assert_eq!(released(&sim), [("n", Release::Warm)], "no image has a gate");
}

#[test]
fn nodes_behind_the_gate_come_first() {
    let mut sim = gate();
    sim.policy("fast", &json!({"minDelayBetweenPulls": "10s"}));
    (0..20).for_each(|number| sim.node(&format!("n{number}"), |_| {}));
    sim.node("new", gated);
    sim.run(1);
    assert_eq!(sim.pulled(), ["new"]);
}
