//! So many requests per second and no more, after a few at once: the API server has others to serve.

use std::time::Duration;

use tokio::time::Instant;

/// How fast something may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub per_second: u32,
    /// How many may follow one another at once after a rest.
    pub burst: u32,
}

/// Lets its caller through at the given rate.
#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    ahead: Duration,
    /// When everything let through so far would have been through at the steady rate.
    spent_until: Instant,
}

impl Pace {
    pub fn new(rate: Rate) -> Self {
        let interval = Duration::from_secs(1) / rate.per_second.max(1);
        Self { interval, ahead: interval * rate.burst.saturating_sub(1), spent_until: Instant::now() }
    }

    /// Waits for its turn. Dropping the future takes none.
    pub async fn turn(&mut self) {
        if let Some(due) = self.spent_until.checked_sub(self.ahead) {
            tokio::time::sleep_until(due).await;
        }
        self.spent_until = self.spent_until.max(Instant::now()) + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_few_pass_at_once_and_the_others_at_the_rate() {
        let mut pace = Pace::new(Rate { per_second: 10, burst: 5 });
        tokio::time::advance(Duration::from_hours(1)).await;
        let begun = Instant::now();
        for _ in 0..5 {
            pace.turn().await;
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        for _ in 0..20 {
            pace.turn().await;
        }
        assert_eq!(begun.elapsed().as_millis(), 2000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_gave_up_has_used_nothing() {
        let mut pace = Pace::new(Rate { per_second: 1, burst: 1 });
        pace.turn().await;
        assert!(tokio::time::timeout(Duration::from_millis(900), pace.turn()).await.is_err());
        let begun = Instant::now();
        pace.turn().await;
        assert_eq!(begun.elapsed().as_millis(), 100);
    }
}
