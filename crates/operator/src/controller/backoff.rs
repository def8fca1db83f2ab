//! Exponential back-off with jitter: the one way in which anything here waits before it tries again.

use std::time::Duration;

/// How pauses grow: the first, doubled with every failure, up to the longest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    /// By which part of its length a pause may change either way, so that replicas do not come back at the same
    /// instant.
    jitter: f64,
}

impl Backoff {
    /// For requests to the API server: short at first, so that a restart of it is over quickly.
    pub const REQUESTS: Self = Self::new(Duration::from_millis(500), Duration::from_secs(8)).with_jitter(0.5);

    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, jitter: 0.0 }
    }

    #[must_use]
    pub const fn with_jitter(self, jitter: f64) -> Self {
        Self { jitter, ..self }
    }

    /// The pause after one more failure than `failures`. `chance` in 0..1 is the jitter's.
    pub fn pause(self, failures: u32, chance: f64) -> Duration {
        let doubled = self.first.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX));
        jittered(doubled.min(self.longest), self.jitter, chance)
    }
}

/// Failures in a row.
#[derive(Debug)]
pub struct Retry {
    backoff: Backoff,
    failures: u32,
}

impl Default for Retry {
    fn default() -> Self {
        Self::new(Backoff::REQUESTS)
    }
}

impl Retry {
    pub const fn new(backoff: Backoff) -> Self {
        Self { backoff, failures: 0 }
    }

    /// The pause after one more failure.
    pub fn failed(&mut self) -> Duration {
        let pause = self.backoff.pause(self.failures, fastrand::f64());
        self.failures = self.failures.saturating_add(1);
        pause
    }

    pub const fn reset(&mut self) {
        self.failures = 0;
    }
}

/// `length`, changed by up to `spread` of it either way.
pub fn jittered(length: Duration, spread: f64, chance: f64) -> Duration {
    length.mul_f64(1.0 - spread + 2.0 * spread * chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_start_anew() {
        let pauses: Vec<_> =
            (0..6).map(|failures| Backoff::REQUESTS.pause(failures, 0.5).as_millis()).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 8000]);
        assert_eq!(Backoff::REQUESTS.pause(0, 0.0).as_millis(), 250);
        let mut retry = Retry::default();
        assert!((0..3).all(|_| retry.failed() >= Duration::from_millis(250)));
        retry.reset();
        assert!(retry.failed() <= Duration::from_millis(750));
    }

    #[test]
    fn a_thousand_failures_are_no_overflow() {
        let mut retry = Retry::default();
        assert!((0..1000).all(|_| retry.failed() <= Duration::from_secs(12)));
    }
}
