//! What a registry says about its quota, and what that means for us.
//!
//! Four dialects are spoken: Docker Hub's `ratelimit-limit: 100;w=21600` pair, the IETF drafts' combined `RateLimit`
//! field in its two spellings, the `X-RateLimit-*` family, and plain `Retry-After`. All are read into one value;
//! what to do about it is decided here too, as a function of that value alone.

use std::cmp::Reverse;
use std::num::IntErrorKind;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};

/// No announcement is believed for longer: a hostile or broken header must not silence a registry for days.
const LONGEST: Duration = Duration::from_hours(24);
/// No hold lasts longer without asking again; quotas are raised and windows slide.
const LONGEST_HOLD: Duration = Duration::from_hours(1);
/// First hold after a refusal that names no time; doubled for each further one.
const FIRST_BLIND_HOLD: Duration = Duration::from_secs(5);
const LONGEST_BLIND_HOLD: Duration = Duration::from_mins(1);
/// The quota of an address or account is shared with the nodes that pull images, so what can wait stops at a tenth.
const RESERVED_SHARE: u64 = 10;
/// Values above this are points in time (seconds since 1970), not spans; no window is thirty years long.
const EARLIEST_EPOCH: u64 = 1_000_000_000;

/// The quota as the last answer described it. Everything is optional; most registries say nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    pub limit: Option<u64>,
    pub remaining: Option<u64>,
    pub window: Option<Duration>,
    pub reset: Option<Duration>,
    pub retry_after: Option<Duration>,
}

/// How long callers are kept back, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Nobody asks again before this has passed.
    pub everyone: Option<Duration>,
    /// What can wait (watch, copy) waits at least this long.
    pub background: Option<Duration>,
    /// After how long a quota that is used up is there again, in the registry's words. Holds are our own and often shorter.
    pub ends: Option<Duration>,
}

impl Quota {
    pub fn read(headers: &HeaderMap, now: SystemTime) -> Self {
        let mut quota = Self::default();
        let policy = quota.read_combined(&listed(headers, "ratelimit"));
        for prefix in ["ratelimit", "x-ratelimit"] {
            let field = |suffix: &str| items(&listed(headers, &format!("{prefix}-{suffix}")));
            let (remaining, limits, resets) = (field("remaining"), field("limit"), field("reset"));
            let tightness = |(position, item): &(usize, &Item)| {
                (item.value, Reverse(resets.get(*position).map(|reset| reset.value)))
            };
            let tightest = remaining.iter().enumerate().min_by_key(tightness);
            // What is said of several policies is said of all in the same order.
            let its = |items: &[Item]| {
                let own = tightest.and_then(|(position, _)| items.get(position));
                own.or(items.first()).copied()
            };
            if let Some((_, tightest)) = tightest {
                quota.remaining.get_or_insert(tightest.value);
                quota.window = quota.window.or(tightest.window);
            }
            if let Some(limit) = its(&limits) {
                quota.limit.get_or_insert(limit.value);
                quota.window = quota.window.or(limit.window);
            }
            if let Some(reset) = its(&resets) {
                quota.reset.get_or_insert(span_or_moment(reset.value, now));
            }
        }
        quota.read_policy(&listed(headers, "ratelimit-policy"), &policy);
        quota.retry_after = headers
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .and_then(|text| retry_after(text, now));
        quota
    }

    /// Whether the answer said that nothing is left, whatever its status was.
    pub fn is_exhausted(&self) -> bool {
        self.remaining == Some(0)
    }

    /// After how long the quota is known to be there again: as told, else the whole window.
    pub fn ends_in(&self) -> Option<Duration> {
        self.retry_after.or(self.reset).or(self.window)
    }

    /// How long to hold back after an answer with this status; `None` if it says nothing about that. `refusals` counts
    /// earlier refusals in a row.
    pub fn hold(&self, status: StatusCode, refusals: u32) -> Option<Hold> {
        if status == StatusCode::TOO_MANY_REQUESTS {
            let told = self.retry_after.or(self.reset);
            let hold = told.unwrap_or_else(|| blind_hold(refusals)).min(LONGEST_HOLD);
            return Some(Hold { everyone: Some(hold), background: Some(hold), ends: self.ends_in() });
        }
        let reserved = self.limit.map_or(0, |limit| limit / RESERVED_SHARE);
        let background = (self.remaining? <= reserved).then(|| self.refill_time().min(LONGEST_HOLD));
        Some(Hold { background, ..Hold::default() })
    }

    /// The time in which at least one request comes back. Windows usually slide, so one unit returns after window ÷ limit.
    fn refill_time(&self) -> Duration {
        let share = self.window.zip(self.limit).map(|(window, limit)| {
            let limit = u32::try_from(limit).unwrap_or(u32::MAX).max(1);
            window / limit
        });
        self.retry_after.or(self.reset).or(share).unwrap_or(LONGEST_BLIND_HOLD)
    }

    /// `limit=100, remaining=5, reset=50` of the earlier drafts, `"default";r=5;t=50` of the later ones. Of several policies
    /// the one counts of which least is left, and among such the one that returns last. Returns its name.
    fn read_combined(&mut self, text: &str) -> String {
        let mut policies = Vec::new();
        for item in text.split(',') {
            let (mut remaining, mut reset) = (None, None);
            for (name, value) in item.split(';').filter_map(pair) {
                match name.as_str() {
                    "limit" => self.limit = Some(value),
                    "remaining" => self.remaining = Some(value),
                    "reset" => self.reset = Some(bounded(value)),
                    "r" => remaining = Some(value),
                    "t" => reset = Some(bounded(value)),
                    _ => {}
                }
            }
            policies.extend(remaining.map(|remaining| (remaining, Reverse(reset), name(item))));
        }
        let Some((remaining, Reverse(reset), name)) = policies.into_iter().min() else {
            return String::new();
        };
        (self.remaining, self.reset) = (Some(remaining), reset);
        name.to_owned()
    }

    /// `100;w=60` or `"default";q=100;w=60`. Of several the named one, else the first.
    fn read_policy(&mut self, text: &str, named: &str) {
        let own = text.split(',').find(|item| name(item) == named);
        for part in own.or(text.split(',').next()).unwrap_or_default().split(';') {
            if let Some((name, value)) = pair(part) {
                match name.as_str() {
                    "q" => self.limit = self.limit.or(Some(value)),
                    "w" => self.window = self.window.or(Some(bounded(value))),
                    _ => {}
                }
            } else if let Some(value) = number(part) {
                self.limit = self.limit.or(Some(value));
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Item {
    value: u64,
    window: Option<Duration>,
}

/// All lines of a header. Several mean the same as one with all that they list.
fn listed(headers: &HeaderMap, name: &str) -> String {
    let lines = headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
    lines.collect::<Vec<_>>().join(",")
}

fn items(text: &str) -> Vec<Item> {
    let item = |item: &str| {
        let mut parts = item.split(';');
        let value = number(parts.next()?)?;
        let window =
            parts.filter_map(pair).find(|(name, _)| name == "w").map(|(_, seconds)| bounded(seconds));
        Some(Item { value, window })
    };
    text.split(',').filter_map(item).collect()
}

/// The name of a policy, in quotes or not.
fn name(item: &str) -> &str {
    item.split(';').next().unwrap_or_default().trim()
}

fn pair(part: &str) -> Option<(String, u64)> {
    let (name, value) = part.split_once('=')?;
    Some((name.trim().to_ascii_lowercase(), number(value)?))
}

fn number(text: &str) -> Option<u64> {
    let text = text.trim().trim_matches('"');
    // A fraction is cut: `0.5` seconds and `0` requests are the same to us.
    match text.split('.').next()?.parse() {
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

fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    if let Some(seconds) = number(text) {
        return Some(bounded(seconds));
    }
    let moment = httpdate::parse_http_date(text.trim()).ok()?;
    Some(moment.duration_since(now).unwrap_or_default().min(LONGEST))
}

fn blind_hold(refusals: u32) -> Duration {
    FIRST_BLIND_HOLD.saturating_mul(1 << refusals.min(8)).min(LONGEST_BLIND_HOLD)
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
    fn every_dialect_is_understood() {
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
            &[("ratelimit", "limit=100, remaining=5, reset=50"), ("ratelimit-policy", "100;w=60")],
            [Some(100), Some(5), Some(60), Some(50), None],
        );
        check(
            &[("ratelimit", r#""default";r=5;t=50"#), ("ratelimit-policy", r#""default";q=100;w=60"#)],
            [Some(100), Some(5), Some(60), Some(50), None],
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
        let (daily, burst) = (r#""daily";r=0;t=3600"#, r#""burst";r=50;t=1"#);
        let both = format!("{daily}, {burst}");
        let policies = ("ratelimit-policy", r#""burst";q=60;w=1, "daily";q=1000;w=86400"#);
        let expected = [Some(1000), Some(0), Some(86400), Some(3600), None];
        check(&[("ratelimit", &both), policies], expected);
        check(&[("ratelimit", daily), ("ratelimit", burst), policies], expected);
        check(&[("ratelimit", burst), ("ratelimit", daily), policies], expected);
        check(
            &[("ratelimit", r#""a";r=0;t=9, "b";r=0;t=50, "c";r=0"#)],
            [None, Some(0), None, Some(50), None],
        );

        let two = |name, first, second| [(name, first), (name, second)];
        let remaining = two("x-ratelimit-remaining", "10", "0");
        let resets = two("x-ratelimit-reset", "1", "60");
        let limits = two("x-ratelimit-limit", "20", "100");
        let lines = [remaining, resets, limits].concat();
        check(&lines, [Some(100), Some(0), None, Some(60), None]);
        let lines = [two("x-ratelimit-remaining", "0", "0"), resets].concat();
        check(&lines, [None, Some(0), None, Some(60), None]);
        let lines = [&remaining[..], &[("x-ratelimit-reset", "60"), ("x-ratelimit-limit", "100")]].concat();
        check(&lines, [Some(100), Some(0), None, Some(60), None]);
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
        assert_eq!((held.everyone, held.ends), (Some(FIRST_BLIND_HOLD), window.window));
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
            name in "ratelimit(-(limit|remaining|reset|policy))?|x-ratelimit-(limit|remaining|reset)|retry-after",
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
