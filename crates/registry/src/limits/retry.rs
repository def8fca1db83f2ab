//! When a failed request is worth sending again.
//!
//! Only requests that change nothing, or the same thing each time, are repeated, only after failures that pass by
//! themselves, and only while the caller's deadline leaves room. A quota refusal is never repeated: it would use up more
//! of what is missing. Nor is a server troubled before the time that it named itself.

use std::time::Duration;

use hyper::{Method, StatusCode};

const MOST_ATTEMPTS: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// A server that wants to be left alone for longer than this is not waited for here: the caller may know of another.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Whether sending the request twice leaves the registry as sending it once would.
///
/// A PUT of a manifest is; PATCH and POST of an upload are not, their owner asks the registry how far it got instead.
pub fn is_repeatable(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::PUT | Method::DELETE)
}

/// Whether an answer with this status is likely to be different in a moment.
pub fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 499 | 500 | 502..=504 | 520..=524)
}

/// The pause before attempt number `attempt` (the first repetition is 1), or `None` when it is not worth it.
/// `jitter` in 0..1 keeps callers that failed together from coming back together; `rest` is how long the server asked to
/// be left alone.
pub fn pause(attempt: u32, jitter: f64, rest: Duration, remaining: Duration) -> Option<Duration> {
    if attempt >= MOST_ATTEMPTS || rest > LONGEST_REST {
        return None;
    }
    let longest = FIRST_PAUSE.saturating_mul(1 << (2 * (attempt - 1).min(8)));
    let pause = rest + longest.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0));
    // A repetition that starts with less time than it waited for has no real chance.
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
            assert!(!is_passing(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in [408, 500, 502, 503, 504] {
            assert!(is_passing(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        assert!(!is_repeatable(&Method::POST));
        assert!(!is_repeatable(&Method::PATCH));
        assert!(is_repeatable(&Method::HEAD));
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
