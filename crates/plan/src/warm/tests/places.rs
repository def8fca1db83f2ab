//! Images that Pods are given from one of several places.

use super::*;

/// What Pods are given: the first of these places that is up.
fn route(sim: &mut Sim, places: &[&str], used: usize) {
    let places: Vec<_> = places.iter().map(|place| reference(place)).collect();
    let routed = sim.routed.get_mut("uid-web").unwrap();
    routed.reference = Ok(places[used].clone());
    routed.places = places.into();
}

#[test]
fn a_mirror_that_is_away_has_nothing_pulled_again() {
    let places = ["mirror.io/web:1", "r.io/web:1"];
    for restarts in [false, true] {
        let mut sim = Sim::simple(0);
        route(&mut sim, &places, 0);
        (0..5).for_each(|number| sim.node(&format!("n{number}"), |_| {}));
        sim.run(10);
        let digest = sim.status("web").resolved_digest;
        route(&mut sim, &places, 1);
        if restarts {
            sim.restart();
        }
        sim.run(10);
        assert_eq!((sim.created.len(), sim.ready("web").as_str()), (5, "5/5"));
        assert_eq!(sim.status("web").resolved_digest, digest);
        sim.node("joined", |_| {});
        sim.run(10);
        assert_eq!((sim.created.len(), sim.ready("web").as_str()), (6, "6/6"));
        assert_eq!(&*sim.created[5].2.pulls[0].reference, "r.io/web:1");
        // When Pods are given the mirror again, the node that has the image from elsewhere gets it from there.
        route(&mut sim, &places, 0);
        sim.run(10);
        assert_eq!((sim.created.len(), sim.ready("web").as_str()), (7, "6/6"));
        assert_eq!(sim.pulled()[6], "joined");
        for used in [1, 0, 1, 0] {
            route(&mut sim, &places, used);
            sim.run(10);
        }
        assert_eq!(sim.created.len(), 7);
        // The node has removed it: under the name that it was pulled by.
        sim.lists("n0", &["mirror.io/web:1", "r.io/pause:3"]);
        sim.run(300);
        route(&mut sim, &places, 1);
        sim.run(10);
        assert_eq!(sim.created.len(), 7);
        sim.lists("n0", &["r.io/pause:3"]);
        sim.run(10);
        assert_eq!((sim.created.len(), sim.ready("web").as_str()), (8, "6/6"));
    }
}

#[test]
fn a_pull_under_way_goes_on_while_another_place_is_used() {
    let places = ["mirror.io/web:1", "r.io/web:1"];
    let mut sim = Sim::simple(2);
    route(&mut sim, &places, 0);
    sim.pull_time = Duration::from_secs(30);
    sim.run(5);
    route(&mut sim, &places, 1);
    sim.run(60);
    assert_eq!((sim.created.len(), sim.ready("web").as_str()), (2, "2/2"));
    // One that fails there is tried elsewhere at once.
    let mut sim = Sim::simple(1);
    route(&mut sim, &places, 0);
    sim.fates.insert("n0".to_owned(), Fate::Waits("ErrImagePull", "connection refused"));
    sim.run(1);
    route(&mut sim, &places, 1);
    sim.run(3);
    sim.fates.clear();
    sim.run(10);
    assert_eq!((sim.created.len(), sim.ready("web").as_str()), (2, "1/1"));
}

#[test]
fn a_refresh_that_fails_elsewhere_takes_nothing_away() {
    let places = ["mirror.io/web:1", "r.io/web:1"];
    for restarts in [false, true] {
        let mut sim = Sim::simple(1);
        let hour = json!({"initial": "1h", "max": "1h"});
        let policy = json!({"minDelayBetweenPulls": "1ms", "repullInterval": "1m", "failureBackoff": hour});
        sim.policy("fast", &policy);
        route(&mut sim, &places, 0);
        sim.run(30);
        let digest = sim.status("web").resolved_digest;
        route(&mut sim, &places, 1);
        sim.fates.insert("n0".to_owned(), Fate::Waits("ErrImagePull", "manifest unknown"));
        sim.run(60);
        assert_eq!(&*sim.created[1].2.pulls[0].reference, "r.io/web:1");
        if restarts {
            sim.restart();
        }
        sim.run(60);
        assert_eq!((sim.ready("web").as_str(), sim.reason("web").as_str()), ("1/1", "ErrImagePull"));
        assert_eq!((sim.created.len(), sim.status("web").consecutive_failures), (2, Some(1)));
        assert!(digest.is_some() && sim.status("web").resolved_digest == digest);
        // What failed at the one place may succeed at the other one.
        sim.fates.clear();
        if restarts {
            sim.run(3600);
        }
        route(&mut sim, &places, 0);
        sim.run(10);
        assert_eq!((sim.ready("web").as_str(), sim.reason("web").as_str()), ("1/1", "Cached"));
    }
}

#[test]
fn other_places_have_nodes_pull_again() {
    let mut sim = Sim::simple(5);
    sim.run(10);
    route(&mut sim, &["mirror.io/web:1", "r.io/web:1"], 0);
    sim.run(10);
    assert_eq!((sim.created.len(), sim.ready("web").as_str()), (10, "5/5"), "a mirror comes");
    sim.restart();
    route(&mut sim, &["r.io/web:1", "mirror.io/web:1"], 0);
    sim.run(10);
    assert_eq!((sim.created.len(), sim.ready("web").as_str()), (15, "5/5"), "it becomes the second");
    route(&mut sim, &["mirror.io/web:1"], 0);
    sim.run(10);
    assert_eq!((sim.created.len(), sim.ready("web").as_str()), (20, "5/5"), "it becomes the only one");
}
