//! Many nodes and many images.

use fairlead_domain::digest::Digest;

use super::super::memory::{Memory, Outcome, WritePace};
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

/// How long 180 good nodes take to get an image beside 20 others, which fail after this time.
fn time_beside(fate: &Fate, failure_time: Duration) -> Duration {
    time_of_pulls(Duration::from_secs(3), fate, failure_time, |_| {})
}

/// The same for pulls that take so long, where the 20 change in another way once all Pods have started.
fn time_of_pulls(
    pull_time: Duration,
    fate: &Fate,
    failure_time: Duration,
    change: fn(&mut Node),
) -> Duration {
    let mut sim = Sim::new(settings());
    sim.failure_time = Some(failure_time);
    sim.policy("p", &json!({"maxConcurrentNodes": 50, "minDelayBetweenPulls": "100ms"}));
    sim.image("i", &json!({"image": "r.io/i", "policyRef": {"name": "p"}}));
    for number in 0..200 {
        let name = format!("n{number}");
        sim.node(&name, |_| {});
        if number % 10 == 0 {
            sim.fates.insert(name, fate.clone());
        }
    }
    sim.pull_time = pull_time;
    let begun = sim.now;
    sim.step(Duration::from_millis(100));
    (0..20).for_each(|number| sim.node(&format!("n{number}0").replace("n00", "n0"), change));
    let good = |sim: &Sim| sim.status("i").cached_nodes.iter().filter(|name| !name.ends_with('0')).count();
    while good(&sim) < 180 {
        sim.step(Duration::from_millis(100));
        assert!(sim.now < after(begun, Duration::from_mins(10)), "{} good nodes", good(&sim));
    }
    sim.now.duration_since(begun).unsigned_abs()
}

#[test]
fn a_tenth_of_bad_nodes_slows_the_others_by_a_tenth_at_most() {
    let alone = time_beside(&Fate::Pulled, Duration::ZERO);
    for message in ["connection refused", "manifest unknown", "no space left on device", "403 Forbidden"] {
        for failure_time in [Duration::from_millis(100), Duration::from_secs(3)] {
            let beside = time_beside(&Fate::Waits("ErrImagePull", message), failure_time);
            assert!(beside <= alone * 11 / 10, "{message} after {failure_time:?}: {beside:?} of {alone:?}");
        }
    }
}

#[test]
fn nodes_that_die_or_hang_do_not_hold_up_the_others() {
    let minute = Duration::from_mins(1);
    let alone = time_of_pulls(minute, &Fate::Pulled, minute, |_| {});
    let dead = time_of_pulls(minute, &Fate::Pulled, minute, |node| node.ready = false);
    let hanging = time_of_pulls(minute, &Fate::Hangs, minute, |_| {});
    for beside in [dead, hanging] {
        assert!(beside <= alone * 11 / 10, "{beside:?} of {alone:?}");
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

#[test]
fn ledgers_of_many_images_are_written_a_few_at_once_and_none_is_left_out() {
    let mut sim = Sim::simple(1);
    for number in 0..30 {
        let spec = json!({"image": format!("r.io/app{number}"), "tag": "1", "policyRef": {"name": "fast"}});
        sim.image(&format!("app{number}"), &spec);
    }
    sim.run(1);
    assert_eq!(sim.pods.len(), 31);
    // All pulls end at the same time.
    sim.now = after(sim.now, sim.pull_time);
    sim.kubelets();
    for written in [8, 16, 24, 31] {
        sim.round();
        assert_eq!(sim.writes, written);
    }
    sim.run(1);
    assert!(sim.pods.is_empty(), "what is stored is tidied up");
}

#[test]
fn pods_are_gone_soon_after_the_last_pull_however_many_nodes_there_are() {
    let mut sim = warm(1000, 1);
    sim.run(1);
    assert!(sim.pods.is_empty(), "{} Pods wait for the ledger", sim.pods.len());
}

#[test]
fn nothing_is_kept_in_mind_of_pulls_that_are_over() {
    let mut sim = warm(200, 2);
    sim.run(20);
    assert!(sim.warming.due.is_empty(), "{:?}", sim.warming.due);
}

/// How many rows are written while so many images get one row each every tenth of a second.
fn rows_written(images: usize, rows: usize) -> usize {
    let names = (0..images).map(|number| format!("i{number}"));
    let mut memories: Vec<Memory> = names.map(|name| Memory::new(&name, &format!("uid-{name}"))).collect();
    let (mut now, mut written) = (at(0), 0);
    for number in 0..rows {
        now = after(now, Duration::from_millis(100));
        let node: Arc<str> = format!("n{number}").into();
        let result = Ok(Some(Digest::sha256(b"image")));
        let outcome = Outcome { attempt: 1, reference: "r.io/a:1", result, at: now, unlisted: false };
        for memory in &mut memories {
            memory.record(&node, &node, &outcome);
        }
        let dirty = memories.iter().filter(|memory| memory.is_dirty());
        let pace = WritePace { rows: dirty.map(Memory::node_count).sum(), settled: false };
        for memory in &mut memories {
            for draft in memory.drafts(now, 8, pace) {
                written += draft.content.map_or(0, |(spec, _)| spec.nodes.len());
                memory.written(draft.shard, draft.ticket, Some(number.to_string()));
            }
        }
    }
    written
}

#[test]
fn ledgers_of_images_that_are_warmed_together_are_rewritten_less_often() {
    let (alone, together) = (rows_written(1, 1000), rows_written(20, 1000));
    assert!(together < 5 * 20 * 1000, "{together}");
    assert!(together < alone * 20 / 2, "{together} of {alone} each");
}

#[test]
fn nodes_that_join_one_by_one_do_not_have_large_ledgers_written_all_the_time() {
    let mut sim = warm(1000, 1);
    sim.run(20);
    let before = sim.writes;
    for number in 0..40 {
        sim.node(&format!("late{number}"), |_| {});
        (0..5).for_each(|_| sim.step(Duration::from_millis(100)));
    }
    assert!(sim.writes - before <= 2 * 20 / 4 + 2, "{} writes in 20 seconds", sim.writes - before);
    sim.run(10);
    assert_eq!((sim.ready("i0").as_str(), sim.pods.len()), ("1040/1040", 0));
}
