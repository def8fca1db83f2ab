use super::*;

/// Five looks in a hundred seconds: a tick of twenty.
const PACE: Pace = Pace { interval: Duration::from_secs(100), most: 5 };

fn pace(_: &str) -> Pace {
    PACE
}

/// Every image with the second of its last look.
fn looks(tracked: &[(&str, Option<i64>)]) -> Looks {
    let mut looks = Looks::default();
    track(&mut looks, tracked);
    looks
}

fn track(looks: &mut Looks, tracked: &[(&str, Option<i64>)]) {
    looks.sync(tracked.iter().map(|(image, last)| (reference(image), last.map(at))));
}

fn next(looks: &mut Looks, now: i64) -> (Vec<String>, Option<i64>) {
    let (images, wake) = looks.next(&pace, at(now));
    let images = images.iter().map(|image| image.as_str().to_owned()).collect();
    (images, wake.map(|wake| wake.as_second() - at(0).as_second()))
}

fn fine(looks: &mut Looks, image: &str, now: i64) {
    looks.looked(&reference(image), RegistryAnswer::Fine, at(now), 0.5);
}

/// The images that are looked at from now on, each look taking no time, with the second of each.
fn sequence(looks: &mut Looks, from: i64, count: usize) -> Vec<(String, i64)> {
    let (mut now, mut done) = (from, Vec::new());
    while done.len() < count {
        let (images, wake) = next(looks, now);
        for image in &images {
            fine(looks, image, now);
            done.push((image.clone(), now));
        }
        if images.is_empty() {
            now = wake.expect("there is something to wait for");
        }
    }
    done
}

fn seconds(sequence: &[(String, i64)]) -> Vec<(&str, i64)> {
    sequence.iter().map(|(image, second)| (image.as_str(), *second)).collect()
}

#[test]
fn ticks_of_the_defaults() {
    let tick = |hours, most| Pace { interval: Duration::from_hours(hours), most }.tick();
    assert_eq!(tick(3, 25), Duration::from_secs(7 * 60 + 12));
    assert_eq!(tick(1, 6), Duration::from_mins(10));
    assert_eq!(tick(1, 0), Duration::from_hours(1), "nonsense that configuration refuses");
}

#[test]
fn never_looked_at_first_then_the_oldest_and_ties_by_name() {
    let mut looks =
        looks(&[("r.io/d:1", None), ("r.io/b:1", Some(-50)), ("r.io/c:1", Some(-90)), ("r.io/a:1", None)]);
    assert_eq!(
        seconds(&sequence(&mut looks, 0, 6)),
        [
            ("r.io/a:1", 0),
            ("r.io/d:1", 20),
            ("r.io/c:1", 40),
            ("r.io/b:1", 60),
            ("r.io/a:1", 80),
            ("r.io/d:1", 100)
        ]
    );
    assert_eq!(looks.lap("r.io"), Some(Duration::from_secs(80)));
}

#[test]
fn a_restart_waits_for_the_rest_of_the_tick() {
    let mut looks = looks(&[("r.io/a:1", Some(-15)), ("r.io/b:1", None), ("q.io/a:1", Some(-25))]);
    assert_eq!(next(&mut looks, 0), (vec!["q.io/a:1".to_owned()], Some(5)));
    assert_eq!(next(&mut looks, 5), (vec!["r.io/b:1".to_owned()], None));
}

#[test]
fn registries_are_looked_at_side_by_side_and_one_that_hangs_holds_up_no_other() {
    let mut looks = looks(&[("hangs.io/a:1", None), ("hangs.io/b:1", None), ("r.io/a:1", None)]);
    assert_eq!(next(&mut looks, 0).0, ["hangs.io/a:1", "r.io/a:1"]);
    fine(&mut looks, "r.io/a:1", 1);
    assert_eq!(next(&mut looks, 1), (vec![], Some(21)));
    assert_eq!(next(&mut looks, 21).0, ["r.io/a:1"]);
    assert_eq!(next(&mut looks, 1_000_000), (vec![], None), "nothing to wait for but the end of looks");
    fine(&mut looks, "hangs.io/a:1", 1_000_000);
    assert_eq!(next(&mut looks, 1_000_000).1, Some(1_000_020), "a tick after the end of the long look");
    assert_eq!(next(&mut looks, 1_000_020).0, ["hangs.io/b:1"]);
}

#[test]
fn a_registry_that_fails_is_looked_at_less_and_less() {
    let mut looks = looks(&[("r.io/a:1", None), ("r.io/b:1", None)]);
    let mut now = 0;
    let mut waits = Vec::new();
    for _ in 0..5 {
        let (images, _) = next(&mut looks, now);
        looks.looked(&reference(&images[0]), RegistryAnswer::Failed, at(now), 1.0);
        let wake = next(&mut looks, now).1.unwrap();
        waits.push(wake - now);
        now = wake;
    }
    assert_eq!(waits, [40, 80, 100, 100, 100], "doubled each time, up to the whole interval");
    let (images, _) = next(&mut looks, now);
    fine(&mut looks, &images[0], now);
    assert_eq!(next(&mut looks, now).1, Some(now + 20), "until it answers");
}

#[test]
fn chance_spreads_back_off_but_never_below_a_tick() {
    for (jitter, wait) in [(0.0, 32), (0.5, 36), (1.0, 40), (-3.0, 32), (7.0, 40)] {
        let mut looks = looks(&[("r.io/a:1", None)]);
        next(&mut looks, 0);
        looks.looked(&reference("r.io/a:1"), RegistryAnswer::Failed, at(0), jitter);
        assert_eq!(next(&mut looks, 0).1, Some(wait), "{jitter}");
    }
    let slow = |_: &str| Pace { interval: Duration::from_secs(10), most: 1 };
    let mut looks = looks(&[("r.io/a:1", None)]);
    looks.next(&slow, at(0));
    looks.looked(&reference("r.io/a:1"), RegistryAnswer::Failed, at(0), 0.0);
    assert_eq!(looks.next(&slow, at(0)).1, Some(at(10)));
}

#[test]
fn a_registry_that_names_a_time_is_left_alone_until_then() {
    for (until, wake) in [(5, 20), (500, 500), (10_000_000, 24 * 3600)] {
        let mut looks = looks(&[("r.io/a:1", None)]);
        next(&mut looks, 0);
        looks.looked(&reference("r.io/a:1"), RegistryAnswer::Until(at(until)), at(0), 0.5);
        assert_eq!(next(&mut looks, 0), (vec![], Some(wake)));
        assert_eq!(next(&mut looks, wake).0, ["r.io/a:1"]);
        fine(&mut looks, "r.io/a:1", wake);
        assert_eq!(next(&mut looks, wake).1, Some(wake + 20));
    }
}

#[test]
fn an_image_may_leave_while_it_is_looked_at() {
    let mut looks = looks(&[("r.io/a:1", None), ("r.io/b:1", None)]);
    assert_eq!(next(&mut looks, 0).0, ["r.io/a:1"]);
    track(&mut looks, &[("r.io/b:1", None)]);
    assert_eq!(next(&mut looks, 30).0, [""; 0], "its look is still under way");
    fine(&mut looks, "r.io/a:1", 31);
    assert_eq!(next(&mut looks, 31), (vec![], Some(51)));
    assert_eq!(seconds(&sequence(&mut looks, 31, 2)), [("r.io/b:1", 51), ("r.io/b:1", 71)]);
}

#[test]
fn images_that_come_and_go_are_looked_at_no_more_often() {
    let mut looks = looks(&[("r.io/a:1", None)]);
    next(&mut looks, 0);
    fine(&mut looks, "r.io/a:1", 0);
    track(&mut looks, &[]);
    assert_eq!(next(&mut looks, 1), (vec![], None));
    assert_eq!((looks.lap("r.io"), looks.hosts().count()), (None, 0));
    track(&mut looks, &[("r.io/new:1", None)]);
    assert_eq!(next(&mut looks, 2), (vec![], Some(20)));
    track(&mut looks, &[]);
    next(&mut looks, 20);
    track(&mut looks, &[("r.io/new:1", None)]);
    assert_eq!(next(&mut looks, 20).0, ["r.io/new:1"]);
}

#[test]
fn copies_that_are_made_all_the_time_do_not_put_looks_off() {
    let mut looks = looks(&[("r.io/old:1", Some(-1000)), ("r.io/new:1", Some(-5))]);
    for now in 0..15 {
        assert_eq!(next(&mut looks, now).0, [""; 0]);
        let made = format!("r.io/made:{now}");
        track(&mut looks, &[("r.io/old:1", Some(-1000)), ("r.io/new:1", Some(-5)), (&made, Some(now))]);
    }
    assert_eq!(next(&mut looks, 15).0, ["r.io/old:1"]);
}

#[test]
fn what_is_known_here_outlives_a_record_that_lags() {
    let mut looks = looks(&[("r.io/a:1", Some(-100)), ("r.io/b:1", Some(-90))]);
    assert_eq!(next(&mut looks, 0).0, ["r.io/a:1"]);
    fine(&mut looks, "r.io/a:1", 0);
    track(&mut looks, &[("r.io/a:1", Some(-100)), ("r.io/b:1", Some(-90))]);
    assert_eq!(next(&mut looks, 20).0, ["r.io/b:1"]);
}

#[test]
fn of_several_records_of_an_image_the_oldest_counts() {
    for records in [[None, Some(-30)], [Some(-30), None], [Some(-30), Some(-100)], [Some(-100), Some(-30)]] {
        let [one, other] = records.map(|record| ("r.io/b:1", record));
        let mut looks = looks(&[one, ("r.io/a:1", Some(-50)), other]);
        assert_eq!(next(&mut looks, 0).0, ["r.io/b:1"], "{records:?}");
    }
}

#[test]
fn an_object_that_starts_to_track_a_known_image_hears_of_it_soon() {
    let mut looks = looks(&[("r.io/a:1", Some(-30)), ("r.io/b:1", Some(-90)), ("r.io/c:1", Some(-80))]);
    let both =
        [("r.io/a:1", Some(-30)), ("r.io/b:1", Some(-90)), ("r.io/c:1", Some(-80)), ("r.io/a:1", None)];
    track(&mut looks, &both);
    assert_eq!(next(&mut looks, 0).0, ["r.io/a:1"]);
    fine(&mut looks, "r.io/a:1", 0);
    for lagging in
        [&both[..], &[("r.io/a:1", None), ("r.io/b:1", None), ("r.io/c:1", None), ("r.io/a:1", Some(0))]]
    {
        track(&mut looks, lagging);
        assert_eq!(next(&mut looks, 1).1, Some(20));
    }
    assert_eq!(seconds(&sequence(&mut looks, 20, 3)), [("r.io/b:1", 20), ("r.io/c:1", 40), ("r.io/a:1", 60)]);
}

#[test]
fn clocks_that_ran_ahead_keep_nothing_waiting() {
    let mut looks = looks(&[("r.io/a:1", Some(1_000_000)), ("r.io/b:1", Some(-50))]);
    assert_eq!(next(&mut looks, 0), (vec![], Some(20)), "as if it had been now");
    assert_eq!(seconds(&sequence(&mut looks, 5, 3)), [("r.io/b:1", 20), ("r.io/a:1", 40), ("r.io/b:1", 60)]);
}

#[test]
fn a_clock_that_was_set_back_makes_no_wait_longer_than_a_day() {
    let mut looks = looks(&[("r.io/a:1", None)]);
    next(&mut looks, 1_000_000);
    looks.looked(&reference("r.io/a:1"), RegistryAnswer::Until(at(1_050_000)), at(1_000_000), 0.5);
    assert_eq!(next(&mut looks, 0).1, Some(24 * 3600));
    assert_eq!(next(&mut looks, 24 * 3600).0, ["r.io/a:1"]);
}

#[test]
fn each_registry_has_its_own_pace_and_case_does_not_matter() {
    let pace = |host: &str| match host {
        "slow.io:5000" => Pace { interval: Duration::from_secs(100), most: 1 },
        "fast.io" => PACE,
        other => panic!("there is no {other}"),
    };
    let mut looks = looks(&[
        ("SLOW.io:5000/a:1", None),
        ("slow.io:5000/b:1", None),
        ("fast.io/a:1", None),
        ("FAST.io:443/b:1", None),
    ]);
    let (first, _) = looks.next(&pace, at(0));
    assert_eq!(first.len(), 2, "two spellings are one registry: {first:?}");
    for image in first {
        looks.looked(&image, RegistryAnswer::Fine, at(0), 0.5);
    }
    assert_eq!(looks.next(&pace, at(0)), (vec![], Some(at(20))));
    assert_eq!(looks.hosts().map(|host| &**host).collect::<Vec<_>>(), ["fast.io", "slow.io:5000"]);
    assert_eq!(looks.lap("slow.io:5000"), Some(Duration::from_secs(200)));
}

#[test]
fn the_end_of_an_unknown_look_says_nothing() {
    let mut looks = looks(&[("r.io/a:1", None)]);
    fine(&mut looks, "q.io/a:1", 0);
    assert_eq!(next(&mut looks, 0).0, ["r.io/a:1"]);
}
