//! Retries of copy steps over short outages.
//!
//! A copy may take an hour and should not fail because a registry restarts in between. Single requests are retried
//! within a second; this waits longer.

use std::time::{Duration, SystemTime};

use fairlead_domain::backoff::Backoff;
use tokio::time::sleep;

use crate::error::{Error, Problem};
use crate::request::context::Context;

/// Failures in a row after which a step is given up. With pauses between trials of ten seconds at most, that is about
/// half a minute.
pub(super) const MOST_FAILURES: u32 = 6;
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
/// For a quota without a stated end. Each attempt uses up more of it, so the pauses grow.
const BLIND_PAUSES: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(1));
/// Many copies are refused at once with the same time. Jitter spreads them; it grows with the number of refusals.
const SPREAD: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(2));

/// Failures of a copy step since its last progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Setbacks {
    /// Failures that count towards [`MOST_FAILURES`].
    pub(super) failures: u32,
    /// Refusals because of a quota.
    pub(super) refusals: u32,
}

impl Setbacks {
    /// A registry that refuses because of a quota is alive, so only the deadline limits the wait for it, unless the
    /// caller has other work.
    pub(super) fn count(&mut self, problem: &Problem, context: &Context) {
        let is_refusal = matches!(problem, Problem::RateLimited { .. });
        self.refusals += u32::from(is_refusal);
        self.failures += u32::from(!is_refusal || context.patience().is_some());
    }

    /// The pause before the next attempt, if there should be one.
    pub(super) fn pause(self, problem: &Problem, jitter: f64, now: SystemTime) -> Option<Duration> {
        if self.failures >= MOST_FAILURES {
            return None;
        }
        let jitter = jitter.clamp(0.0, 1.0);
        match problem {
            Problem::Unreachable(outage) => {
                // While the circuit is open nothing is sent. The trial comes first, and takes a moment.
                let spread = grown(SPREAD, self.failures);
                let told =
                    outage.until.map(|until| remaining(until, now) + spread.mul_f64(0.5 + 0.5 * jitter));
                Some(self.own_pause(jitter).max(told.unwrap_or_default()))
            }
            Problem::TimedOut(_) => Some(self.own_pause(jitter)),
            Problem::RateLimited { until, .. } => {
                let rest =
                    until.map_or_else(|| grown(BLIND_PAUSES, self.refusals), |until| remaining(until, now));
                Some(rest + grown(SPREAD, self.refusals).mul_f64(jitter))
            }
            _ => None,
        }
    }

    /// The pause after a failure without a stated end.
    fn own_pause(self, jitter: f64) -> Duration {
        grown(PAUSES, self.failures).mul_f64(0.5 + 0.5 * jitter)
    }

    /// Waits until another attempt makes sense, or returns the error.
    pub(super) async fn wait_out(&mut self, error: Error, context: &Context) -> Result<(), Error> {
        self.count(&error.problem, context);
        if matches!(error.problem, Problem::TimedOut(_)) && context.patience().is_some() {
            return Err(error);
        }
        match self.pause(&error.problem, fastrand::f64(), SystemTime::now()) {
            Some(pause) if context.allows(pause) => {
                sleep(pause).await;
                Ok(())
            }
            _ => Err(error),
        }
    }
}

fn remaining(until: SystemTime, now: SystemTime) -> Duration {
    until.duration_since(now).unwrap_or_default()
}

/// The pause after so many failures, one or more.
fn grown(pauses: Backoff, times: u32) -> Duration {
    pauses.plain(times.saturating_sub(1))
}

/// Repeats a copy step after transient failures.
pub(super) async fn with_retries<T, A>(context: &Context, mut attempt: impl FnMut() -> A) -> Result<T, Error>
where
    A: Future<Output = Result<T, Error>>,
{
    let mut setbacks = Setbacks::default();
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) => setbacks.wait_out(error, context).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use tokio::time::Instant;

    use super::*;
    use crate::BreakerSettings;
    use crate::error::{Detail, Outage};
    use crate::limits::circuit_breaker::{CallFailure, CircuitBreaker, TrialResult};

    #[test]
    fn pauses_grow_and_end() {
        let away = Problem::Unreachable(Outage::default());
        let after = |failures| Setbacks { failures, ..Setbacks::default() };
        let pauses: Vec<_> = (1..=7)
            .map(|failures| after(failures).pause(&away, 1.0, UNIX_EPOCH).map(|pause| pause.as_millis()))
            .collect();
        assert_eq!(pauses, [Some(500), Some(1000), Some(2000), Some(4000), Some(8000), None, None]);
        assert_eq!(after(1).pause(&Problem::NotFound(Detail::none()), 1.0, UNIX_EPOCH), None);
    }

    fn away_until(until: SystemTime) -> Problem {
        Problem::Unreachable(Outage { until: Some(until), ..Outage::default() })
    }

    #[test]
    fn a_registry_is_not_asked_before_the_time_it_named() {
        let pause = |until: u64, failures, jitter| {
            let setbacks = Setbacks { failures, ..Setbacks::default() };
            let problem = away_until(UNIX_EPOCH + Duration::from_secs(until));
            setbacks.pause(&problem, jitter, UNIX_EPOCH).map(|pause| pause.as_millis())
        };
        assert_eq!(pause(22, 1, 0.0), Some(22_250), "a trial goes first");
        assert_eq!(pause(22, 1, 1.0), Some(22_500));
        assert_eq!(pause(1, 5, 1.0), Some(8000), "nor more often than without");
        assert_eq!(pause(22, MOST_FAILURES, 1.0), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_registry_that_is_back_when_it_said_is_asked_twice() {
        let begun = Instant::now();
        let patient = Context::new(crate::Class::Background, begun + Duration::from_hours(2));
        let told = SystemTime::now() + Duration::from_secs(50);
        let back = begun + Duration::from_secs(50);
        let outcome = |context: Context| async move {
            let mut attempts = 0;
            let attempt = || {
                attempts += 1;
                let is_back = Instant::now() >= back;
                std::future::ready(if is_back { Ok(()) } else { Err(away_until(told).during("test")) })
            };
            let outcome = with_retries(&context, attempt).await;
            (outcome.is_ok(), attempts)
        };
        assert_eq!(outcome(patient.clone().waiting_at_most(Duration::from_secs(3))).await, (false, 1));
        assert_eq!(begun.elapsed(), Duration::ZERO, "those who have other things to do do not wait");
        assert_eq!(outcome(patient).await, (true, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_registry_that_does_not_answer_at_all_is_given_up_after_half_a_minute() {
        let begun = Instant::now();
        let context = Context::new(crate::Class::Background, begun + Duration::from_hours(2));
        let patience =
            BreakerSettings { longest_pause: Duration::from_secs(10), ..BreakerSettings::default() };
        let mut breaker = CircuitBreaker::new(patience, begun);
        breaker.failed(CallFailure::TimedOut, begun, begun);
        let outcome = with_retries(&context, || {
            let now = Instant::now();
            let mut due = breaker.next_trial(now).unwrap();
            while due <= now {
                breaker.end_trial(TrialResult::Dead, fastrand::f64(), due);
                due = breaker.next_trial(due).unwrap();
            }
            std::future::ready(Err::<(), _>(away_until(SystemTime::now() + (due - now)).during("test")))
        });
        assert!(outcome.await.is_err());
        let tried_for = begun.elapsed();
        assert!((20..45).contains(&tried_for.as_secs()), "{tried_for:?}");
    }

    fn limited(until: Option<SystemTime>) -> Problem {
        Problem::RateLimited { until, detail: Detail::none() }
    }

    #[test]
    fn a_quota_is_waited_for_as_told_and_not_by_all_in_the_same_moment() {
        let pause = |until, refusals, jitter| {
            let setbacks = Setbacks { refusals, ..Setbacks::default() };
            setbacks.pause(&limited(until), jitter, UNIX_EPOCH).map(|pause| pause.as_millis())
        };
        let until = Some(UNIX_EPOCH + Duration::from_secs(90));
        assert_eq!(pause(until, 1, 0.0), Some(90_000));
        assert_eq!(pause(until, 1, 1.0), Some(90_500));
        assert_eq!(pause(until, 100, 1.0), Some(92_000), "the spread does not grow without end");
        let blind: Vec<_> = (1..=6).filter_map(|refusals| pause(None, refusals, 0.0)).collect();
        assert_eq!(blind, [5000, 10_000, 20_000, 40_000, 60_000, 60_000]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quota_is_waited_for_as_often_as_it_takes_but_not_beyond_the_deadline() {
        let begun = Instant::now();
        let context = Context::new(crate::Class::Background, begun + Duration::from_mins(10));
        let mut attempts = 0;
        let outcome = with_retries(&context, || {
            attempts += 1;
            let now = SystemTime::now();
            let refused = limited(Some(now + Duration::from_secs(1))).during("test");
            std::future::ready(if attempts > 5 * MOST_FAILURES { Ok(attempts) } else { Err(refused) })
        });
        assert_eq!(outcome.await.ok(), Some(5 * MOST_FAILURES + 1));
        assert!(begun.elapsed() >= Duration::from_secs(29), "{:?}", begun.elapsed());

        let outcome =
            with_retries(&context, || std::future::ready(Err::<(), _>(limited(None).during("test"))));
        assert!(outcome.await.is_err_and(|error| matches!(error.problem, Problem::RateLimited { .. })));
        let waited = begun.elapsed();
        assert!(waited > Duration::from_mins(8) && !context.has_passed(), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_have_other_things_to_do_do_not_wait_for_a_quota_time_and_again() {
        let context = Context::new(crate::Class::Background, Instant::now() + Duration::from_hours(1))
            .waiting_at_most(Duration::from_secs(5));
        let mut attempts = 0;
        let outcome = with_retries(&context, || {
            attempts += 1;
            let until = SystemTime::now() + Duration::from_secs(1);
            std::future::ready(Err::<(), _>(limited(Some(until)).during("test")))
        });
        assert!(outcome.await.is_err());
        assert_eq!(attempts, MOST_FAILURES);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_have_other_things_to_do_do_not_wait_for_a_quota() {
        let begun = Instant::now();
        let context = Context::new(crate::Class::Background, begun + Duration::from_hours(1))
            .waiting_at_most(Duration::from_secs(2));
        let limited = Problem::RateLimited {
            until: Some(SystemTime::now() + Duration::from_secs(90)),
            detail: Detail::none(),
        };
        let outcome =
            with_retries(&context, || std::future::ready(Err::<(), _>(limited.clone().during("test"))));
        assert!(outcome.await.is_err());
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_have_other_things_to_do_do_not_repeat_what_was_swallowed() {
        let patient = Context::new(crate::Class::Background, Instant::now() + Duration::from_hours(1));
        let hurried = patient.clone().waiting_at_most(Duration::from_secs(2));
        for (context, expected) in [(patient, MOST_FAILURES), (hurried, 1)] {
            let mut attempts = 0;
            let outcome = with_retries(&context, || {
                attempts += 1;
                std::future::ready(Err::<(), _>(Problem::TimedOut(Detail::none()).during("test")))
            });
            assert!(outcome.await.is_err());
            assert_eq!(attempts, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_wait_reaches_beyond_the_deadline() {
        let context = Context::new(crate::Class::Background, Instant::now() + Duration::from_secs(3));
        let mut attempts = 0;
        let outcome = with_retries(&context, || {
            attempts += 1;
            std::future::ready(Err::<(), _>(Problem::Unreachable(Outage::default()).during("test")))
        });
        assert!(outcome.await.is_err());
        assert!((2..=4).contains(&attempts), "{attempts}");
    }
}
