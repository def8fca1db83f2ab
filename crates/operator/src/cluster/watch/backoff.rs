//! Pauses between attempts that fail: short at first, so that a restart of the API server is over quickly, longer while
//! it stays away, and never the same for everybody, so that they do not come back at the same instant.

use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(8);

#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after one more failure. `chance` in 0..1 moves it by up to half either way.
    pub(crate) fn next(&mut self, chance: f64) -> Duration {
        let doubled = SHORTEST.saturating_mul(1 << self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        jittered(doubled.min(LONGEST), 0.5, chance)
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// `length`, changed by up to `spread` of it either way.
pub(crate) fn jittered(length: Duration, spread: f64, chance: f64) -> Duration {
    length.mul_f64(1.0 - spread + 2.0 * spread * chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_start_anew() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..6).map(|_| backoff.next(0.5).as_millis()).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 8000]);
        backoff.reset();
        assert_eq!(backoff.next(0.0).as_millis(), 250);
    }

    #[test]
    fn a_thousand_failures_are_no_overflow() {
        let mut backoff = Backoff::default();
        assert!((0..1000).all(|_| backoff.next(1.0) <= Duration::from_secs(12)));
    }
}
