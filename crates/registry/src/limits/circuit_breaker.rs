//! The circuit breaker of one registry.
//!
//! Without it every Pod whose image may come from a dead registry would wait for its whole deadline. Every call reports
//! to the breaker. After three failures in a row, or one timeout, the circuit opens and callers fail at once. While it
//! is open no caller's request is used to find out whether the registry is back: one task sends trials of its own, each
//! on a new connection, when [`CircuitBreaker::next_trial`] says so.
//!
//! The state machine has no clock and no network.

use std::time::Duration;

use fairlead_domain::backoff::Backoff;
use tokio::time::Instant;

/// How often a registry is tried while its circuit is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Time before the first trial; doubled after each trial that fails.
    pub first_pause: Duration,
    /// Longest time between two trials.
    pub longest_pause: Duration,
    /// Trials end, and the registry counts as unknown again, when no caller has asked for this long.
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

/// A `Retry-After` puts the next trial off for at most this long.
const LONGEST_REST: Duration = Duration::from_mins(1);
/// Failures in a row that open the circuit.
const THRESHOLD: u32 = 3;

/// How a call failed. `request` identifies what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// The registry answered with an error of its own. Other requests may succeed, so the same request counts once,
    /// however often it is repeated: one broken image does not take the registry away from all others.
    ServerError { request: u64 },
    /// The body broke off. Counts like a server error; several that break at the same moment count as one.
    BrokenOff { request: u64 },
    /// No connection: refused, reset, or no agreement on TLS.
    Disconnected,
    /// No answer within a reasonable time. One is enough, because the next caller would wait as long.
    TimedOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialResult {
    Alive,
    /// Answered with a server error by a registry that may not serve `/v2/` at all. Callers find out: the circuit
    /// closes and the next failure opens it again.
    Unclear,
    Dead,
}

#[derive(Debug)]
pub struct CircuitBreaker {
    settings: BreakerSettings,
    /// Failures since the last answer.
    failures: u32,
    /// When the next trial is due. Set while the circuit is open.
    open_until: Option<Instant>,
    /// Trials in a row that failed: the next pause is as much longer.
    failed_trials: u32,
    last_answer: Option<Instant>,
    last_failure: Option<Instant>,
    /// The requests whose failures were counted since the last answer.
    failed_requests: Vec<u64>,
    last_interest: Instant,
}

impl CircuitBreaker {
    pub fn new(settings: BreakerSettings, now: Instant) -> Self {
        Self {
            settings,
            failures: 0,
            open_until: None,
            failed_trials: 0,
            last_answer: None,
            last_failure: None,
            failed_requests: Vec::new(),
            last_interest: now,
        }
    }

    /// Closes the circuit and forgets failures.
    pub fn close(&mut self) {
        self.failures = 0;
        self.open_until = None;
        self.failed_trials = 0;
        self.failed_requests.clear();
    }

    /// Time before the next trial if the circuit opens now.
    fn pause(&self) -> Duration {
        let BreakerSettings { first_pause, longest_pause, .. } = self.settings;
        Backoff::new(first_pause, longest_pause).plain(self.failed_trials)
    }

    /// Whether callers are turned away. Does not count as interest in the registry.
    pub fn is_open(&self) -> bool {
        self.open_until.is_some()
    }

    /// How long no caller has asked.
    pub fn idle(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_interest)
    }

    /// Whether a caller may send a request. Counts as interest in the registry.
    pub fn admits(&mut self, now: Instant) -> bool {
        self.last_interest = now;
        !self.is_open()
    }

    /// Records an answer. If its body is still to come, only the body's end clears earlier failures.
    ///
    /// Only a trial closes an open circuit: an answer to a call from before it opened came over an established
    /// connection, which may work although no new one does.
    pub fn answered(&mut self, is_complete: bool, now: Instant) {
        if self.is_open() {
            return;
        }
        self.last_answer = Some(now);
        if is_complete {
            self.close();
        }
    }

    /// Records the failure of a call that began at `started`. Returns true when this opened the circuit.
    pub fn failed(&mut self, failure: CallFailure, started: Instant, now: Instant) -> bool {
        let is_after = |moment: Option<Instant>| moment.is_some_and(|moment| moment >= started);
        // If other calls were answered meanwhile, this request was the problem and not the registry.
        if self.is_open() || self.last_answer.is_some_and(|answer| answer > started) {
            return false;
        }
        if matches!(failure, CallFailure::BrokenOff { .. }) && is_after(self.last_failure) {
            return false;
        }
        if let CallFailure::ServerError { request } | CallFailure::BrokenOff { request } = failure {
            if self.failed_requests.contains(&request) {
                return false;
            }
            self.failed_requests.push(request);
        }
        self.last_failure = Some(now);
        self.failures = if failure == CallFailure::TimedOut { THRESHOLD } else { self.failures + 1 };
        self.failures >= THRESHOLD && self.trip(now)
    }

    /// Opens the circuit, whatever was answered over established connections. Returns true unless it was open.
    pub fn trip(&mut self, now: Instant) -> bool {
        let opens = !self.is_open();
        if opens {
            self.open_until = Some(now + self.pause());
        }
        opens
    }

    /// Puts the next trial off for as long as a `Retry-After` asked.
    pub fn postpone(&mut self, rest: Duration, now: Instant) {
        if let Some(until) = &mut self.open_until {
            *until = (*until).max(now + rest.min(LONGEST_REST));
        }
    }

    /// When the next trial is due. `None` ends the trials: the circuit is closed, or no caller has asked for so long
    /// that the registry is forgotten.
    pub fn next_trial(&mut self, now: Instant) -> Option<Instant> {
        if self.idle(now) > self.settings.interest {
            self.close();
        }
        self.open_until
    }

    /// Records the result of a trial. `jitter` in 0..1 spreads the next trials of several replicas.
    pub fn end_trial(&mut self, result: TrialResult, jitter: f64, now: Instant) {
        if !self.is_open() {
            return;
        }
        let failed_trials = self.failed_trials.saturating_add(1);
        match result {
            TrialResult::Alive => {
                self.close();
                self.last_answer = Some(now);
            }
            TrialResult::Unclear => {
                self.close();
                (self.failures, self.failed_trials) = (THRESHOLD - 1, failed_trials);
            }
            TrialResult::Dead => {
                self.failed_trials = failed_trials;
                self.open_until = Some(now + self.pause().mul_f64(1.0 - 0.2 * jitter.clamp(0.0, 1.0)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
