//! Exponential back-off: the one way in which anything here waits before it tries again.

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
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, jitter: 0.0 }
    }

    #[must_use]
    pub const fn with_jitter(self, jitter: f64) -> Self {
        Self { jitter, ..self }
    }

    /// The pause after one more failure than `failures`. `chance` in 0..1 is the jitter's.
    pub fn pause(self, failures: u32, chance: f64) -> Duration {
        jittered(self.plain(failures), self.jitter, chance)
    }

    /// The same without jitter.
    pub fn plain(self, failures: u32) -> Duration {
        self.first.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX)).min(self.longest)
    }
}

/// `length`, changed by up to `spread` of it either way.
pub fn jittered(length: Duration, spread: f64, chance: f64) -> Duration {
    length.mul_f64(1.0 - spread + 2.0 * spread * chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(8)).with_jitter(0.5);

    #[test]
    fn pauses_grow_to_a_limit() {
        let grown: Vec<_> = (0..6).map(|failures| PAUSES.pause(failures, 0.5).as_millis()).collect();
        assert_eq!(grown, [500, 1000, 2000, 4000, 8000, 8000]);
        assert_eq!(PAUSES.pause(0, 0.0).as_millis(), 250);
        assert_eq!(PAUSES.pause(9, 1.0).as_millis(), 12_000);
    }

    #[test]
    fn a_billion_failures_are_no_overflow() {
        for failures in [31, 32, 33, 1_000_000_000, u32::MAX] {
            assert_eq!(PAUSES.plain(failures), Duration::from_secs(8));
        }
    }
}
