//! A token bucket with a reserve for admission.
//!
//! Its state is one instant, until which the budget is spent (the generic cell rate algorithm). A request moves it
//! forward by one interval, and is allowed while it is not further ahead of the clock than the burst permits. Nothing
//! here waits or reads a clock.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

/// The urgency of a request. Admission has a Pod waiting; background work can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    Admission,
    Background,
}

/// Requests per second and burst of one registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    interval: Duration,
    burst: NonZeroU32,
}

/// The slowest rate. An instant this far away can still be represented.
const LONGEST_INTERVAL: Duration = Duration::from_hours(24);

impl Rate {
    /// `requests` per second, above zero and possibly below one, with this burst.
    pub fn per_second(requests: f64, burst: NonZeroU32) -> Self {
        let interval = Duration::try_from_secs_f64(requests.recip()).unwrap_or(LONGEST_INTERVAL);
        Self { interval: interval.min(LONGEST_INTERVAL), burst }
    }

    /// Time between two requests at this rate.
    pub fn interval(&self) -> Duration {
        self.interval
    }
}

/// A rate in use.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    interval: Duration,
    burst: u32,
    /// Part of the burst that background work does not use, kept for a wave of new Pods.
    reserved: u32,
    spent_until: Instant,
}

impl TokenBucket {
    pub fn new(rate: Rate, now: Instant) -> Self {
        let burst = rate.burst.get();
        Self { interval: rate.interval, burst, reserved: burst / 4, spent_until: now }
    }

    /// Takes one request out of the budget, or returns when one will be available.
    pub fn take(&mut self, class: Class, now: Instant) -> Result<(), Instant> {
        let ready = self.ready_at(class, now);
        if ready > now {
            return Err(ready);
        }
        self.spent_until = self.spent_until.max(now) + self.interval;
        Ok(())
    }

    /// Returns a request that was not sent.
    pub fn give_back(&mut self) {
        self.spent_until = self.spent_until.checked_sub(self.interval).unwrap_or(self.spent_until);
    }

    fn ready_at(&self, class: Class, now: Instant) -> Instant {
        let kept = match class {
            Class::Admission => 0,
            Class::Background => self.reserved,
        };
        let ahead = self.interval.saturating_mul(self.burst - 1 - kept.min(self.burst - 1));
        // An instant before the start of its clock means a full budget.
        self.spent_until.checked_sub(ahead).unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(per_second: u32, burst: u32) -> Rate {
        Rate::per_second(f64::from(per_second), NonZeroU32::new(burst).unwrap())
    }

    fn taken(pace: &mut TokenBucket, class: Class, now: Instant) -> usize {
        std::iter::from_fn(|| pace.take(class, now).ok()).count()
    }

    #[test]
    fn a_fresh_budget_has_its_burst_and_refills_at_its_rate() {
        let start = Instant::now();
        let mut pace = TokenBucket::new(rate(50, 100), start);
        assert_eq!(taken(&mut pace, Class::Admission, start), 100);
        assert_eq!(pace.take(Class::Admission, start), Err(start + Duration::from_millis(20)));
        assert_eq!(taken(&mut pace, Class::Admission, start + Duration::from_millis(100)), 5);
        assert_eq!(taken(&mut pace, Class::Admission, start + Duration::from_hours(1)), 100);
    }

    #[test]
    fn a_pace_is_kept_as_it_was_written() {
        let start = Instant::now();
        for (requests, millis) in [(2.5, 400), (0.5, 2000), (0.01, 100_000), (1000.0, 1)] {
            let mut pace = TokenBucket::new(Rate::per_second(requests, NonZeroU32::MIN), start);
            pace.take(Class::Admission, start).unwrap();
            let ready = start + Duration::from_millis(millis);
            assert_eq!(pace.take(Class::Admission, start), Err(ready), "{requests} a second");
        }
        for (requests, interval) in [
            (f64::MIN_POSITIVE, LONGEST_INTERVAL),
            (0.0, LONGEST_INTERVAL),
            (f64::NAN, LONGEST_INTERVAL),
            (f64::INFINITY, Duration::ZERO),
        ] {
            assert_eq!(Rate::per_second(requests, NonZeroU32::MIN).interval(), interval, "{requests}");
        }
    }

    #[test]
    fn background_leaves_a_quarter_of_the_burst_to_admission() {
        let start = Instant::now();
        let mut pace = TokenBucket::new(rate(50, 100), start);
        assert_eq!(taken(&mut pace, Class::Background, start), 75);
        assert_eq!(taken(&mut pace, Class::Admission, start), 25);
        let mut single = TokenBucket::new(rate(1, 1), start);
        assert_eq!(taken(&mut single, Class::Background, start), 1, "a burst of one has nothing to reserve");
    }

    #[test]
    fn what_was_not_sent_is_not_counted() {
        let start = Instant::now();
        let mut pace = TokenBucket::new(rate(1, 1), start);
        pace.take(Class::Admission, start).unwrap();
        pace.give_back();
        assert!(pace.take(Class::Admission, start).is_ok());
    }

    proptest! {
        #[test]
        fn no_span_of_time_sees_more_than_burst_plus_rate(
            per_second in 1_u32..500,
            burst in 1_u32..200,
            asks in proptest::collection::vec((0_u64..50, any::<bool>()), 1..400),
        ) {
            let start = Instant::now();
            let mut pace = TokenBucket::new(rate(per_second, burst), start);
            let mut now = start;
            let mut passed = Vec::new();
            for (millis, admission) in asks {
                now += Duration::from_millis(millis);
                let class = if admission { Class::Admission } else { Class::Background };
                match pace.take(class, now) {
                    Ok(()) => passed.push(now),
                    Err(ready) => prop_assert!(ready > now),
                }
            }
            for (first, from) in passed.iter().enumerate() {
                for (last, to) in passed.iter().enumerate().skip(first) {
                    let allowed = f64::from(burst) + (*to - *from).as_secs_f64() * f64::from(per_second) + 1e-3;
                    let count = u32::try_from(last - first + 1).unwrap();
                    prop_assert!(f64::from(count) <= allowed + 1.0);
                }
            }
        }

        #[test]
        fn waiting_as_told_is_enough(per_second in 1_u32..500, burst in 1_u32..50, admission: bool) {
            let start = Instant::now();
            let class = if admission { Class::Admission } else { Class::Background };
            let mut pace = TokenBucket::new(rate(per_second, burst), start);
            taken(&mut pace, class, start);
            let ready = pace.take(class, start).unwrap_err();
            prop_assert!(pace.take(class, ready).is_ok());
        }
    }
}
