//! Times that are counted from other times.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// A time after another one. What lies beyond the end of all times is there.
pub(super) fn after(time: Timestamp, span: Duration) -> Timestamp {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// The latest time of which cutting off its fraction of a second may have left this one. Cut off afterwards, it is the
/// time rounded up.
pub(super) fn rounded_up(time: Timestamp) -> Timestamp {
    after(time, Duration::from_nanos(999_999_999))
}

/// The earlier one of two times, of which either may not exist.
pub(super) fn earliest(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
