//! Retries with exponential back-off.

use std::time::Duration;

pub use fairlead_domain::backoff::{Backoff, jittered};

/// For requests to the API server: short at first, so that a restart of it is over quickly.
const REQUESTS: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(8)).with_jitter(0.5);

/// Failures in a row.
#[derive(Debug)]
pub struct Retry {
    backoff: Backoff,
    failures: u32,
}

impl Default for Retry {
    fn default() -> Self {
        Self::new(REQUESTS)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_starts_anew_and_a_thousand_failures_are_no_overflow() {
        let mut retry = Retry::default();
        assert!((0..1000).all(|_| retry.failed() <= Duration::from_secs(12)));
        retry.reset();
        assert!(retry.failed() <= Duration::from_millis(750));
    }
}
