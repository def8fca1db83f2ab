//! How long what was read of a Secret is believed.
//!
//! Content: for a minute; then it still serves while it is read again, so that no Pod waits for a rotation that did not
//! happen, but for no longer than a few minutes if the API server stays away. A Secret that is missing: for seconds,
//! because people create it when they see the complaint. A failure: until the next attempt is due.

use std::time::Duration;

pub use crate::verdict_ttl::Standing;

const FRESH: Duration = Duration::from_mins(1);
/// What cannot be read again is believed for so long.
const LONGEST: Duration = Duration::from_mins(5);
const MISSING: Duration = Duration::from_secs(5);
/// A registry that goes on refusing a password must not lead to a read for every Pod.
const DISTRUST_EVERY: Duration = Duration::from_secs(10);

/// What a read led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOutcome {
    /// What the Secret holds, be it of use or not.
    Content,
    Missing,
    Failed,
}

/// What is known of one Secret at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    pub outcome: ReadOutcome,
    pub age: Duration,
    /// The pause after the last failure is over.
    pub may_retry: bool,
    /// A registry refused what it holds.
    pub distrusted: bool,
}

impl Reading {
    /// Whether it serves.
    pub fn standing(self) -> Standing {
        let Self { outcome, age, may_retry, distrusted } = self;
        let (is_over, is_due) = match outcome {
            ReadOutcome::Failed => (may_retry, false),
            ReadOutcome::Missing => (age >= MISSING, false),
            ReadOutcome::Content => (age >= LONGEST || (distrusted && may_retry), age >= FRESH && may_retry),
        };
        match (is_over, is_due) {
            (true, _) => Standing::Gone,
            (false, true) => Standing::Renew,
            (false, false) => Standing::Good,
        }
    }

    /// Whether it goes on serving after an attempt to read the Secret again has failed.
    pub fn outlives_failure(self) -> bool {
        self.outcome == ReadOutcome::Content && self.age < LONGEST
    }

    /// Whether the refusal of a registry leads to a read: the Secret may have changed since it was read.
    pub fn may_be_outdated(self) -> bool {
        self.outcome == ReadOutcome::Content && self.age >= DISTRUST_EVERY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ages_and_is_doubted_after_a_refusal() {
        use Standing::{Gone, Good, Renew};
        let at = |outcome, seconds, may_retry, distrusted| {
            let age = Duration::from_secs(seconds);
            Reading { outcome, age, may_retry, distrusted }.standing()
        };
        for (outcome, seconds, may_retry, distrusted, expected) in [
            (ReadOutcome::Content, 59, true, false, Good),
            (ReadOutcome::Content, 60, true, false, Renew),
            (ReadOutcome::Content, 60, false, false, Good),
            (ReadOutcome::Content, 300, false, false, Gone),
            (ReadOutcome::Content, 10, true, true, Gone),
            (ReadOutcome::Content, 10, false, true, Good),
            (ReadOutcome::Missing, 4, true, false, Good),
            (ReadOutcome::Missing, 5, true, false, Gone),
            (ReadOutcome::Failed, 0, false, false, Good),
            (ReadOutcome::Failed, 0, true, false, Gone),
        ] {
            let found = at(outcome, seconds, may_retry, distrusted);
            assert_eq!(found, expected, "{outcome:?} after {seconds} s, {may_retry} {distrusted}");
        }
    }
}
