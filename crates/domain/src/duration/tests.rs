use proptest::prelude::*;

use super::*;

fn nanos(text: &str) -> u128 {
    text.parse::<Duration>().unwrap_or_else(|error| panic!("{text}: {error}")).as_std().as_nanos()
}

fn refusal(text: &str) -> String {
    match text.parse::<Duration>() {
        Ok(read) => panic!("{text} was read as {:?}", read.as_std()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn reads_what_go_reads() {
    const SECOND: u128 = 1_000_000_000;
    for (text, expected) in [
        ("0", 0),
        ("0s", 0),
        ("+0", 0),
        ("5s", 5 * SECOND),
        ("+5s", 5 * SECOND),
        ("90s", 90 * SECOND),
        ("168h", 168 * 3_600 * SECOND),
        ("1h30m", 5_400 * SECOND),
        ("1h0m0s", 3_600 * SECOND),
        ("30m1h", 5_400 * SECOND),
        ("1.5h", 5_400 * SECOND),
        (".5s", SECOND / 2),
        ("1.s", SECOND),
        ("1.000000001s", SECOND + 1),
        ("1.0000000019s", SECOND + 1),
        ("0.3333333333333333333h", 1_200 * SECOND - 1),
        ("100ms", SECOND / 10),
        ("7us", 7_000),
        ("7µs", 7_000),
        ("7μs", 7_000),
        ("9ns", 9),
        ("2562047h47m16.854775807s", i64::MAX as u128),
    ] {
        assert_eq!(nanos(text), expected, "{text}");
    }
}

#[test]
fn keeps_the_text_and_compares_the_span() {
    let week: Duration = "168h".parse().unwrap();
    assert_eq!(week.to_string(), "168h");
    assert_eq!(serde_json::to_string(&week).unwrap(), r#""168h""#);
    assert_eq!(serde_json::from_str::<Duration>(r#""168h""#).unwrap().as_str(), "168h");
    assert_eq!("60m".parse::<Duration>().unwrap(), "1h".parse().unwrap());
    assert!("59m".parse::<Duration>().unwrap() < "1h".parse().unwrap());
}

#[test]
fn says_what_is_wrong_and_how_to_write_it() {
    for (text, expected) in [
        ("", "empty"),
        ("+", "empty"),
        ("7d", "unit `d`, which does not exist (did you mean 168h?)"),
        ("2w", "(did you mean 336h?)"),
        ("5min", "(did you mean 5m?)"),
        ("1h3", "the number 3 without a unit"),
        ("30", "the number 30 without a unit"),
        ("h", "something other than a number before `h`"),
        ("1..5h", "something other than a number before `1..5h`"),
        (".h", "something other than a number"),
        ("soon", "something other than a number"),
        ("1h 30m", "unit `h `"),
        ("-5s", "cannot be negative"),
        ("1h-30m", "cannot be negative"),
        ("2562048h", "longer than 2562047h"),
        ("2562047h60m", "longer than 2562047h"),
        ("99999999999999999999h", "longer than 2562047h"),
        ("1fortnight", "unit `fortnight`"),
    ] {
        let message = refusal(text);
        assert!(message.contains(expected), "{text}: {message}");
        assert!(message.contains("168h") || message.contains("2562047h"), "{text}: no remedy in {message}");
    }
    assert!(refusal(&"1h".repeat(33)).contains("66 characters long"));
}

#[test]
fn refuses_json_that_is_not_text() {
    let message = serde_json::from_str::<Duration>("30").unwrap_err().to_string();
    assert!(message.contains("a duration: write numbers"), "{message}");
}

#[test]
fn renders_spans_shortly() {
    for (seconds, expected) in [(0, "0s"), (90, "1m30s"), (5_400, "1h30m"), (604_800, "168h")] {
        assert_eq!(Duration::from(std::time::Duration::from_secs(seconds)).as_str(), expected);
    }
    assert_eq!(Duration::from(std::time::Duration::from_millis(1_500)).as_str(), "1s500ms");
    assert_eq!(Duration::from(std::time::Duration::MAX).as_std().as_nanos(), i64::MAX as u128);
}

fn pattern() -> regex::Regex {
    regex::Regex::new(PATTERN).unwrap()
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in ".{0,80}") {
        let _ = text.parse::<Duration>();
    }

    #[test]
    fn durationlike_text_agrees_with_the_pattern(text in "[+-]?([0-9]{0,22}[.]?[0-9]{0,22}(ns|us|µs|μs|ms|s|m|h|d|)){0,3}") {
        match text.parse::<Duration>() {
            Ok(read) => {
                prop_assert!(pattern().is_match(&text), "read, but the schema refuses it");
                prop_assert_eq!(read.as_str(), text);
            }
            Err(DurationError::OutOfRange { .. } | DurationError::TooLong { .. }) => {}
            Err(_) => prop_assert!(!pattern().is_match(&text), "the schema accepts it, but it cannot be read"),
        }
    }

    #[test]
    fn every_span_survives_its_own_text(nanos in 0..=i64::MAX.unsigned_abs()) {
        let span = Duration::from(std::time::Duration::from_nanos(nanos));
        let reread: Duration = span.as_str().parse().unwrap();
        prop_assert_eq!(reread.as_std().as_nanos(), u128::from(nanos));
        prop_assert!(pattern().is_match(span.as_str()));
    }

    #[test]
    fn parts_add_up(hours in 0_u64..2_000_000, minutes in 0_u64..10_000, seconds in 0_u64..10_000) {
        let text = format!("{hours}h{minutes}m{seconds}s");
        prop_assert_eq!(nanos(&text), u128::from(hours * 3_600 + minutes * 60 + seconds) * 1_000_000_000);
    }
}
