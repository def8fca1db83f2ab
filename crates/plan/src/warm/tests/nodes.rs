//! Nodes that come, go and change.

use super::*;

#[test]
fn every_node_gets_the_image_once() {
    let mut sim = Sim::simple(3);
    sim.run(10);
    assert_eq!(sim.ready("web"), "3/3");
    let mut pulled = sim.pulled();
    pulled.sort_unstable();
    assert_eq!(pulled, ["n0", "n1", "n2"]);
    assert!(sim.pods.is_empty(), "pull Pods are deleted");
    assert_eq!(sim.ledgers.len(), 1);
    sim.run(1000);
    assert_eq!(sim.created.len(), 3);
}

#[test]
fn without_a_node_nothing_happens() {
    let mut sim = Sim::simple(0);
    sim.run(5);
    assert_eq!((sim.ready("web").as_str(), sim.reason("web").as_str()), ("0/0", "InProgress"));
    assert!(sim.created.is_empty());
    sim.node("late", |_| {});
    sim.run(10);
    assert_eq!(sim.ready("web"), "1/1");
    sim.nodes.clear();
    sim.node("other", |_| {});
    sim.run(10);
    assert_eq!(sim.ready("web"), "1/1");
    let ledger = sim.ledgers.values().next().unwrap();
    assert_eq!(ledger.spec.nodes.len(), 1, "a node that is gone is forgotten");
}

#[test]
fn a_node_that_is_replaced_under_its_name_starts_anew() {
    let mut sim = Sim::simple(2);
    sim.run(10);
    sim.node("n0", |node| node.uid = "another".into());
    sim.run(10);
    assert_eq!(sim.ready("web"), "2/2");
    assert_eq!(sim.pulled().iter().filter(|name| **name == "n0").count(), 2);
    let ledger = sim.ledgers.values().next().unwrap();
    let mut known: Vec<_> = ledger.spec.nodes.iter().map(|node| (&*node.uid, &*node.name)).collect();
    known.sort_unstable();
    assert_eq!(known, [("another", "n0"), ("uid-n1", "n1")]);
}

#[test]
fn a_node_is_warmed_as_soon_as_nothing_keeps_it_from_being_a_target() {
    type Change = fn(&mut Node);
    let changes: [(&str, Change, Change); 5] = [
        ("ready", |node| node.ready = false, |node| node.ready = true),
        (
            "taint",
            |node| node.taints = [taint("startup", "", "NoSchedule")].into(),
            |node| node.taints = [].into(),
        ),
        ("cordon", |node| node.unschedulable = true, |node| node.unschedulable = false),
        ("disk", |node| node.disk_pressure = true, |node| node.disk_pressure = false),
        ("label", |node| node.labels = [].into(), |node| node.labels = [("pool".into(), "a".into())].into()),
    ];
    for (what, before, then) in changes {
        let mut sim = Sim::simple(0);
        sim.image(
            "web",
            &json!({
                "image": "r.io/web", "tag": "1", "policyRef": {"name": "fast"}, "nodeSelector": {"pool": "a"},
            }),
        );
        sim.node("n", |node| node.labels = [("pool".into(), "a".into())].into());
        sim.node("n", before);
        sim.run(100);
        assert_eq!(sim.ready("web"), "0/0", "{what}");
        sim.node("n", then);
        sim.run(10);
        assert_eq!(sim.ready("web"), "1/1", "{what}");
        // It is remembered while it is not a target.
        sim.node("n", before);
        sim.run(10);
        assert_eq!(sim.ready("web"), "0/0", "{what}");
        sim.node("n", then);
        sim.run(10);
        assert_eq!((sim.ready("web").as_str(), sim.created.len()), ("1/1", 1), "{what}");
    }
}

#[test]
fn a_pull_goes_on_where_the_obstacle_passes_and_is_given_up_where_it_lasts() {
    let start = || {
        let mut sim = Sim::simple(1);
        sim.pull_time = Duration::from_mins(1);
        sim.run(1);
        assert_eq!(sim.pods.len(), 1);
        sim
    };
    let mut sim = start();
    sim.node("n0", |node| node.unschedulable = true);
    sim.run(2);
    assert_eq!(sim.pods.len(), 1, "cordoned");
    sim.node("n0", |node| node.unschedulable = false);
    sim.run(100);
    assert_eq!((sim.ready("web").as_str(), sim.created.len()), ("1/1", 1));

    let mut sim = start();
    sim.node("n0", |node| node.taints = [taint("gpu", "", "NoSchedule")].into());
    sim.run(2);
    assert!(sim.pods.is_empty(), "tainted for good");

    let mut sim = start();
    sim.nodes.clear();
    sim.run(2);
    assert!(sim.pods.is_empty(), "gone");
}

#[test]
fn an_image_that_the_node_has_removed_is_pulled_again() {
    let mut sim = Sim::simple(1);
    sim.run(5);
    sim.lists("n0", &["r.io/web:1", "r.io/pause:3"]);
    sim.run(300);
    assert_eq!(sim.created.len(), 1);
    sim.lists("n0", &["r.io/pause:3"]);
    sim.run(10);
    assert_eq!(sim.created.len(), 2, "the list is complete, newer than the pull, and lacks the image");
    assert_eq!(sim.ready("web"), "1/1");
}

#[test]
fn an_image_that_was_removed_is_not_there_while_it_cannot_be_pulled() {
    let mut sim = Sim::simple(1);
    sim.run(300);
    sim.fates.insert("n0".to_owned(), Fate::Waits("ErrImagePull", "manifest unknown"));
    sim.lists("n0", &["r.io/pause:3"]);
    sim.run(10);
    assert_eq!((sim.created.len(), sim.ready("web").as_str()), (2, "0/1"));
    assert_eq!(sim.reason("web"), "ErrImagePull");
    sim.restart();
    sim.run(5);
    assert_eq!((sim.created.len(), sim.ready("web").as_str()), (2, "0/1"));
    sim.fates.clear();
    sim.run(60);
    assert_eq!((sim.created.len(), sim.ready("web").as_str()), (3, "1/1"));
    sim.run(300);
    assert_eq!(sim.created.len(), 3, "a list that lacks it even now is not relied on");
}

#[test]
fn a_node_without_room_is_not_filled_again_and_again() {
    let mut sim = Sim::simple(1);
    sim.run(5);
    for _ in 0..120 {
        // The kubelet lists what it has pulled, and removes it three minutes later.
        sim.lists("n0", &["r.io/web:1", "r.io/pause:3"]);
        sim.run(180);
        sim.lists("n0", &["r.io/pause:3"]);
        sim.run(180);
    }
    let pulls: Vec<_> = sim.created.iter().map(|(at, ..)| at.as_second() / 60).collect();
    let pauses: Vec<_> = pulls.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.len() <= 8 && pauses[1..].windows(2).all(|pair| pair[1] > pair[0]), "{pauses:?}");
    // What stays for a day counts no more.
    sim.lists("n0", &["r.io/web:1", "r.io/pause:3"]);
    sim.step(Duration::from_hours(26));
    for pulls in [pulls.len() + 1, pulls.len() + 2] {
        sim.lists("n0", &["r.io/pause:3"]);
        sim.run(60 * 13);
        assert_eq!(sim.created.len(), pulls);
        sim.lists("n0", &["r.io/web:1", "r.io/pause:3"]);
        sim.run(300);
    }
}

#[test]
fn a_list_of_images_is_relied_on_only_if_it_can_be() {
    let mut sim = Sim::simple(1);
    sim.run(5);
    sim.lists("n0", &["r.io/pause:3"]);
    sim.run(60);
    assert_eq!(sim.created.len(), 1, "the list is not newer than the pull by enough");
    let cut = ImageList::new(vec![ImageList::hash(&reference("r.io/pause:3"))], true);
    sim.run(300);
    sim.node("n0", |node| node.images = Arc::new(cut));
    sim.run(300);
    assert_eq!(sim.created.len(), 1, "the list may be cut");
    sim.lists("n0", &[]);
    sim.run(300);
    assert_eq!(sim.created.len(), 1, "a node that lists nothing reports nothing");
    // The node never lists the image, under whatever name it has it: one more pull, and no more.
    for _ in 0..20 {
        sim.lists("n0", &["r.io/pause:3"]);
        sim.run(120);
    }
    assert_eq!(sim.created.len(), 2);
    sim.restart();
    sim.run(300);
    assert_eq!(sim.created.len(), 2, "that is remembered");
}

#[test]
fn the_missing_platform_is_told_and_not_pulled() {
    let mut sim = Sim::simple(1);
    sim.node("arm", |node| node.architecture = "arm64".into());
    let platform = fairlead_domain::platform::Platform {
        os: "linux".into(),
        architecture: "amd64".into(),
        variant: String::new(),
    };
    sim.routed.get_mut("uid-web").unwrap().platforms = [platform].into();
    sim.run(5);
    assert_eq!((sim.ready("web").as_str(), sim.pulled()), ("1/1", vec!["n0"]));
    let (_, message) = sim.condition("web", "Ready");
    assert!(message.contains("1 skipped: the image has no variant for linux/arm64"), "{message}");
}

#[test]
fn a_variant_that_an_image_gets_later_is_found() {
    let platform = |architecture: &str| fairlead_domain::platform::Platform {
        os: "linux".to_owned(),
        architecture: architecture.to_owned(),
        variant: String::new(),
    };
    let mut sim = Sim::simple(1);
    sim.node("arm", |node| node.architecture = "arm64".into());
    sim.routed.get_mut("uid-web").unwrap().platforms = [platform("amd64")].into();
    sim.run(10);
    assert_eq!(sim.ready("web"), "1/1");
    sim.step(Duration::from_mins(59));
    assert_eq!((sim.routes, sim.look_again), (0, Some(at(3600))));
    sim.step(Duration::from_mins(1));
    assert_eq!(sim.routes, 1, "it is looked for once an hour");
    sim.routed.get_mut("uid-web").unwrap().platforms = [platform("amd64"), platform("arm64")].into();
    sim.run(10);
    assert_eq!(sim.ready("web"), "2/2");
}
