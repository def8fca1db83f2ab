//! Knowing that a registry is down.
//!
//! Without it, every Pod whose image may come from a dead registry waits for the whole deadline again. The breaker hears
//! of every call; after enough failures in a row it opens, and callers are told at once. While it is open nobody's
//! request is used to find out whether the registry is back, since that caller would be the slow one: the registry's
//! owner sends a trial of its own when [`CircuitBreaker::next_trial`] says so. Only where a trial's answer says nothing about the
//! rest of the registry do the next callers find out.
//!
//! The state machine knows no clock and no network.

use std::time::Duration;

use tokio::time::Instant;

/// How quickly a registry is given up, and how often it is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// First time out of service; doubled after each failed trial.
    pub first_pause: Duration,
    /// Longest time between two trials, and so the age at which knowledge of a failure is renewed.
    pub longest_pause: Duration,
    /// After so long without anybody asking, trials stop and the registry counts as unknown again.
    pub interest: Duration,
}

impl Default for BreakerSettings {
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
    /// It answered with 502, 503 or 504: it is not well, or what is behind it is not. Mostly that goes for whatever it is
    /// asked, and three in a row are enough. But a registry that passes on what others have says so about theirs alone; once
    /// a trial has shown that, this is an error at the question.
    Unwell { question: u64 },
    /// It failed quickly: refused, reset, TLS failure. Three in a row are enough.
    Failed,
    /// It kept a patient caller waiting for nothing. Once is enough: the next caller would fare no better.
    Silent,
}

impl Health {
    fn strikes(self) -> u32 {
        match self {
            Self::Answered | Self::Begun => 0,
            Self::Failed | Self::BrokenOff { .. } | Self::Erred { .. } | Self::Unwell { .. } => 1,
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
pub struct CircuitBreaker {
    patience: BreakerSettings,
    state: State,
    last_answer: Option<Instant>,
    last_strike: Option<Instant>,
    /// The questions it erred at since it last answered something.
    erred_at: Vec<u64>,
    /// The question at which it was unwell, if all strikes are about that one.
    unwell_at: Option<u64>,
    /// It was unwell at one question only, and a trial then found it well. Until a trial fails, being unwell at something
    /// means an error at that.
    errs_when_unwell: bool,
    last_interest: Instant,
}

impl CircuitBreaker {
    pub fn new(patience: BreakerSettings, now: Instant) -> Self {
        Self {
            patience,
            state: State::Closed { strikes: 0 },
            last_answer: None,
            last_strike: None,
            erred_at: Vec::new(),
            unwell_at: None,
            errs_when_unwell: false,
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

    /// How long no caller has asked.
    pub fn idle(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_interest)
    }

    /// Whether a caller may go through.
    pub fn admits(&mut self, now: Instant) -> bool {
        self.last_interest = now;
        !self.is_open()
    }

    /// Takes note of a call that began at `started`, or whose rest was waited for since then. Returns true when this opened
    /// the breaker, so that somebody begins to send trials.
    pub fn record(&mut self, health: Health, started: Instant, now: Instant) -> bool {
        let health = match health {
            Health::Unwell { question } if self.errs_when_unwell => Health::Erred { question },
            health => health,
        };
        if matches!(health, Health::Begun | Health::Answered) {
            // A call that was under way when the breaker opened. Its connection is an old one, and may work on although
            // no new one does: only a trial closes the breaker.
            if self.is_open() {
                return false;
            }
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
        let question = if let Health::Unwell { question } = health { Some(question) } else { None };
        if strikes == 0 {
            self.unwell_at = question;
        } else if self.unwell_at != question {
            self.unwell_at = None;
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

    /// Opens the breaker after a failed liveness check, whatever was answered over established connections meanwhile.
    /// Returns true when this opened it.
    pub fn trip(&mut self, now: Instant) -> bool {
        let pause = match self.state {
            State::Closed { .. } => self.patience.first_pause,
            State::Doubtful { pause } => self.longer(pause),
            State::Open { .. } | State::HalfOpen { .. } => return false,
        };
        self.unwell_at = None;
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
        if self.idle(now) > self.patience.interest {
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
                self.errs_when_unwell |= self.unwell_at.is_some();
                self.last_answer = Some(now);
                self.close();
            }
            TrialOutcome::Unclear => {
                self.state = State::Doubtful { pause };
                self.erred_at.clear();
                self.unwell_at = None;
            }
            TrialOutcome::Dead => {
                (self.unwell_at, self.errs_when_unwell) = (None, false);
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
mod tests;
