//! Knowing that a registry is down.
//!
//! Without it, every Pod whose image may come from a dead registry waits for the whole deadline again. The breaker hears
//! of every call; after enough failures in a row it opens, and callers are told at once. While it is open nobody's
//! request is used to find out whether the registry is back, since that caller would be the slow one: the registry's
//! owner sends a trial of its own when [`Breaker::next_trial`] says so. Only where a trial's answer says nothing about the
//! rest of the registry do the next callers find out.
//!
//! The state machine knows no clock and no network.

use std::time::Duration;

use tokio::time::Instant;

/// How quickly a registry is given up, and how often it is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// First time out of service; doubled after each failed trial.
    pub first_pause: Duration,
    /// Longest time between two trials, and so the age at which knowledge of a failure is renewed.
    pub longest_pause: Duration,
    /// After so long without anybody asking, trials stop and the registry counts as unknown again.
    pub interest: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            first_pause: Duration::from_secs(2),
            longest_pause: Duration::from_secs(30),
            interest: Duration::from_mins(10),
        }
    }
}

/// A registry that asks to be left alone knows when it is worth asking again, but it is not believed for longer than this.
const LONGEST_REST: Duration = Duration::from_mins(1);
/// Strikes that open the breaker.
const ENOUGH: u32 = 3;

/// How a call ended, as far as the registry's health is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answered: also with 401, 404 or 429.
    Answered,
    /// It began to answer. That it is there is known; whether the call succeeds is told by how the rest goes.
    Begun,
    /// An answer that had begun broke off. What breaks at one moment, however many answers, is one failure, and so is the
    /// answer to one question, however often it is asked.
    BrokenOff { question: u64 },
    /// It answered that it fails at what was asked, which is told apart by this number. All else may be well, so the same
    /// question is one failure, however often it is asked.
    Erred { question: u64 },
    /// It failed quickly: refused, reset, TLS failure, 502, 503, 504. Three in a row are enough.
    Failed,
    /// It kept a patient caller waiting for nothing, or gave no sign of life when asked for one. Once is enough: the next
    /// caller would fare no better.
    Silent,
}

impl Health {
    fn strikes(self) -> u32 {
        match self {
            Self::Answered | Self::Begun => 0,
            Self::Failed | Self::BrokenOff { .. } | Self::Erred { .. } => 1,
            Self::Silent => ENOUGH,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed {
        strikes: u32,
    },
    Open {
        until: Instant,
        pause: Duration,
    },
    /// A trial is under way; `pause` is what the next opening starts from.
    HalfOpen {
        pause: Duration,
    },
    /// The trial got an answer that says nothing. Callers go through, and what becomes of the first of them decides.
    Doubtful {
        pause: Duration,
    },
}

/// What came of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialOutcome {
    /// The registry is there and well.
    Alive,
    /// Something answered, from which nothing follows.
    Unclear,
    /// No answer, or one that shows that the registry is not well.
    Dead,
}

#[derive(Debug)]
pub struct Breaker {
    patience: Patience,
    state: State,
    last_answer: Option<Instant>,
    last_strike: Option<Instant>,
    /// The questions it erred at since it last answered something.
    erred_at: Vec<u64>,
    last_interest: Instant,
}

impl Breaker {
    pub fn new(patience: Patience, now: Instant) -> Self {
        Self {
            patience,
            state: State::Closed { strikes: 0 },
            last_answer: None,
            last_strike: None,
            erred_at: Vec::new(),
            last_interest: now,
        }
    }

    /// Forgets failures whose reason is gone.
    pub fn reset(&mut self) {
        self.close();
        self.last_strike = None;
    }

    fn close(&mut self) {
        self.state = State::Closed { strikes: 0 };
        self.erred_at.clear();
    }

    /// Whether callers are turned away. Unlike [`Self::admits`], asking this shows no interest in the registry.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. } | State::HalfOpen { .. })
    }

    /// Whether a caller may go through.
    pub fn admits(&mut self, now: Instant) -> bool {
        self.last_interest = now;
        !self.is_open()
    }

    /// Takes note of a call that began at `started`, or whose rest was waited for since then. Returns true when this opened
    /// the breaker, so that somebody begins to send trials.
    pub fn record(&mut self, health: Health, started: Instant, now: Instant) -> bool {
        if matches!(health, Health::Begun | Health::Answered) {
            self.last_answer = Some(now);
            if !matches!((health, self.state), (Health::Begun, State::Closed { .. })) {
                self.close();
            }
            return false;
        }
        // Others were answered while this call failed: the registry is there, this request was the trouble.
        if self.last_answer.is_some_and(|answer| answer > started) {
            return false;
        }
        if matches!(health, Health::BrokenOff { .. })
            && self.last_strike.is_some_and(|strike| strike >= started)
        {
            return false;
        }
        let (strikes, pause) = match self.state {
            State::Closed { strikes } => (strikes, self.patience.first_pause),
            State::Doubtful { pause } => (ENOUGH, self.longer(pause)),
            State::Open { .. } | State::HalfOpen { .. } => return false,
        };
        if let Health::Erred { question } | Health::BrokenOff { question } = health {
            if self.erred_at.contains(&question) {
                return false;
            }
            self.erred_at.push(question);
        }
        self.last_strike = Some(now);
        let strikes = strikes + health.strikes();
        if strikes < ENOUGH {
            self.state = State::Closed { strikes };
            return false;
        }
        self.open(pause, now);
        true
    }

    /// Puts the next trial off for as long as the registry asked to be left alone.
    pub fn postpone(&mut self, rest: Duration, now: Instant) {
        let rest = rest.min(LONGEST_REST);
        if let State::Open { pause, .. } = self.state
            && rest > pause
        {
            self.open(rest, now);
        }
    }

    /// When the next trial is due, or `None` when trials end: the breaker is closed, or nobody has asked for so long that
    /// the registry is forgotten.
    pub fn next_trial(&mut self, now: Instant) -> Option<Instant> {
        let State::Open { until, .. } = self.state else {
            return None;
        };
        if now.saturating_duration_since(self.last_interest) > self.patience.interest {
            self.close();
            return None;
        }
        Some(until)
    }

    /// Marks the beginning of a trial.
    pub fn begin_trial(&mut self) {
        if let State::Open { pause, .. } = self.state {
            self.state = State::HalfOpen { pause };
        }
    }

    /// Takes note of how the trial went. `jitter` in 0..1 spreads the replicas' next trials.
    pub fn end_trial(&mut self, outcome: TrialOutcome, jitter: f64, now: Instant) {
        let State::HalfOpen { pause } = self.state else {
            return;
        };
        match outcome {
            TrialOutcome::Alive => {
                self.last_answer = Some(now);
                self.close();
            }
            TrialOutcome::Unclear => {
                self.state = State::Doubtful { pause };
                self.erred_at.clear();
            }
            TrialOutcome::Dead => {
                self.open(self.longer(pause).mul_f64(1.0 - 0.2 * jitter.clamp(0.0, 1.0)), now);
            }
        }
    }

    fn longer(&self, pause: Duration) -> Duration {
        pause.saturating_mul(2).min(self.patience.longest_pause)
    }

    fn open(&mut self, pause: Duration, now: Instant) {
        self.state = State::Open { until: now + pause, pause };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn breaker() -> (Breaker, Instant) {
        let now = Instant::now();
        (Breaker::new(Patience::default(), now), now)
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

    #[test]
    fn after_an_unclear_trial_the_next_call_decides() {
        let unclear = |breaker: &mut Breaker, now| {
            let due = breaker.next_trial(now).expect("an open breaker has a trial due");
            breaker.begin_trial();
            breaker.end_trial(TrialOutcome::Unclear, 0.0, due);
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
                ],
                0_u64..5000
            )
                .prop_map(|(health, took)| Event::Call(health, took)),
            Just(Event::Ask),
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
                        let started = now;
                        now += Duration::from_millis(took);
                        breaker.record(health, started, now);
                        if health == Health::Answered {
                            prop_assert!(breaker.admits(now));
                        }
                    }
                    Event::Ask => { breaker.admits(now); }
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
                    prop_assert!(due <= now + Patience::default().longest_pause);
                }
            }
        }
    }
}
