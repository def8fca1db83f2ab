//! Failures, trials and their meaning, at moments that the tests choose.

use proptest::prelude::*;

use super::*;

fn breaker() -> (CircuitBreaker, Instant) {
    let now = Instant::now();
    (CircuitBreaker::new(BreakerSettings::default(), now), now)
}

fn after(now: Instant, millis: u64) -> Instant {
    now + Duration::from_millis(millis)
}

fn server_error(request: u64) -> CallFailure {
    CallFailure::ServerError { request }
}

#[test]
fn one_timeout_is_enough_three_quick_failures_are_needed() {
    let (mut breaker, now) = breaker();
    assert!(breaker.failed(CallFailure::TimedOut, now, after(now, 1000)));
    assert!(!breaker.admits(after(now, 1001)));

    let (mut breaker, now) = self::breaker();
    assert!(!breaker.failed(CallFailure::Disconnected, now, now));
    assert!(!breaker.failed(CallFailure::Disconnected, now, now));
    assert!(breaker.admits(now));
    assert!(breaker.failed(CallFailure::Disconnected, now, now));
    assert!(!breaker.admits(now));
}

#[test]
fn a_complete_answer_clears_failures_and_one_that_began_does_not() {
    for is_complete in [true, false] {
        let (mut breaker, now) = breaker();
        breaker.failed(CallFailure::Disconnected, now, now);
        breaker.failed(CallFailure::Disconnected, now, now);
        breaker.answered(is_complete, after(now, 1));
        assert_eq!(breaker.failed(CallFailure::Disconnected, after(now, 2), after(now, 3)), !is_complete);
        assert_eq!(breaker.admits(after(now, 4)), is_complete);
    }
}

#[test]
fn a_slow_call_says_nothing_when_others_were_answered_meanwhile() {
    let (mut breaker, now) = breaker();
    breaker.answered(true, after(now, 500));
    assert!(!breaker.failed(CallFailure::TimedOut, now, after(now, 4000)));
    assert!(breaker.admits(after(now, 4000)));
}

#[test]
fn answers_on_old_connections_neither_prevent_nor_end_an_outage_that_a_check_found() {
    let (mut breaker, now) = breaker();
    breaker.answered(true, after(now, 500));
    assert!(breaker.trip(after(now, 500)), "whatever was answered meanwhile");
    breaker.answered(true, after(now, 600));
    assert!(!breaker.admits(after(now, 600)));
    let back = trial(&mut breaker, TrialResult::Alive, after(now, 600));
    assert!(breaker.admits(back));
}

#[test]
fn trials_come_at_growing_distances_until_one_is_answered() {
    let (mut breaker, mut now) = breaker();
    breaker.failed(CallFailure::TimedOut, now, now);
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let due = trial(&mut breaker, TrialResult::Dead, now);
        pauses.push((due - now).as_secs());
        now = due;
        assert!(!breaker.admits(now));
    }
    assert_eq!(pauses, [2, 4, 8, 16, 30, 30]);
    now = trial(&mut breaker, TrialResult::Alive, now);
    assert!(breaker.admits(now));
    assert_eq!(breaker.next_trial(now), None);
    breaker.trip(now);
    assert_eq!(breaker.next_trial(now), Some(now + BreakerSettings::default().first_pause), "from the start");
}

#[test]
fn a_registry_that_fails_at_two_requests_may_answer_others() {
    for failure in [server_error, |request| CallFailure::BrokenOff { request }] {
        let (mut breaker, now) = breaker();
        let mut time = 0;
        let mut fail = |request| {
            time += 2;
            breaker.failed(failure(request), after(now, time), after(now, time + 1))
        };
        assert!(!(0..10).any(|count| fail(count % 2)), "however often they are repeated");
        assert!(fail(2), "it fails at whatever it is asked");
    }
    let (mut breaker, now) = self::breaker();
    for moment in 0..10 {
        let asked = after(now, 2 * moment);
        assert!(!breaker.failed(server_error(moment), asked, asked));
        breaker.answered(true, after(asked, 1));
    }
}

#[test]
fn bodies_that_break_off_at_the_same_moment_are_one_failure() {
    let (mut breaker, now) = breaker();
    let broke = |request| CallFailure::BrokenOff { request };
    assert!(!(0..10).any(|request| breaker.failed(broke(request), now, after(now, 1))));
    assert!(!breaker.failed(broke(10), after(now, 2), after(now, 3)));
    assert!(breaker.failed(broke(11), after(now, 4), after(now, 5)));
}

fn trial(breaker: &mut CircuitBreaker, result: TrialResult, now: Instant) -> Instant {
    let due = breaker.next_trial(now).expect("an open circuit has a trial due");
    breaker.end_trial(result, 0.0, due);
    due
}

#[test]
fn after_an_unclear_trial_the_next_call_decides() {
    let unclear = |breaker: &mut CircuitBreaker, now| {
        let due = trial(breaker, TrialResult::Unclear, now);
        assert!(breaker.admits(due) && !breaker.is_open());
        assert_eq!(breaker.next_trial(due), None, "callers find out");
        due
    };
    let (mut breaker, mut now) = breaker();
    breaker.failed(CallFailure::TimedOut, now, now);
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let due = unclear(&mut breaker, now);
        pauses.push((due - now).as_secs());
        assert!(breaker.failed(server_error(1), due, due), "one failure is enough now");
        now = due;
    }
    assert_eq!(pauses, [2, 4, 8, 16, 30, 30]);
    now = unclear(&mut breaker, now);
    breaker.answered(true, now);
    assert!(!breaker.failed(CallFailure::Disconnected, after(now, 1), after(now, 1)), "it is back as before");
}

#[test]
fn a_registry_that_asks_to_be_left_alone_is() {
    for (rest, expected) in [(1, 2), (10, 10), (3600, 60)] {
        let (mut breaker, now) = breaker();
        breaker.postpone(Duration::from_secs(rest), now);
        assert!(breaker.admits(now), "that alone is no failure");
        breaker.failed(CallFailure::TimedOut, now, now);
        breaker.postpone(Duration::from_secs(rest), now);
        assert_eq!(breaker.next_trial(now), Some(now + Duration::from_secs(expected)));
    }
}

#[test]
fn a_registry_that_no_caller_asks_for_is_forgotten() {
    let (mut breaker, now) = breaker();
    breaker.failed(CallFailure::TimedOut, now, now);
    let later = now + Duration::from_secs(601);
    assert_eq!(breaker.next_trial(later), None);
    assert!(breaker.admits(later), "the next caller finds out afresh");
}

#[derive(Clone, Debug)]
enum Event {
    Answer,
    Failure(CallFailure, u64),
    Ask,
    FailedCheck,
    Trial(TrialResult),
}

fn event() -> impl Strategy<Value = Event> {
    let failure = prop_oneof![
        Just(CallFailure::Disconnected),
        Just(CallFailure::TimedOut),
        (0_u64..4).prop_map(server_error),
        (0_u64..4).prop_map(|request| CallFailure::BrokenOff { request }),
    ];
    prop_oneof![
        Just(Event::Answer),
        (failure, 0_u64..5000).prop_map(|(failure, took)| Event::Failure(failure, took)),
        Just(Event::Ask),
        Just(Event::FailedCheck),
        prop_oneof![Just(TrialResult::Alive), Just(TrialResult::Unclear), Just(TrialResult::Dead)]
            .prop_map(Event::Trial),
    ]
}

proptest! {
    #[test]
    fn an_open_circuit_always_has_a_trial_due_soon(
        events in proptest::collection::vec((0_u64..3000, event()), 0..200),
    ) {
        let (mut breaker, mut now) = breaker();
        for (pause, event) in events {
            now += Duration::from_millis(pause);
            let was_open = breaker.is_open();
            match event {
                Event::Answer => {
                    breaker.answered(true, now);
                    prop_assert_eq!(breaker.is_open(), was_open, "only a trial closes it");
                }
                Event::Failure(failure, took) => {
                    let started = now;
                    now += Duration::from_millis(took);
                    let opened = breaker.failed(failure, started, now);
                    prop_assert_eq!(opened, breaker.is_open() && !was_open);
                }
                Event::Ask => { breaker.admits(now); }
                Event::FailedCheck => {
                    prop_assert_eq!(breaker.trip(now), !was_open);
                    prop_assert!(breaker.is_open());
                }
                Event::Trial(result) => {
                    if breaker.next_trial(now).is_some() {
                        breaker.end_trial(result, 0.5, now);
                        prop_assert_eq!(breaker.admits(now), result != TrialResult::Dead);
                    }
                }
            }
            if !breaker.admits(now) {
                let due = breaker.next_trial(now).expect("an open circuit is tried again");
                prop_assert!(due <= now + BreakerSettings::default().longest_pause);
            }
        }
    }
}
