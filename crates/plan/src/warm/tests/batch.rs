//! One Pod for all images that a node needs.

use super::*;

fn batch(images: usize, nodes: usize) -> Sim {
    let mut sim = Sim::new(WarmSettings { batch: true, ..settings() });
    // Images come after it has begun to lead.
    sim.run(1);
    sim.policy("p", &json!({"maxConcurrentNodes": 50, "minDelayBetweenPulls": "100ms"}));
    (0..images).for_each(|number| add(&mut sim, number));
    (0..nodes).for_each(|number| sim.node(&format!("n{number}"), |_| {}));
    sim
}

fn add(sim: &mut Sim, number: usize) {
    let spec = json!({"image": format!("r.io/i{number}"), "tag": "1", "policyRef": {"name": "p"}});
    sim.image(&format!("i{number}"), &spec);
}

#[test]
fn images_that_agree_share_a_pod() {
    let mut sim = batch(5, 20);
    sim.run(20);
    for number in 0..5 {
        assert_eq!(sim.ready(&format!("i{number}")), "20/20");
    }
    assert_eq!(sim.created.len(), 20);
    assert!(sim.created.iter().all(|(_, _, record)| record.pulls.len() == 5));
    assert!(sim.pods.is_empty());
}

#[test]
fn writes_per_pull_stay_low_at_scale() {
    let mut sim = batch(20, 200);
    sim.run(60);
    assert_eq!(sim.ready("i0"), "200/200");
    assert_eq!(sim.created.len(), 200, "each node has all its images of one Pod");
}

#[test]
fn images_that_come_one_after_another_share_a_pod() {
    let mut sim = batch(1, 20);
    for number in 1..5 {
        sim.step(Duration::from_millis(300));
        add(&mut sim, number);
    }
    sim.step(Duration::from_millis(300));
    assert_eq!(sim.created.len(), 0);
    assert!(sim.look_again.is_some_and(|at| at <= after(sim.now, Duration::from_secs(1))));
    sim.run(20);
    assert_eq!(sim.created.len(), 20);
    assert!(sim.created.iter().all(|(_, _, record)| record.pulls.len() == 5));
}

#[test]
fn an_image_that_is_not_decided_about_is_waited_for_but_not_for_ever() {
    for comes in [true, false] {
        let mut sim = batch(3, 20);
        let undecided = sim.routed.remove("uid-i2").unwrap();
        sim.run(10);
        assert_eq!(sim.created.len(), 0);
        if comes {
            sim.routed.insert("uid-i2".into(), undecided);
        }
        sim.run(20);
        assert_eq!(sim.created.len(), 20);
        let expected = if comes { 3 } else { 2 };
        assert!(sim.created.iter().all(|(_, _, record)| record.pulls.len() == expected));
    }
}

#[test]
fn images_that_differ_in_what_concerns_the_pod_do_not_share_one() {
    for other in [
        json!({"policyRef": {"name": "q"}}),
        json!({"tolerations": [{"operator": "Exists"}]}),
        json!({"imagePullSecrets": [{"name": "s"}]}),
        json!({"imagePullPolicy": "IfNotPresent"}),
    ] {
        let mut sim = batch(1, 1);
        let mut spec = json!({"image": "r.io/other", "policyRef": {"name": "p"}});
        spec.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        sim.image("other", &spec);
        sim.run(10);
        assert_eq!(sim.created.len(), 2, "{other}");
    }
}

#[test]
fn priorities_and_turns_do_not_split_a_pod() {
    let mut sim = batch(3, 4);
    let spec = json!({"image": "r.io/i0", "tag": "1", "policyRef": {"name": "p"}, "priority": 9});
    sim.image("i0", &spec);
    sim.run(10);
    assert_eq!(sim.created.len(), 4);
    for (_, _, record) in &sim.created {
        assert_eq!(record.pulls.iter().map(|pull| &*pull.image).collect::<Vec<_>>(), ["i0", "i1", "i2"]);
    }
}

#[test]
fn each_image_has_the_state_of_its_own_container() {
    let mut sim = batch(2, 1);
    sim.pull_time = Duration::from_secs(100);
    sim.run(2);
    sim.change_pod("n0", |pod| {
        let [good, bad] = &mut *pod.containers else { panic!("two containers") };
        good.terminated = Some("Completed".into());
        bad.waiting = Some("ErrImagePull".into());
        bad.problem = Some((PullFailure::NotFound, "not found".into()));
    });
    sim.run(5);
    assert_eq!((sim.ready("i0").as_str(), sim.reason("i0").as_str()), ("1/1", "Cached"));
    assert_eq!((sim.ready("i1").as_str(), sim.reason("i1").as_str()), ("0/1", "ErrImagePull"));
    assert!(sim.pods.is_empty());
    // Only what failed is tried again.
    sim.pull_time = Duration::from_secs(1);
    sim.run(60);
    assert_eq!(sim.created.len(), 2);
    assert_eq!(sim.created[1].2.pulls.len(), 1);
    assert_eq!(sim.ready("i1"), "1/1");
}

#[test]
fn a_pod_stays_while_one_of_its_images_is_pulling() {
    let mut sim = batch(2, 1);
    sim.pull_time = Duration::from_secs(100);
    sim.run(2);
    sim.change_pod("n0", |pod| pod.containers[0].terminated = Some("Completed".into()));
    sim.run(5);
    assert_eq!((sim.ready("i0").as_str(), sim.ready("i1").as_str()), ("1/1", "0/1"));
    assert_eq!(sim.pods.len(), 1);
    sim.restart();
    sim.run(20);
    assert_eq!((sim.pods.len(), sim.created.len()), (1, 1), "and is taken over as it is");
    assert_eq!((sim.ready("i0").as_str(), sim.ready("i1").as_str()), ("1/1", "0/1"));
}

#[test]
fn a_pod_that_did_not_come_is_asked_for_again_as_it_was() {
    let mut sim = batch(2, 1);
    sim.pull_time = Duration::from_secs(100);
    sim.queue = Some(Vec::new());
    sim.run(2);
    let queue = sim.queue.take().unwrap();
    let [Action::Create(first)] = &*queue else { panic!("{queue:?}") };
    // The API server does not answer in time.
    sim.warming.created(&first.name, sim.now);
    add(&mut sim, 2);
    sim.run(5);
    let pulls: Vec<_> = sim.created.iter().map(|(_, _, record)| record.pulls.len()).collect();
    assert_eq!(pulls, [1], "the third image has a Pod of its own");
    sim.run(10);
    assert_eq!((sim.created.len(), &sim.created[1].2), (2, &first.order.record), "the first may still come");
}

#[test]
fn a_new_lease_holder_waits_for_the_last_pods_of_the_former_one() {
    let mut sim = batch(2, 1);
    sim.pull_time = Duration::from_secs(100);
    sim.run(2);
    let (name, late) = sim.pods.pop_first().unwrap();
    sim.restart();
    add(&mut sim, 2);
    sim.run(9);
    assert_eq!(sim.created.len(), 1);
    sim.pods.insert(name, late);
    sim.run(5);
    let pulls: Vec<_> = sim.created.iter().map(|(_, _, record)| record.pulls.len()).collect();
    assert_eq!(pulls, [2, 1], "only what the late Pod does not pull");
}

#[test]
fn an_image_that_is_deleted_during_its_pull_does_not_take_the_pod_from_the_others() {
    let mut sim = batch(3, 1);
    sim.pull_time = Duration::from_secs(20);
    sim.run(5);
    sim.images.retain(|image| image.metadata.name.as_deref() != Some("i1"));
    sim.routed.remove("uid-i1");
    // The garbage collector takes the owner off the Pod.
    let record = Record::clone(&sim.pod_on("n0").record);
    let owners: [Arc<str>; 2] = ["uid-i0".into(), "uid-i2".into()];
    let read = Record::read(&record.write(), &record.pod_name(), &owners).unwrap();
    sim.change_pod("n0", |pod| pod.record = Arc::new(read));
    sim.run(30);
    assert_eq!((sim.created.len(), sim.pods.len()), (1, 0), "pulled once, and no Pod is left");
    assert_eq!((sim.ready("i0").as_str(), sim.ready("i2").as_str()), ("1/1", "1/1"));
}
