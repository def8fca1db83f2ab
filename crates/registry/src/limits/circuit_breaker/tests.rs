//! Failures, trials and what both say about a registry, at moments that the tests choose.

use proptest::prelude::*;

use super::*;

fn breaker() -> (CircuitBreaker, Instant) {
    let now = Instant::now();
    (CircuitBreaker::new(BreakerSettings::default(), now), now)
}

fn after(now: Instant, millis: u64) -> Instant {
    now + Duration::from_millis(millis)
}

#[test]
fn one_silence_is_enough_three_quick_failures_are_needed() {
    let (mut breaker, now) = breaker();
    assert!(breaker.record(Health::Silent, now, after(now, 1000)));
    assert!(!breaker.admits(after(now, 1001)));

    let (mut breaker, now) = self::breaker();
    assert!(!breaker.record(Health::Failed, now, now));
    assert!(!breaker.record(Health::Failed, now, now));
    assert!(breaker.admits(now));
    assert!(breaker.record(Health::Failed, now, now));
    assert!(!breaker.admits(now));
}

#[test]
fn an_answer_wipes_the_slate() {
    let (mut breaker, now) = breaker();
    breaker.record(Health::Failed, now, now);
    breaker.record(Health::Failed, now, now);
    breaker.record(Health::Answered, now, after(now, 1));
    assert!(!breaker.record(Health::Failed, after(now, 2), after(now, 3)));
    assert!(breaker.admits(after(now, 4)));
}

#[test]
fn a_slow_call_says_nothing_when_others_were_answered_meanwhile() {
    let (mut breaker, now) = breaker();
    breaker.record(Health::Answered, now, after(now, 500));
    assert!(!breaker.record(Health::Silent, now, after(now, 4000)));
    assert!(breaker.admits(after(now, 4000)));
}

#[test]
fn answers_on_old_connections_neither_prevent_nor_end_an_outage_that_a_check_found() {
    let (mut breaker, now) = breaker();
    breaker.record(Health::Answered, now, after(now, 500));
    assert!(breaker.trip(after(now, 500)), "whatever was answered meanwhile");
    breaker.record(Health::Answered, now, after(now, 600));
    assert!(!breaker.admits(after(now, 600)));
    let back = trial(&mut breaker, TrialOutcome::Alive, after(now, 600));
    assert!(breaker.admits(back));
}

#[test]
fn trials_come_at_growing_distances_until_one_is_answered() {
    let (mut breaker, start) = breaker();
    breaker.record(Health::Silent, start, start);
    let mut now = start;
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let due = breaker.next_trial(now).expect("an open breaker has a trial due");
        pauses.push((due - now).as_secs());
        now = due;
        breaker.begin_trial();
        assert!(!breaker.admits(now), "nobody goes through while a trial is under way");
        breaker.end_trial(TrialOutcome::Dead, 0.0, now);
    }
    assert_eq!(pauses, [2, 4, 8, 16, 30, 30]);
    now = breaker.next_trial(now).unwrap();
    breaker.begin_trial();
    breaker.end_trial(TrialOutcome::Alive, 0.0, now);
    assert!(breaker.admits(now));
    assert_eq!(breaker.next_trial(now), None);
}

#[test]
fn a_registry_that_errs_at_two_questions_may_answer_others() {
    let (mut breaker, now) = breaker();
    let mut err = |question| breaker.record(Health::Erred { question }, now, now);
    assert!(!(0..10).any(|time| err(time % 2)), "however often they are asked");
    assert!(err(2), "it errs at whatever it is asked");

    let (mut breaker, now) = self::breaker();
    for moment in 0..10 {
        let asked = after(now, 2 * moment);
        assert!(!breaker.record(Health::Erred { question: moment }, asked, asked));
        breaker.record(Health::Answered, asked, after(asked, 1));
    }
}

fn trial(breaker: &mut CircuitBreaker, outcome: TrialOutcome, now: Instant) -> Instant {
    let due = breaker.next_trial(now).expect("an open breaker has a trial due");
    breaker.begin_trial();
    breaker.end_trial(outcome, 0.0, due);
    due
}

/// How often a registry can be unwell at these questions, one after the other, before the breaker opens.
fn bears(breaker: &mut CircuitBreaker, questions: &[u64], now: Instant) -> usize {
    let opens = |question: &u64| breaker.record(Health::Unwell { question: *question }, now, now);
    questions.iter().position(opens).unwrap_or(questions.len())
}

#[test]
fn a_registry_that_is_well_but_for_one_question_errs_at_it() {
    let (mut breaker, now) = breaker();
    assert_eq!(bears(&mut breaker, &[1, 1, 1], now), 2, "it may be so whatever it is asked");
    let now = after(trial(&mut breaker, TrialOutcome::Alive, now), 1);
    assert_eq!(bears(&mut breaker, &[1; 9], now), 9, "the trial has shown that it is not");
    assert_eq!(bears(&mut breaker, &[1, 2, 2, 3], now), 3, "it fails at whatever it is asked");
    let now = after(trial(&mut breaker, TrialOutcome::Alive, now), 1);
    assert_eq!(bears(&mut breaker, &[4; 9], now), 9);
    let opened = (0..3).any(|_| breaker.record(Health::Failed, now, now));
    assert!(opened, "failures of the connection are not about a question");
    let now = trial(&mut breaker, TrialOutcome::Dead, now);
    let now = after(trial(&mut breaker, TrialOutcome::Alive, now), 1);
    assert_eq!(bears(&mut breaker, &[1, 1, 1], now), 2, "a failed trial shows that all of it was down");
}

#[test]
fn a_trial_says_nothing_about_failures_at_several_questions_or_none() {
    let unwell = |question| Health::Unwell { question };
    for failures in [
        [unwell(1), unwell(2), unwell(1)],
        [unwell(1), unwell(1), Health::Failed],
        [Health::Failed, unwell(1), unwell(1)],
    ] {
        let (mut breaker, now) = breaker();
        assert!(failures.into_iter().any(|health| breaker.record(health, now, now)));
        let now = after(trial(&mut breaker, TrialOutcome::Alive, now), 1);
        assert_eq!(bears(&mut breaker, &[1; 9], now), 2, "{failures:?}");
    }
    let (mut breaker, now) = self::breaker();
    assert_eq!(bears(&mut breaker, &[1; 9], now), 2);
    let now = trial(&mut breaker, TrialOutcome::Dead, now);
    let now = after(trial(&mut breaker, TrialOutcome::Alive, now), 1);
    assert_eq!(bears(&mut breaker, &[1; 9], now), 2, "it was down and came back");
}

#[test]
fn after_an_unclear_trial_the_next_call_decides() {
    let unclear = |breaker: &mut CircuitBreaker, now| {
        let due = trial(breaker, TrialOutcome::Unclear, now);
        assert!(breaker.admits(due) && !breaker.is_open());
        assert_eq!(breaker.next_trial(due), None, "callers find out");
        due
    };
    let (mut breaker, start) = breaker();
    breaker.record(Health::Silent, start, start);
    let mut now = start;
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let due = unclear(&mut breaker, now);
        pauses.push((due - now).as_secs());
        assert!(breaker.record(Health::Failed, due, due), "one failure is enough now");
        now = due;
    }
    assert_eq!(pauses, [2, 4, 8, 16, 30, 30]);
    now = unclear(&mut breaker, now);
    breaker.record(Health::Answered, now, now);
    assert!(!breaker.record(Health::Failed, after(now, 1), after(now, 1)), "it is back as before");
}

#[test]
fn a_registry_that_asks_to_be_left_alone_is() {
    for (rest, expected) in [(1, 2), (10, 10), (3600, 60)] {
        let (mut breaker, now) = breaker();
        breaker.postpone(Duration::from_secs(rest), now);
        assert!(breaker.admits(now), "that alone is no failure");
        breaker.record(Health::Silent, now, now);
        breaker.postpone(Duration::from_secs(rest), now);
        assert_eq!(breaker.next_trial(now), Some(now + Duration::from_secs(expected)));
    }
}

#[test]
fn a_registry_nobody_asks_for_is_forgotten() {
    let (mut breaker, now) = breaker();
    breaker.record(Health::Silent, now, now);
    let later = now + Duration::from_secs(601);
    assert_eq!(breaker.next_trial(later), None);
    assert!(breaker.admits(later), "the next caller finds out afresh");
}

#[derive(Clone, Debug)]
enum Event {
    Call(Health, u64),
    Ask,
    FailedCheck,
    Trial(TrialOutcome),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (
            prop_oneof![
                Just(Health::Answered),
                Just(Health::Failed),
                Just(Health::Silent),
                (0_u64..4).prop_map(|question| Health::Erred { question }),
                (0_u64..4).prop_map(|question| Health::Unwell { question }),
            ],
            0_u64..5000
        )
            .prop_map(|(health, took)| Event::Call(health, took)),
        Just(Event::Ask),
        Just(Event::FailedCheck),
        prop_oneof![Just(TrialOutcome::Alive), Just(TrialOutcome::Unclear), Just(TrialOutcome::Dead)]
            .prop_map(Event::Trial),
    ]
}

proptest! {
    #[test]
    fn an_open_breaker_always_has_a_trial_due_soon(events in proptest::collection::vec((0_u64..3000, event()), 0..200)) {
        let (mut breaker, mut now) = breaker();
        for (pause, event) in events {
            now += Duration::from_millis(pause);
            match event {
                Event::Call(health, took) => {
                    let (started, was_open) = (now, breaker.is_open());
                    now += Duration::from_millis(took);
                    breaker.record(health, started, now);
                    if health == Health::Answered {
                        prop_assert_eq!(breaker.is_open(), was_open, "only a trial closes it");
                    }
                }
                Event::Ask => { breaker.admits(now); }
                Event::FailedCheck => {
                    let was_open = breaker.is_open();
                    prop_assert_eq!(breaker.trip(now), !was_open);
                    prop_assert!(breaker.is_open());
                }
                Event::Trial(outcome) => {
                    if breaker.next_trial(now).is_some() {
                        breaker.begin_trial();
                        breaker.end_trial(outcome, 0.5, now);
                        prop_assert_eq!(breaker.admits(now), outcome != TrialOutcome::Dead);
                    }
                }
            }
            if !breaker.admits(now) {
                let due = breaker.next_trial(now).expect("an open breaker is tried again");
                prop_assert!(due <= now + BreakerSettings::default().longest_pause);
            }
        }
    }
}
