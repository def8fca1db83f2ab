//! When discovery runs: after an edit at once, else after the interval, a little earlier or later for each policy so
//! that they do not all run together.

use std::time::Duration;

use fairlead_api::conditions::{find, types};
use fairlead_api::drop::{DiscoveryPolicySpec, DiscoveryPolicyStatus};
use fairlead_domain::backoff::Backoff;
use jiff::Timestamp;

use super::report::SYNCED;

const DEFAULT_INTERVAL: Duration = Duration::from_mins(30);
/// A slip of the pen must not make a busy loop.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
/// First wait after a round in which something failed; it doubles with every further one, up to the interval.
const RETRY: Duration = Duration::from_secs(15);

/// Time from one round of a policy to the next, the same every time: 10 % around the interval.
pub fn interval(name: &str, spec: &DiscoveryPolicySpec) -> Duration {
    let interval = spec.sync_interval.as_std();
    let interval = if interval.is_zero() { DEFAULT_INTERVAL } else { interval.max(SHORTEST_INTERVAL) };
    let share = u64::try_from(interval.as_nanos() / 5).unwrap_or(u64::MAX).max(1);
    interval / 10 * 9 + Duration::from_nanos(fnv1a(name) % share)
}

/// When a policy is due that this process has not looked at yet: at once, unless nothing failed in its last round, and
/// that is recent.
pub fn first_due(
    generation: Option<i64>,
    status: Option<&DiscoveryPolicyStatus>,
    interval: Duration,
    now: Timestamp,
) -> Timestamp {
    let last = status
        .filter(|status| status.observed_generation == generation)
        .filter(|status| find(&status.conditions, types::READY).is_some_and(|ready| ready.reason == SYNCED))
        .and_then(|status| status.last_sync_time.as_ref());
    match last {
        // A time in the future was written by another clock.
        Some(last) => after(last.0.min(now), interval),
        None => now,
    }
}

/// When to run again after `failures` rounds in a row in which something failed.
pub fn next_due(interval: Duration, failures: u32, now: Timestamp) -> Timestamp {
    let wait = match failures.checked_sub(1) {
        None => interval,
        Some(earlier) => Backoff::new(RETRY, interval).plain(earlier),
    };
    after(now, wait)
}

fn after(time: Timestamp, wait: Duration) -> Timestamp {
    time.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// FNV-1a in 64 bits, which is what Drop spreads its policies with.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use fairlead_api::conditions::{Finding, merge};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn spec(interval: &str) -> DiscoveryPolicySpec {
        serde_json::from_value(json!({"syncInterval": interval})).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn policies_are_spread_around_their_interval() {
        for (name, expected) in [
            ("popular-build-images", 3947.7),
            ("ci-images", 3459.1),
            ("base-images", 3516.9),
            ("gpu-images", 3476.6),
        ] {
            let found = interval(name, &spec("1h")).as_secs_f64();
            assert!((found - expected).abs() < 0.05, "{name}: {found}");
        }
        assert!(interval("x", &spec("0s")) >= Duration::from_mins(27));
    }

    #[test]
    fn a_recent_success_for_the_same_generation_is_waited_for() {
        let status = |reason: &'static str, generation| {
            let ready = Finding::new(types::READY, reason != "Timeout", reason, "");
            DiscoveryPolicyStatus {
                observed_generation: Some(generation),
                last_sync_time: Some(at(1000).into()),
                conditions: merge(&[], &[ready], Some(generation), at(0)),
                ..DiscoveryPolicyStatus::default()
            }
        };
        let due = |status: Option<&DiscoveryPolicyStatus>, now| {
            first_due(Some(2), status, Duration::from_secs(100), at(now))
        };
        assert_eq!(due(Some(&status(SYNCED, 2)), 1010), at(1100));
        assert_eq!(due(Some(&status(SYNCED, 2)), 10), at(110), "a clock that went backwards");
        assert_eq!(due(Some(&status(SYNCED, 1)), 1010), at(1010), "edited");
        assert_eq!(due(Some(&status("Timeout", 2)), 1010), at(1010), "failed");
        assert_eq!(due(Some(&status("PartiallyFailed", 2)), 1010), at(1010), "failed in part");
        assert_eq!(due(None, 1010), at(1010));
    }

    #[test]
    fn failures_are_tried_again_sooner() {
        let waits: Vec<i64> =
            (0..5).map(|failures| next_due(Duration::from_secs(100), failures, at(0)).as_second()).collect();
        assert_eq!(waits, [100, 15, 30, 60, 100]);
        assert_eq!(next_due(Duration::from_secs(100), u32::MAX, at(0)), at(100));
    }

    proptest! {
        #[test]
        fn the_interval_stays_within_ten_percent(name in "[a-z-]{1,20}", seconds in 1_u64..1_000_000) {
            let found = interval(&name, &spec(&format!("{seconds}s")));
            let exact = Duration::from_secs(seconds);
            prop_assert!(found >= exact.mul_f64(0.899) && found <= exact.mul_f64(1.101), "{found:?}");
        }
    }
}
