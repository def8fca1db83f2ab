//! The quota that a registry states, and the holds that follow from it.
//!
//! Three forms are in use: Docker Hub's `ratelimit-limit: 100;w=21600` pair, which GitLab sends with a
//! `ratelimit-reset`, the `X-RateLimit-*` family, and `Retry-After` alone.

use std::num::IntErrorKind;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlead_domain::backoff::Backoff;
use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};

/// No statement is believed for longer: a broken header must not silence a registry for days.
const LONGEST: Duration = Duration::from_hours(24);
/// No hold lasts longer before another request: quotas are raised, and windows slide.
const LONGEST_HOLD: Duration = Duration::from_hours(1);
/// Holds after refusals without a time.
const BLIND_HOLD: Backoff = Backoff::new(Duration::from_secs(5), LONGEST_BLIND_HOLD);
const LONGEST_BLIND_HOLD: Duration = Duration::from_mins(1);
/// The quota is shared with the nodes that pull images, so background work stops at a tenth.
const RESERVED_SHARE: u64 = 10;
/// Values above this are points in time (seconds since 1970), not durations.
const EARLIEST_EPOCH: u64 = 1_000_000_000;

/// The quota as one answer states it. Most registries state nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    pub limit: Option<u64>,
    pub remaining: Option<u64>,
    pub window: Option<Duration>,
    pub reset: Option<Duration>,
    pub retry_after: Option<Duration>,
}

/// How long callers are held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    pub everyone: Option<Duration>,
    /// Background work is held at least this long.
    pub background: Option<Duration>,
    /// After how long the quota is available again, as the registry states it. Holds are often shorter.
    pub ends: Option<Duration>,
}

impl Quota {
    pub fn read(headers: &HeaderMap, now: SystemTime) -> Self {
        let mut quota = Self::default();
        for prefix in ["ratelimit", "x-ratelimit"] {
            let field = |suffix: &str| items(headers, &format!("{prefix}-{suffix}"));
            // Of several policies the one with the least remaining counts, and the longest of their times.
            let remaining = field("remaining").into_iter().min_by_key(|item| item.value);
            let limit = field("limit").into_iter().max_by_key(|item| item.value);
            let reset = field("reset").into_iter().map(|item| span_or_moment(item.value, now)).max();
            quota.remaining = quota.remaining.or(remaining.map(|item| item.value));
            quota.limit = quota.limit.or(limit.map(|item| item.value));
            let window = remaining.and_then(|item| item.window).or(limit.and_then(|item| item.window));
            quota.window = quota.window.or(window);
            quota.reset = quota.reset.or(reset);
        }
        let retry_after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        quota.retry_after = retry_after.and_then(|text| parse_retry_after(text, now));
        quota
    }

    /// Whether nothing remains, whatever the status of the answer.
    pub fn is_exhausted(&self) -> bool {
        self.remaining == Some(0)
    }

    /// After how long the quota is known to be available again: as stated, else after the whole window.
    pub fn ends_in(&self) -> Option<Duration> {
        self.retry_after.or(self.reset).or(self.window)
    }

    /// The hold after an answer with this status; `None` if it says nothing about that. `refusals` counts earlier
    /// refusals in a row.
    pub fn hold(&self, status: StatusCode, refusals: u32) -> Option<Hold> {
        if status == StatusCode::TOO_MANY_REQUESTS {
            let stated = self.retry_after.or(self.reset);
            let hold = stated.unwrap_or_else(|| BLIND_HOLD.plain(refusals)).min(LONGEST_HOLD);
            return Some(Hold { everyone: Some(hold), background: Some(hold), ends: self.ends_in() });
        }
        let reserved = self.limit.map_or(0, |limit| limit / RESERVED_SHARE);
        let background = (self.remaining? <= reserved).then(|| self.refill_time().min(LONGEST_HOLD));
        Some(Hold { background, ..Hold::default() })
    }

    /// The time in which at least one request returns. Windows usually slide, so one returns after window ÷ limit.
    fn refill_time(&self) -> Duration {
        let share = self.window.zip(self.limit).map(|(window, limit)| {
            let limit = u32::try_from(limit).unwrap_or(u32::MAX).max(1);
            window / limit
        });
        self.retry_after.or(self.reset).or(share).unwrap_or(LONGEST_BLIND_HOLD)
    }
}

/// One value of a header: `76;w=21600`.
#[derive(Clone, Copy)]
struct Item {
    value: u64,
    window: Option<Duration>,
}

/// The values of all lines of a header.
fn items(headers: &HeaderMap, name: &str) -> Vec<Item> {
    let lines = headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
    let item = |item: &str| {
        let mut parts = item.split(';');
        let value = number(parts.next()?)?;
        let window = parts.find_map(|part| number(part.trim().strip_prefix("w=")?)).map(bounded);
        Some(Item { value, window })
    };
    lines.flat_map(|line| line.split(',')).filter_map(item).collect()
}

fn number(text: &str) -> Option<u64> {
    // Fractions are cut off.
    match text.trim().split('.').next()?.parse() {
        Ok(value) => Some(value),
        Err(error) => (*error.kind() == IntErrorKind::PosOverflow).then_some(u64::MAX),
    }
}

fn bounded(seconds: u64) -> Duration {
    Duration::from_secs(seconds).min(LONGEST)
}

fn span_or_moment(value: u64, now: SystemTime) -> Duration {
    if value < EARLIEST_EPOCH {
        return bounded(value);
    }
    UNIX_EPOCH
        .checked_add(Duration::from_secs(value))
        .map_or(LONGEST, |moment| moment.duration_since(now).unwrap_or_default().min(LONGEST))
}

fn parse_retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    if let Some(seconds) = number(text) {
        return Some(bounded(seconds));
    }
    let moment = httpdate::parse_http_date(text.trim()).ok()?;
    Some(moment.duration_since(now).unwrap_or_default().min(LONGEST))
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    const NOW: u64 = 1_790_000_000;

    fn hold(quota: &Quota, status: StatusCode, refusals: u32) -> Hold {
        quota.hold(status, refusals).unwrap()
    }

    fn read(lines: &[(&str, &str)]) -> Quota {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        Quota::read(&headers, UNIX_EPOCH + Duration::from_secs(NOW))
    }

    /// Checks what is read, written as limit, remaining, window, reset and retry-after in seconds.
    fn check(lines: &[(&str, &str)], expected: [Option<u64>; 5]) {
        let Quota { limit, remaining, window, reset, retry_after } = read(lines);
        let seconds = |span: Option<Duration>| span.map(|span| span.as_secs());
        assert_eq!(
            [limit, remaining, seconds(window), seconds(reset), seconds(retry_after)],
            expected,
            "{lines:?}"
        );
    }

    #[test]
    fn every_form_is_read() {
        check(&[], [None; 5]);
        check(
            &[("RateLimit-Limit", "100;w=21600"), ("RateLimit-Remaining", "76;w=21600")],
            [Some(100), Some(76), Some(21600), None, None],
        );
        check(&[("ratelimit-remaining", "0;w=21600")], [None, Some(0), Some(21600), None, None]);
        check(
            &[("ratelimit-remaining", "7;w=60, 3;w=3600"), ("ratelimit-reset", "12")],
            [None, Some(3), Some(3600), Some(12), None],
        );
        check(
            &[
                ("ratelimit-limit", "500"),
                ("ratelimit-remaining", "499"),
                ("ratelimit-reset", "1790000060"),
                ("retry-after", "30"),
            ],
            [Some(500), Some(499), None, Some(60), Some(30)],
        );
        check(
            &[
                ("x-ratelimit-limit", "60"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1790000030"),
            ],
            [Some(60), Some(0), None, Some(30), None],
        );
    }

    #[test]
    fn of_several_policies_the_tightest_counts_in_whatever_order_and_lines() {
        let remaining = ("x-ratelimit-remaining", "10, 0");
        let lines = [remaining, ("x-ratelimit-reset", "60"), ("x-ratelimit-reset", "1")];
        check(&lines, [None, Some(0), None, Some(60), None]);
        let lines = [("x-ratelimit-remaining", "0"), ("x-ratelimit-remaining", "10")];
        check(&lines, [None, Some(0), None, None, None]);
    }

    #[test]
    fn a_number_too_large_to_hold_is_a_long_time() {
        let day = Some(LONGEST.as_secs());
        let huge = "99999999999999999999";
        check(&[("retry-after", huge)], [None, None, None, None, day]);
        check(&[("x-ratelimit-reset", huge)], [None, None, None, day, None]);
        check(&[("ratelimit-remaining", &format!("3;w={huge}"))], [None, Some(3), day, None, None]);
    }

    #[test]
    fn a_time_to_wait_is_a_span_or_a_date() {
        for (text, expected) in [
            ("7", Some(7)),
            ("Mon, 21 Sep 2026 14:14:20 GMT", Some(60)),
            ("Mon, 21 Sep 1998 14:14:20 GMT", Some(0)),
            ("99999999999999", Some(LONGEST.as_secs())),
            ("soon", None),
        ] {
            check(&[("retry-after", text)], [None, None, None, None, expected]);
        }
    }

    #[test]
    fn a_refusal_holds_everyone_for_as_long_as_it_says() {
        let told = Quota { retry_after: Some(Duration::from_secs(30)), ..Quota::default() };
        assert_eq!(hold(&told, StatusCode::TOO_MANY_REQUESTS, 0).everyone, Some(Duration::from_secs(30)));
        let long = Quota { retry_after: Some(LONGEST), ..Quota::default() };
        let held = hold(&long, StatusCode::TOO_MANY_REQUESTS, 0);
        assert_eq!((held.everyone, held.ends), (Some(LONGEST_HOLD), Some(LONGEST)));
        let window = Quota { window: Some(Duration::from_hours(6)), ..Quota::default() };
        let held = hold(&window, StatusCode::TOO_MANY_REQUESTS, 0);
        assert_eq!((held.everyone, held.ends), (Some(BLIND_HOLD.plain(0)), window.window));
        let silent = Quota::default();
        let holds: Vec<_> = (0..6)
            .map(|n| hold(&silent, StatusCode::TOO_MANY_REQUESTS, n).everyone.unwrap().as_secs())
            .collect();
        assert_eq!(holds, [5, 10, 20, 40, 60, 60]);
    }

    #[test]
    fn what_can_wait_leaves_the_last_tenth_to_the_nodes() {
        let hub = |remaining| Quota {
            limit: Some(100),
            remaining: Some(remaining),
            window: Some(Duration::from_hours(6)),
            ..Quota::default()
        };
        assert_eq!(Quota::default().hold(StatusCode::OK, 0), None);
        assert_eq!(hold(&hub(11), StatusCode::OK, 0), Hold::default());
        let low = Hold { background: Some(Duration::from_secs(216)), ..Hold::default() };
        assert_eq!(hold(&hub(10), StatusCode::OK, 0), low);
        assert_eq!(hold(&hub(0), StatusCode::OK, 0), low);
        let unknown_limit = Quota { remaining: Some(0), ..Quota::default() };
        assert_eq!(hold(&unknown_limit, StatusCode::OK, 0).background, Some(Duration::from_mins(1)));
    }

    proptest! {
        #[test]
        fn no_header_holds_for_longer_than_an_hour(
            name in "(x-)?ratelimit-(limit|remaining|reset)|retry-after",
            value in proptest::collection::vec(0x20_u8..=0x7e, 0..60),
            refusals: u32,
        ) {
            let mut headers = HeaderMap::new();
            headers.insert(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(&value).unwrap());
            let quota = Quota::read(&headers, UNIX_EPOCH + Duration::from_secs(NOW));
            for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
                let Some(hold) = quota.hold(status, refusals) else { continue };
                prop_assert!(hold.everyone.is_none_or(|hold| hold <= LONGEST_HOLD));
                prop_assert!(hold.background.is_none_or(|hold| hold <= LONGEST_HOLD));
            }
        }
    }
}
