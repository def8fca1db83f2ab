//! What a look at an image tells.

use fairlead_api::kuik::Availability;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use jiff::Timestamp;

use crate::ledger::{Entry, Ledger, LedgerChange, Watch};

/// What people want to hear about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// The registry says that the image is not there. A registry that cannot be asked says nothing of the kind.
    Disappeared { was: Availability },
    /// An image that had disappeared is there again.
    Returned,
}

/// What follows from a look.
#[derive(Debug, Clone, PartialEq)]
pub struct Noted {
    pub change: LedgerChange,
    pub news: Option<News>,
}

/// What a look found. `secret_problem` says why a Secret that the look needed could not be used, so that the registry
/// was asked without it. `None` where the ledger does not hold the image any more.
pub fn note(
    ledger: &Ledger,
    image: &Reference,
    verdict: &Verdict,
    secret_problem: Option<&str>,
    now: Timestamp,
) -> Option<Noted> {
    let entry = ledger.get(image)?;
    let was = super::track::status(entry);
    let (is, error) = judge(verdict, secret_problem);
    let is = is.unwrap_or(was);
    let original = entry.watch.as_ref().is_some_and(|watch| watch.original);
    let watch = Watch { status: is, last_monitor: Some(now), last_error: error, original };
    let change = LedgerChange::set(image, Entry { watch: Some(watch.into()), ..entry.clone() });
    let news = match (was, is) {
        (Availability::NotFound, Availability::Available) => Some(News::Returned),
        (was, Availability::NotFound) if was != Availability::NotFound => Some(News::Disappeared { was }),
        _ => None,
    };
    Some(Noted { change, news })
}

/// The state that a verdict means, where it means one, and why it is not a good one.
fn judge(verdict: &Verdict, secret_problem: Option<&str>) -> (Option<Availability>, Option<Box<str>>) {
    let state = match verdict {
        Verdict::Available { .. } => return (Some(Availability::Available), None),
        Verdict::NotFound { .. } => Some(Availability::NotFound),
        Verdict::Unauthorised { .. } | Verdict::Forbidden { .. } => Some(Availability::InvalidAuth),
        Verdict::RateLimited { .. } => Some(Availability::QuotaExceeded),
        Verdict::Unreachable { .. } | Verdict::TlsError { .. } | Verdict::Malformed { .. } => {
            Some(Availability::Unreachable)
        }
        Verdict::OffLimits { .. } | Verdict::FailsOnNodes { .. } | Verdict::Unknown { .. } => None,
    };
    match (state, secret_problem) {
        // Registries hide from strangers what they have, so that without its Secret an image may seem to be missing.
        (Some(Availability::InvalidAuth | Availability::NotFound), Some(problem)) => {
            let error = format!("{problem}; asked without it, the registry says {verdict}");
            (Some(Availability::UnavailableSecret), Some(error.into()))
        }
        (state, _) => (state, Some(verdict.reason().into())),
    }
}
