//! When an unused copy goes, as far as its record tells: for a reader of ledgers and statuses, which sees neither Pods
//! nor registries. The rules are those of [`may_delete`].

use std::borrow::Cow;

use fairlead_api::fairlead::CopyState;
use jiff::Timestamp;

use super::removal::{Candidate, Provenance, Veto, may_delete};
use super::targets::retention_end;

const FOUND: &str = "it was there before, Fairlead did not write it";

/// What a ledger or a status says of one copy.
#[derive(Debug, Clone, Copy)]
pub struct RecordedCopy<'a> {
    pub state: CopyState,
    /// Its last attempt failed.
    pub failing: bool,
    /// Fairlead or kube-image-keeper wrote it, as far as is known.
    pub written: bool,
    /// A Pod names it although none uses the image.
    pub named: bool,
    pub named_until: Option<Timestamp>,
    /// Why it stays for good.
    pub kept: Option<&'a str>,
}

/// What becomes of an unused copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forecast<'a> {
    /// Clean-up deletes it.
    Deleted { at: Timestamp },
    /// Clean-up passes it over.
    Kept { why: Cow<'a, str> },
    /// Its mirror is not cleaned up.
    Stays,
}

impl<'a> RecordedCopy<'a> {
    /// Why clean-up does not delete the copy, now or ever.
    pub fn kept_for_good(&self) -> Option<&'a str> {
        self.kept.or_else(|| (self.provenance() == Provenance::Foreign).then_some(FOUND))
    }

    /// A copy that is not there yet will be ours once it is.
    fn provenance(&self) -> Provenance {
        let found = self.state == CopyState::Mirrored && !self.written && !self.failing;
        if found { Provenance::Foreign } else { Provenance::Ours }
    }

    /// `retention`: that of its mirror, if the mirror is cleaned up. With its object a copy goes without waiting for
    /// it.
    pub fn forecast(
        &self,
        unused_since: Timestamp,
        retention: Option<std::time::Duration>,
        object_deleted: Option<Timestamp>,
    ) -> Forecast<'a> {
        let cleaned = retention.is_some() || self.state == CopyState::Deleting;
        let end = retention_end(unused_since, self.named_until, retention.unwrap_or_default());
        let at = object_deleted.unwrap_or(end);
        let candidate = Candidate {
            provenance: self.provenance(),
            due: cleaned.then_some(at),
            named_by: self.named.then_some(""),
            wanted_elsewhere: false,
            other_clusters: &Ok(()),
            now: Timestamp::MAX,
        };
        match (may_delete(&candidate), self.kept_for_good()) {
            (Err(Veto::CleanupOff), _) => Forecast::Stays,
            (Err(Veto::Named { .. }), _) => Forecast::Kept { why: "a Pod names it".into() },
            (_, Some(why)) => Forecast::Kept { why: why.into() },
            (Err(veto), None) => Forecast::Kept { why: veto.to_string().into() },
            (Ok(()), None) => Forecast::Deleted { at },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_copy_goes_when_its_retention_is_over_unless_clean_up_passes_it_over() {
        let copy = RecordedCopy {
            state: CopyState::Mirrored,
            failing: false,
            written: true,
            named: false,
            named_until: None,
            kept: None,
        };
        let kept = |why: &'static str| Forecast::Kept { why: why.into() };
        let deleted = |second| Forecast::Deleted { at: at(second) };
        let found = RecordedCopy { written: false, ..copy };
        for (copy, retention, object_deleted, expected) in [
            (copy, Some(DAY), None, deleted(86_400)),
            (copy, None, None, Forecast::Stays),
            (copy, Some(DAY), Some(at(5)), deleted(5)),
            (RecordedCopy { state: CopyState::Deleting, ..copy }, None, None, deleted(0)),
            (RecordedCopy { named_until: Some(at(10)), ..copy }, Some(DAY), None, deleted(86_410)),
            (RecordedCopy { named: true, ..copy }, Some(DAY), None, kept("a Pod names it")),
            (RecordedCopy { kept: Some("why"), ..found }, Some(DAY), None, kept("why")),
            (found, Some(DAY), None, kept(FOUND)),
            (found, None, None, Forecast::Stays),
            (RecordedCopy { state: CopyState::Failed, ..found }, Some(DAY), None, deleted(86_400)),
        ] {
            assert_eq!(copy.forecast(at(0), retention, object_deleted), expected, "{copy:?} {retention:?}");
        }
    }
}
