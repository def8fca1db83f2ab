//! Retries of single requests.
//!
//! Only idempotent requests are retried, only after transient failures, and only while the caller's deadline allows it.
//! A 429 is never retried: that would use up more of the quota. A `Retry-After` is kept.

use std::time::Duration;

use fairlead_domain::backoff::Backoff;
use hyper::{Method, StatusCode};

const MOST_ATTEMPTS: u32 = 3;
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), LONGEST_REST);
/// A longer `Retry-After` is not waited for: the caller may have an alternative.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Whether a request with this method may be sent twice. A PUT of a manifest may; after a failed PATCH or POST of an
/// upload the registry is asked how much it has instead.
pub fn is_idempotent(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::PUT | Method::DELETE)
}

/// Whether a failure with this status usually passes.
pub fn is_transient(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 499 | 500 | 502..=504 | 520..=524)
}

/// The pause before retry number `attempt`, from 1, or `None` if there should be none. `jitter` in 0..1 spreads callers
/// that failed together; `rest` is the server's `Retry-After`.
pub fn pause(attempt: u32, jitter: f64, rest: Duration, remaining: Duration) -> Option<Duration> {
    if attempt >= MOST_ATTEMPTS || rest > LONGEST_REST {
        return None;
    }
    let longest = PAUSES.plain(2 * attempt.saturating_sub(1));
    let pause = rest + longest.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0));
    // A retry with less time than its pause has little chance.
    (pause * 2 < remaining).then_some(pause)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_repetitions_with_growing_pauses() {
        let plenty = Duration::from_mins(1);
        assert_eq!(pause(1, 1.0, Duration::ZERO, plenty), Some(Duration::from_millis(100)));
        assert_eq!(pause(2, 1.0, Duration::ZERO, plenty), Some(Duration::from_millis(400)));
        assert_eq!(pause(2, 0.0, Duration::ZERO, plenty), Some(Duration::from_millis(200)));
        assert_eq!(pause(3, 0.0, Duration::ZERO, plenty), None);
    }

    #[test]
    fn a_server_that_names_a_time_is_left_alone_for_so_long() {
        let plenty = Duration::from_hours(2);
        assert_eq!(pause(1, 1.0, Duration::from_secs(1), plenty), Some(Duration::from_millis(1100)));
        assert_eq!(pause(1, 1.0, Duration::from_secs(2), plenty), None);
    }

    #[test]
    fn no_repetition_without_time_for_it() {
        assert_eq!(pause(1, 1.0, Duration::ZERO, Duration::from_millis(200)), None);
        assert_eq!(pause(1, 1.0, Duration::ZERO, Duration::ZERO), None);
    }

    #[test]
    fn quota_and_client_errors_are_never_repeated() {
        for status in [200, 400, 401, 403, 404, 405, 429, 501, 507] {
            assert!(!is_transient(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in [408, 500, 502, 503, 504] {
            assert!(is_transient(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        assert!(!is_idempotent(&Method::POST));
        assert!(!is_idempotent(&Method::PATCH));
        assert!(is_idempotent(&Method::HEAD));
    }

    proptest! {
        #[test]
        fn a_pause_always_ends_before_the_deadline(
            attempt in 1_u32..50,
            jitter in 0.0_f64..1.0,
            rest in 0_u64..2_000,
            millis in 0_u64..100_000,
        ) {
            let (rest, remaining) = (Duration::from_millis(rest), Duration::from_millis(millis));
            let pause = pause(attempt, jitter, rest, remaining);
            prop_assert!(pause.is_none_or(|pause| pause < remaining && pause >= rest));
        }
    }
}
