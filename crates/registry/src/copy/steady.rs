//! Holding on when a registry is away for a moment.
//!
//! A copy may take an hour; it should not fail because a registry was restarted in between. Single requests are repeated
//! within a second already; this waits for longer, but not for ever: whoever wants the copy will ask for it again.

use std::time::{Duration, SystemTime};

use tokio::time::sleep;

use crate::{
    context::Context,
    error::{Error, Problem},
};

/// Failures in a row after which a registry counts as gone for good: with growing pauses, after about half a minute.
pub(super) const MOST_FAILURES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// For a quota whose end nobody told.
const BLIND_WAIT: Duration = Duration::from_secs(5);

/// Repeats a step of a copy that failed for a reason that passes.
pub(super) async fn steadily<T, A>(context: &Context, mut attempt: impl FnMut() -> A) -> Result<T, Error>
where
    A: Future<Output = Result<T, Error>>,
{
    let mut failures = 0;
    loop {
        let error = match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        failures += 1;
        if matches!(error.problem, Problem::TimedOut(_)) && context.is_in_a_hurry() {
            return Err(error);
        }
        match pause(&error.problem, failures, fastrand::f64(), SystemTime::now()) {
            Some(pause) if context.bears(pause) => sleep(pause).await,
            _ => return Err(error),
        }
    }
}

/// How long to wait before the next attempt, if there should be one.
pub(super) fn pause(problem: &Problem, failures: u32, jitter: f64, now: SystemTime) -> Option<Duration> {
    if failures >= MOST_FAILURES {
        return None;
    }
    match problem {
        Problem::Unreachable(_) | Problem::TimedOut(_) => {
            let longest = FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(8)).min(LONGEST_PAUSE);
            Some(longest.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0)))
        }
        Problem::RateLimited { until, .. } => {
            let rest = until.map(|until| until.duration_since(now).unwrap_or_default());
            Some(rest.unwrap_or(BLIND_WAIT))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use tokio::time::Instant;

    use super::*;
    use crate::error::Detail;

    #[test]
    fn pauses_grow_and_end() {
        let away = Problem::Unreachable(Detail::none());
        let pauses: Vec<_> = (1..=7)
            .map(|failures| pause(&away, failures, 1.0, UNIX_EPOCH).map(|pause| pause.as_millis()))
            .collect();
        assert_eq!(pauses, [Some(500), Some(1000), Some(2000), Some(4000), Some(8000), None, None]);
        assert_eq!(pause(&Problem::NotFound(Detail::none()), 1, 1.0, UNIX_EPOCH), None);
    }

    #[test]
    fn a_quota_is_waited_for_as_told() {
        let limited = |until| Problem::RateLimited { until, detail: Detail::none() };
        let until = Some(UNIX_EPOCH + Duration::from_secs(90));
        assert_eq!(pause(&limited(until), 1, 1.0, UNIX_EPOCH), Some(Duration::from_secs(90)));
        assert_eq!(pause(&limited(None), 1, 1.0, UNIX_EPOCH), Some(BLIND_WAIT));
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
        let outcome = steadily(&context, || std::future::ready(Err::<(), _>(limited.clone().during("test"))));
        assert!(outcome.await.is_err());
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_have_other_things_to_do_do_not_repeat_what_was_swallowed() {
        let patient = Context::new(crate::Class::Background, Instant::now() + Duration::from_hours(1));
        let hurried = patient.clone().waiting_at_most(Duration::from_secs(2));
        for (context, expected) in [(patient, MOST_FAILURES), (hurried, 1)] {
            let mut attempts = 0;
            let outcome = steadily(&context, || {
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
        let outcome = steadily(&context, || {
            attempts += 1;
            std::future::ready(Err::<(), _>(Problem::Unreachable(Detail::none()).during("test")))
        });
        assert!(outcome.await.is_err());
        assert!((2..=4).contains(&attempts), "{attempts}");
    }
}
