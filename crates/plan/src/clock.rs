//! How far the clock of this process is from the API server's, and what follows.
//!
//! Retention is counted from times that earlier lease holders wrote, so a clock that is wrong would make copies look
//! unused for longer than they are. The API server's clock is what all replicas share: it is taken from the `Date`
//! header of its responses. Between two responses it goes on by the monotonic clock, which no administrator sets.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Clocks that differ by more than this are not taken for the same time.
pub const MOST_SKEW: SignedDuration = SignedDuration::from_mins(1);

/// A `Date` header has no fractions of a second.
const RESOLUTION: SignedDuration = SignedDuration::from_secs(1);

/// One response of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// Its `Date` header, which it set between the request and the response.
    pub date: Timestamp,
    /// How long the response took.
    pub took: Duration,
    /// How long ago it arrived.
    pub age: Duration,
}

/// What time it is, and whether it may be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The local clock's time while that agrees with the API server's, else the API server's.
    pub now: Timestamp,
    /// How far the local clock is ahead of the API server's, at least. `None`: they agree as far as can be told.
    pub skew: Option<SignedDuration>,
}

impl Reading {
    /// Why nothing is cleaned up, as a sentence.
    pub fn complaint(&self) -> Option<String> {
        let skew = self.skew?;
        let (seconds, way) =
            (skew.as_secs().unsigned_abs(), if skew.is_negative() { "behind" } else { "ahead of" });
        Some(format!(
            "the clock of this replica is {seconds} s {way} the API server's: nothing is cleaned up until it is set right"
        ))
    }
}

/// Reads the clock. Only what cannot be explained by the time that the response took, nor by the header's resolution,
/// counts as a difference.
pub fn read(local: Timestamp, seen: Option<Sighting>) -> Reading {
    let agreed = Reading { now: local, skew: None };
    let Some(Sighting { date, took, age }) = seen else { return agreed };
    let signed = |time: Duration| SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
    let later = |time: Timestamp, by: SignedDuration| time.checked_add(by).unwrap_or(Timestamp::MAX);
    let earliest = later(date, signed(age));
    let latest = later(later(earliest, signed(took)), RESOLUTION);
    let skew = if local < earliest {
        local.duration_since(earliest)
    } else if local > latest {
        local.duration_since(latest)
    } else {
        return agreed;
    };
    if skew.abs() <= MOST_SKEW { agreed } else { Reading { now: earliest, skew: Some(skew) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn seen(date: i64, took: u64, age: u64) -> Sighting {
        let [took, age] = [took, age].map(Duration::from_secs);
        Sighting { date: at(date), took, age }
    }

    #[test]
    fn a_clock_is_wrong_if_nothing_else_explains_the_difference() {
        for (what, local, seen, skew, now) in [
            ("never seen", 0, None, None, 0),
            ("the same", 0, Some(seen(0, 0, 0)), None, 0),
            ("a minute ahead", 61, Some(seen(0, 0, 0)), None, 61),
            ("more than a minute ahead", 62, Some(seen(0, 0, 0)), Some(61), 0),
            ("a minute behind", -60, Some(seen(0, 0, 0)), None, -60),
            ("more than a minute behind", -61, Some(seen(0, 0, 0)), Some(-61), 0),
            ("a response that took two minutes", 120, Some(seen(0, 120, 0)), None, 120),
            ("the same with a clock that is behind", -61, Some(seen(0, 120, 0)), Some(-61), 0),
            ("seen an hour ago", 3600, Some(seen(0, 0, 3600)), None, 3600),
            ("set since it was seen", 10_000, Some(seen(0, 0, 3600)), Some(6399), 3600),
            ("a year ahead", 31_536_000, Some(seen(0, 1, 2)), Some(31_535_996), 2),
        ] {
            let reading = read(at(local), seen);
            assert_eq!(reading.skew, skew.map(SignedDuration::from_secs), "{what}");
            assert_eq!(reading.now, at(now), "{what}");
            assert_eq!(reading.complaint().is_some(), skew.is_some(), "{what}");
        }
    }

    #[test]
    fn the_complaint_says_which_way() {
        let complaint =
            |skew| Reading { now: at(0), skew: Some(SignedDuration::from_secs(skew)) }.complaint().unwrap();
        assert!(complaint(300).starts_with("the clock of this replica is 300 s ahead of the API server's"));
        assert!(complaint(-90).starts_with("the clock of this replica is 90 s behind the API server's"));
    }
}
