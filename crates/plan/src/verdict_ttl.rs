//! How long it is true what a registry said about an image.
//!
//! Every Pod would otherwise ask again. Good news is kept and looked after in the background, since images rarely go
//! away; bad news that a person may be repairing this very second is kept only for as long as a wave of Pods lasts; and
//! news of a registry that cannot be reached ends when the registry is back.
//!
//! A registry may die while no Pod is created. Good news therefore also needs proof that its registry is alive: see
//! [`proof`].

use std::time::{Duration, SystemTime};

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;

/// Refusals and absences: an image that was just pushed, or a secret that was repaired, must not wait.
const REFUSED: Duration = Duration::from_secs(2);
/// Failures of a registry that is not known to be down as a whole are looked at again after this.
const FAILED: Duration = Duration::from_secs(1);
/// A positive verdict serves while its registry accepted a new connection, and answered on it, within this time.
const PROOF: Duration = Duration::from_secs(3);
/// Room for a refresh to come back, beside the time that the probe itself may take.
const SLACK: Duration = Duration::from_secs(1);
/// Where a registry that wants to be left alone does not say for how long.
const UNTOLD_QUOTA: Duration = Duration::from_secs(5);
/// However long a registry wants to be left alone, quotas are also raised and accounts changed.
const LONGEST_QUOTA: Duration = Duration::from_mins(1);

/// What an administrator can say about ages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ages {
    /// Age at which good news in use is refreshed.
    pub refresh: Duration,
    /// Longest time that a probe takes.
    pub patience: Duration,
    /// Longest time that a liveness check takes.
    pub check: Duration,
}

/// The life of one verdict, as ages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// From here on it is refreshed in the background if it is in use, and serves meanwhile. `None`: never.
    pub renew: Option<Duration>,
    /// From here on it is not used any more.
    pub end: Duration,
}

/// What to do with a verdict at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It serves.
    Good,
    /// It serves, and a fresh one should be fetched if it is in use.
    Renew,
    /// It says nothing any more.
    Gone,
}

/// What an answer means for the last digest that a tag was seen to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastDigest {
    Is(Digest),
    /// The registry says that the tag is gone, or refuses access: what was seen before is not used any more.
    Forgotten,
    /// It says nothing about the digest.
    Unchanged,
}

/// What of an answer outlives the verdict: which digest a tag has, until another answer says otherwise. A digest names
/// the same image for ever, so nothing is kept of it.
pub fn last_digest(image: &Reference, verdict: &Verdict) -> LastDigest {
    match verdict {
        _ if image.digest().is_some() => LastDigest::Unchanged,
        Verdict::Available { digest: Some(digest) } => LastDigest::Is(*digest),
        Verdict::NotFound { .. } | Verdict::Unauthorised { .. } | Verdict::Forbidden { .. } => {
            LastDigest::Forgotten
        }
        _ => LastDigest::Unchanged,
    }
}

/// How long a verdict that was found `now` will be good. `None`: it is not worth keeping. `jitter` in 0..1 keeps images
/// that were first asked for together from being refreshed together.
pub fn span(verdict: &Verdict, ages: Ages, now: SystemTime, jitter: f64) -> Option<Span> {
    let Ages { refresh, patience, .. } = ages;
    let early = 1.0 - 0.2 * jitter.clamp(0.0, 1.0);
    let span = match verdict {
        Verdict::Available { .. } => {
            Span { renew: Some(refresh.mul_f64(early)), end: refresh.saturating_mul(2) + patience }
        }
        Verdict::NotFound { .. }
        | Verdict::Unauthorised { .. }
        | Verdict::Forbidden { .. }
        | Verdict::TlsError { .. }
        | Verdict::Malformed { .. }
        | Verdict::OffLimits { .. } => Span { renew: None, end: REFUSED },
        Verdict::RateLimited { until, .. } => {
            let rest = until.map_or(UNTOLD_QUOTA, |until| until.duration_since(now).unwrap_or_default());
            Span { renew: None, end: rest.min(LONGEST_QUOTA) }
        }
        Verdict::Unreachable { .. } => {
            Span { renew: Some(FAILED.mul_f64(early)), end: FAILED + patience + SLACK }
        }
        Verdict::FailsOnNodes { .. } | Verdict::Unknown { .. } => return None,
    };
    (!span.end.is_zero()).then_some(span)
}

/// Whether a verdict of this age still serves. `recovered` is how long ago the registry was found to be back after an
/// outage, if that was after the verdict.
///
/// What was known before an outage is doubted after it. Bad news from within the outage serves for no longer than it
/// takes to refresh it: without that grace, a registry that only looks alive would make Pods wait each time it does.
pub fn standing(
    verdict: &Verdict,
    span: Span,
    ages: Ages,
    age: Duration,
    recovered: Option<Duration>,
) -> Standing {
    if age >= span.end {
        return Standing::Gone;
    }
    let Some(renew) = span.renew else {
        return Standing::Good;
    };
    match recovered {
        Some(since) if is_outage(verdict) && since >= ages.patience + SLACK / 2 => Standing::Gone,
        Some(_) => Standing::Renew,
        None if age >= renew => Standing::Renew,
        None => Standing::Good,
    }
}

/// Whether proof that a registry is alive still serves; `age` is that of the newest connection on which it answered
/// below
/// 500. Where it is gone, a liveness check has to pass before a positive verdict is used.
///
/// Under load the check is begun as long before the end as it may take, so that no Pod waits for it.
pub fn proof(age: Option<Duration>, ages: Ages) -> Standing {
    let renew = PROOF.saturating_sub(ages.check).max(PROOF / 2);
    match age {
        Some(age) if age < renew => Standing::Good,
        Some(age) if age < PROOF => Standing::Renew,
        Some(_) | None => Standing::Gone,
    }
}

/// Whether what a refresh found takes the place of what is known.
///
/// A refresh yields to all other callers, so it may be told to wait, or may not get its turn in time (`late`), where
/// admission would have got an answer. That is no news about an image that was there, unless the whole registry is
/// down.
pub fn replaces(known: &Verdict, found: &Verdict, late: bool, registry_is_down: bool) -> bool {
    match found {
        _ if !known.is_available() => true,
        Verdict::RateLimited { .. } | Verdict::Unknown { .. } => false,
        Verdict::Unreachable { .. } => registry_is_down || !late,
        _ => true,
    }
}

fn is_outage(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Unreachable { .. })
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use fairlead_domain::verdict::VerdictKind;
    use proptest::prelude::*;

    use super::*;

    const AGES: Ages = Ages {
        refresh: Duration::from_secs(30),
        patience: Duration::from_secs(1),
        check: Duration::from_secs(1),
    };

    fn verdict(kind: VerdictKind, until: Option<SystemTime>) -> Verdict {
        let reason = || "a reason".into();
        match kind {
            VerdictKind::Available => Verdict::Available { digest: None },
            VerdictKind::NotFound => Verdict::NotFound { reason: reason() },
            VerdictKind::Unauthorised => Verdict::Unauthorised { reason: reason() },
            VerdictKind::Forbidden => Verdict::Forbidden { reason: reason() },
            VerdictKind::RateLimited => Verdict::RateLimited { until, reason: reason() },
            VerdictKind::Unreachable => Verdict::Unreachable { reason: reason() },
            VerdictKind::TlsError => Verdict::TlsError { reason: reason() },
            VerdictKind::Malformed => Verdict::Malformed { reason: reason() },
            VerdictKind::OffLimits => Verdict::OffLimits { reason: reason() },
            VerdictKind::FailsOnNodes => Verdict::FailsOnNodes { reason: reason() },
            VerdictKind::Unknown => Verdict::Unknown { reason: reason() },
        }
    }

    fn kinds() -> impl Strategy<Value = VerdictKind> {
        proptest::sample::select(VerdictKind::ALL.to_vec())
    }

    fn at(kind: VerdictKind, age: Duration, recovered: Option<Duration>) -> Standing {
        let verdict = verdict(kind, None);
        let span = span(&verdict, AGES, UNIX_EPOCH, 0.0).unwrap();
        standing(&verdict, span, AGES, age, recovered)
    }

    #[test]
    fn good_news_serves_is_refreshed_and_ends() {
        let after = |seconds| at(VerdictKind::Available, Duration::from_secs(seconds), None);
        assert_eq!([after(0), after(29), after(30), after(60), after(61)], {
            use Standing::{Gone, Good, Renew};
            [Good, Good, Renew, Renew, Gone]
        });
    }

    #[test]
    fn what_a_person_can_repair_is_forgotten_after_two_seconds_and_never_refreshed() {
        for kind in [
            VerdictKind::NotFound,
            VerdictKind::Unauthorised,
            VerdictKind::Forbidden,
            VerdictKind::TlsError,
            VerdictKind::Malformed,
            VerdictKind::OffLimits,
        ] {
            assert_eq!(at(kind, Duration::from_millis(1999), None), Standing::Good, "{kind}");
            assert_eq!(at(kind, Duration::from_secs(2), None), Standing::Gone, "{kind}");
        }
    }

    #[test]
    fn a_quota_is_respected_to_its_end_and_for_a_minute_at_most() {
        let end = |until: Option<u64>| {
            let until = until.map(|seconds| UNIX_EPOCH + Duration::from_secs(100 + seconds));
            let now = UNIX_EPOCH + Duration::from_secs(100);
            span(&verdict(VerdictKind::RateLimited, until), AGES, now, 0.5).map(|span| span.end.as_secs())
        };
        assert_eq!(
            [end(Some(7)), end(Some(3600)), end(None), end(Some(0))],
            [Some(7), Some(60), Some(5), None]
        );
        let past = verdict(VerdictKind::RateLimited, Some(UNIX_EPOCH));
        assert_eq!(span(&past, AGES, UNIX_EPOCH + Duration::from_secs(1), 0.5), None);
    }

    #[test]
    fn a_failure_is_looked_at_again_soon_and_in_the_background() {
        let after = |millis| at(VerdictKind::Unreachable, Duration::from_millis(millis), None);
        assert_eq!([after(999), after(1000), after(2999), after(3000)], {
            use Standing::{Gone, Good, Renew};
            [Good, Renew, Renew, Gone]
        });
    }

    #[test]
    fn an_outage_that_is_over_is_forgotten_after_the_time_of_one_refresh() {
        let after = |kind, millis| at(kind, Duration::from_secs(2), Some(Duration::from_millis(millis)));
        assert_eq!(after(VerdictKind::Unreachable, 0), Standing::Renew);
        assert_eq!(after(VerdictKind::Unreachable, 1500), Standing::Gone);
        assert_eq!(after(VerdictKind::Available, 0), Standing::Renew);
        assert_eq!(after(VerdictKind::Available, 1500), Standing::Renew, "it was there before");
    }

    #[test]
    fn proof_of_life_is_renewed_ahead_of_its_end_and_never_serves_longer_than_three_seconds() {
        use Standing::{Gone, Good, Renew};
        for (check, expected) in [
            (1000, [Good, Good, Good, Renew, Renew, Gone, Gone]),
            (1500, [Good, Good, Renew, Renew, Renew, Gone, Gone]),
            (60_000, [Good, Good, Renew, Renew, Renew, Gone, Gone]),
            (0, [Good, Good, Good, Good, Good, Gone, Gone]),
        ] {
            let ages = Ages { check: Duration::from_millis(check), ..AGES };
            let at = |millis| proof(Some(Duration::from_millis(millis)), ages);
            assert_eq!([0, 1499, 1500, 2000, 2999, 3000, 20_000].map(at), expected, "checks of {check} ms");
            assert_eq!(proof(None, ages), Gone, "it was never proven");
        }
    }

    #[test]
    fn a_refresh_that_was_not_let_through_is_no_news() {
        let there = verdict(VerdictKind::Available, None);
        let found = |kind, late, down| replaces(&there, &verdict(kind, None), late, down);
        assert!(!found(VerdictKind::RateLimited, false, false));
        assert!(!found(VerdictKind::Unreachable, true, false));
        assert!(found(VerdictKind::Unreachable, true, true));
        assert!(found(VerdictKind::Unreachable, false, false));
        for kind in [VerdictKind::NotFound, VerdictKind::Unauthorised, VerdictKind::Available] {
            assert!(found(kind, false, false), "{kind}");
        }
        assert!(replaces(&verdict(VerdictKind::Unreachable, None), &there, false, false));
    }

    proptest! {
        #[test]
        fn time_only_takes_away(
            kind in kinds(),
            jitter in 0.0_f64..1.0,
            refresh in 1_u64..600,
            patience in 1_u64..30,
            ages in proptest::collection::vec(0_u64..2_000_000, 2..20),
        ) {
            let patience = Duration::from_secs(patience);
            let bounds = Ages { refresh: Duration::from_secs(refresh), patience, check: patience };
            let verdict = verdict(kind, None);
            let Some(span) = span(&verdict, bounds, UNIX_EPOCH, jitter) else {
                prop_assert!(matches!(kind, VerdictKind::Unknown | VerdictKind::FailsOnNodes));
                return Ok(());
            };
            prop_assert!(span.renew.is_none_or(|renew| renew + bounds.patience < span.end), "a refresh has time");
            let mut ages = ages;
            ages.sort_unstable();
            let rank = |age: &u64| match standing(&verdict, span, bounds, Duration::from_millis(*age), None) {
                Standing::Good => 0,
                Standing::Renew => 1,
                Standing::Gone => 2,
            };
            prop_assert!(ages.iter().map(rank).is_sorted());
            if kind != VerdictKind::Available {
                prop_assert!(span.end <= LONGEST_QUOTA.max(FAILED + bounds.patience + SLACK));
            }
        }

        #[test]
        fn a_quota_never_outlives_its_end(until in 0_u64..10_000, now in 0_u64..10_000) {
            let [until, now] = [until, now].map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
            let kept = span(&verdict(VerdictKind::RateLimited, Some(until)), AGES, now, 0.0);
            prop_assert_eq!(kept.is_some(), until > now);
            prop_assert!(kept.is_none_or(|kept| now + kept.end <= until && kept.end <= LONGEST_QUOTA));
        }
    }
}
