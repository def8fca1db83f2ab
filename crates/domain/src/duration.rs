//! Durations as people write them in manifests and in the configuration file: Go's notation (`90s`, `1h30m`, `168h`).
//!
//! The text is kept as it was written, so that a value read from a manifest and written back is the same value
//! to a person and to a diff. Arithmetic is checked: no text, however long or large, panics or wraps around.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::str::FromStr;
use std::{fmt, hash};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Longer texts are refused unread. Go's own longest rendering has 24 characters.
pub const MAX_TEXT_LENGTH: usize = 64;

/// What a duration looks like, for schema validators that know regular expressions only.
pub const PATTERN: &str = r"^[+]?(0|(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$";

/// How to write a duration, in the words of every message about one.
pub const REMEDY: &str = "write numbers with the units h, m, s or ms, such as 90s, 1h30m or 168h (there is no unit \
                          for days: 7 days are 168h)";

/// Go counts nanoseconds in a signed 64-bit number, and other programs read the same manifests.
const LONGEST: u64 = i64::MAX.unsigned_abs();

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A span of time that is not negative, together with the text it was written as.
///
/// Equality, order and hash follow the span, not the text: `60m` equals `1h`.
#[derive(Clone)]
pub struct Duration {
    text: Cow<'static, str>,
    span: std::time::Duration,
}

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("the duration is empty: {REMEDY}")]
    Empty,
    #[error("the duration is {length} characters long, more than {MAX_TEXT_LENGTH}: {REMEDY}")]
    TooLong { length: usize },
    #[error("the duration `{text}` has a minus sign, but a duration cannot be negative: {REMEDY}")]
    Negative { text: String },
    #[error("the duration `{text}` has the number {number} without a unit: {REMEDY}")]
    MissingUnit { text: String, number: String },
    #[error("the duration `{text}` has the unit `{unit}`, which does not exist{suggestion}: {REMEDY}")]
    UnknownUnit { text: String, unit: String, suggestion: Suggestion },
    #[error("the duration `{text}` has something other than a number before `{rest}`: {REMEDY}")]
    NotANumber { text: String, rest: String },
    #[error("the duration `{text}` is longer than 2562047h, the longest that can be written")]
    OutOfRange { text: String },
}

/// The same time in a unit that exists, where there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion(Option<String>);

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(instead) => write!(f, " (did you mean {instead}?)"),
            None => Ok(()),
        }
    }
}

impl Duration {
    pub const ZERO: Self = Self { text: Cow::Borrowed("0s"), span: std::time::Duration::ZERO };

    pub const fn as_std(&self) -> std::time::Duration {
        self.span
    }

    pub const fn is_zero(&self) -> bool {
        self.span.is_zero()
    }

    /// The text as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl Default for Duration {
    fn default() -> Self {
        Self::ZERO
    }
}

/// Spans beyond what can be written become the longest that can.
impl From<std::time::Duration> for Duration {
    fn from(span: std::time::Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).map_or(LONGEST, |nanos| nanos.min(LONGEST));
        Self { text: Cow::Owned(render(nanos)), span: std::time::Duration::from_nanos(nanos) }
    }
}

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let length = text.chars().count();
        if length > MAX_TEXT_LENGTH {
            return Err(DurationError::TooLong { length });
        }
        let nanos = parse(text)?;
        Ok(Self { text: Cow::Owned(text.to_owned()), span: std::time::Duration::from_nanos(nanos) })
    }
}

/// Reads the sum of all parts in nanoseconds.
fn parse(text: &str) -> Result<u64, DurationError> {
    if text.contains('-') {
        return Err(DurationError::Negative { text: text.to_owned() });
    }
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if unsigned.is_empty() {
        return Err(DurationError::Empty);
    }
    if unsigned == "0" {
        return Ok(0);
    }
    let mut rest = unsigned;
    let mut total = 0_u64;
    while !rest.is_empty() {
        let (part, after) = parse_part(text, rest)?;
        total = total
            .checked_add(part)
            .filter(|total| *total <= LONGEST)
            .ok_or_else(|| DurationError::OutOfRange { text: text.to_owned() })?;
        rest = after;
    }
    Ok(total)
}

/// Reads one number with its unit from the front of `rest`; returns its nanoseconds and what follows.
fn parse_part<'a>(text: &str, rest: &'a str) -> Result<(u64, &'a str), DurationError> {
    let (number, after) = split_where(rest, |c| !c.is_ascii_digit() && c != '.');
    let (unit, after) = split_where(after, |c| c.is_ascii_digit() || c == '.');
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(DurationError::NotANumber { text: text.to_owned(), rest: rest.to_owned() });
    }
    if unit.is_empty() {
        return Err(DurationError::MissingUnit { text: text.to_owned(), number: number.to_owned() });
    }
    let Some(unit_nanos) = nanos_per(unit) else {
        return Err(DurationError::UnknownUnit {
            text: text.to_owned(),
            unit: unit.to_owned(),
            suggestion: suggest(number, unit),
        });
    };
    let nanos = whole_nanos(whole, unit_nanos)
        .and_then(|whole| whole.checked_add(fraction_nanos(fraction, unit_nanos)))
        .ok_or_else(|| DurationError::OutOfRange { text: text.to_owned() })?;
    Ok((nanos, after))
}

fn split_where(text: &str, boundary: impl Fn(char) -> bool) -> (&str, &str) {
    text.find(boundary).and_then(|at| text.split_at_checked(at)).unwrap_or((text, ""))
}

fn nanos_per(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // The micro sign and the Greek letter mu look the same and are different characters.
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => NANOS_PER_SECOND,
        "m" => 60 * NANOS_PER_SECOND,
        "h" => 3_600 * NANOS_PER_SECOND,
        _ => return None,
    })
}

fn whole_nanos(digits: &str, unit_nanos: u64) -> Option<u64> {
    if digits.is_empty() {
        return Some(0);
    }
    digits.parse::<u64>().ok()?.checked_mul(unit_nanos)
}

/// Digits beyond the nanosecond are cut off, as Go does.
fn fraction_nanos(digits: &str, unit_nanos: u64) -> u64 {
    let (nanos, _) =
        digits.bytes().fold((0_u128, u128::from(unit_nanos) * 1_000_000), |(sum, scale), digit| {
            let scale = scale / 10;
            (sum + u128::from(digit.saturating_sub(b'0')) * scale, scale)
        });
    u64::try_from(nanos / 1_000_000).unwrap_or(u64::MAX)
}

fn suggest(number: &str, unit: &str) -> Suggestion {
    let in_unit = |factor: u64, unit: &str| {
        let count = number.parse::<u64>().ok()?.checked_mul(factor)?;
        Some(format!("{count}{unit}"))
    };
    Suggestion(match unit {
        "d" | "day" | "days" => in_unit(24, "h"),
        "w" | "week" | "weeks" => in_unit(24 * 7, "h"),
        "H" | "hr" | "hrs" | "hour" | "hours" => in_unit(1, "h"),
        "min" | "mins" | "minute" | "minutes" => in_unit(1, "m"),
        "S" | "sec" | "secs" | "second" | "seconds" => in_unit(1, "s"),
        _ => None,
    })
}

/// The shortest usual text: `1h30m`, not `1h30m0s`.
fn render(nanos: u64) -> String {
    let (seconds, below) = (nanos / NANOS_PER_SECOND, nanos % NANOS_PER_SECOND);
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let mut text = String::new();
    for (count, unit) in [
        (hours, "h"),
        (minutes, "m"),
        (seconds, "s"),
        (below / 1_000_000, "ms"),
        (below / 1_000 % 1_000, "us"),
        (below % 1_000, "ns"),
    ] {
        if count > 0 {
            text.push_str(&count.to_string());
            text.push_str(unit);
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Duration {
    fn eq(&self, other: &Self) -> bool {
        self.span == other.span
    }
}

impl Eq for Duration {}

impl PartialOrd for Duration {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Duration {
    fn cmp(&self, other: &Self) -> Ordering {
        self.span.cmp(&other.span)
    }
}

impl hash::Hash for Duration {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.span.hash(state);
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Duration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a duration: {REMEDY}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Visitor)
    }
}

/// The pattern speaks to every schema validator. The rule beside it speaks to people: an API server reports both,
/// and only a rule can carry a remedy or see that a well-formed duration is too long.
impl JsonSchema for Duration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": MAX_TEXT_LENGTH,
            "pattern": PATTERN,
            "x-kubernetes-validations": [{
                "rule": format!("self.matches('{PATTERN}') && duration(self) >= duration('0s')"),
                "message": format!("not a duration: {REMEDY}"),
            }],
        })
    }
}

#[cfg(test)]
mod tests;
