//! What can go wrong when a registry is asked, in terms a person and a planner can act on.

use std::{sync::Arc, time::SystemTime};

use fairlead_domain::verdict::Verdict;
use reqwest::StatusCode;
use serde::Deserialize;
use thiserror::Error;

use crate::{manners::quota::Quota, transport::failure::Failure};

/// Longest piece of a registry's own words that is repeated in a message.
const LONGEST_QUOTE: usize = 300;

/// A failed attempt: what was tried on what, and what happened.
#[derive(Clone, Debug, Error)]
#[error("cannot {attempt}: {problem}")]
pub struct Error {
    pub attempt: Arc<str>,
    pub problem: Problem,
}

/// What happened. Cheap to copy, because one failure is told to everybody who waited for the same answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Problem {
    #[error("it is not there{0}")]
    NotFound(Detail),
    #[error("the registry does not accept the credentials, or wants some{0}")]
    Unauthorised(Detail),
    #[error("the credentials do not allow it{0}")]
    Forbidden(Detail),
    #[error("the registry's quota is used up{detail}")]
    RateLimited {
        /// When it is known to be there again.
        until: Option<SystemTime>,
        detail: Detail,
    },
    #[error("the registry cannot be reached{0}")]
    Unreachable(Detail),
    #[error("there was no answer before the deadline{0}")]
    TimedOut(Detail),
    #[error(
        "no trusted connection to the registry{0}; a private authority is named in registries.<host>.caFile"
    )]
    Tls(Detail),
    #[error("the registry's answer makes no sense{0}")]
    Malformed(Detail),
    #[error("the registry refuses the request with status {status}{detail}")]
    Rejected { status: u16, detail: Detail },
    #[error("the settings of this registry are wrong{0}")]
    Misconfigured(Detail),
    #[error("the content does not have the digest it was asked for by{0}")]
    DigestMismatch(Detail),
}

/// How a failure is dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// It may pass by itself; try again later.
    Retry,
    /// Try again when the quota is back.
    WaitForQuota,
    /// A setting is wrong; trying again does not help.
    Misconfigured,
    /// Other credentials or rights are needed.
    Denied,
    /// What was asked for does not exist.
    Absent,
    /// The other side breaks the protocol.
    Broken,
}

/// The particulars of a problem, for people. Shown after a colon when there are any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail(Option<Arc<str>>);

impl Detail {
    pub fn none() -> Self {
        Self(None)
    }

    pub fn as_str(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl<T: AsRef<str>> From<T> for Detail {
    fn from(text: T) -> Self {
        let text = text.as_ref();
        Self((!text.is_empty()).then(|| text.into()))
    }
}

impl std::fmt::Display for Detail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(text) => write!(f, ": {text}"),
            None => Ok(()),
        }
    }
}

impl Error {
    pub fn class(&self) -> ErrorClass {
        match &self.problem {
            Problem::NotFound(_) => ErrorClass::Absent,
            Problem::Unauthorised(_) | Problem::Forbidden(_) => ErrorClass::Denied,
            Problem::RateLimited { .. } => ErrorClass::WaitForQuota,
            Problem::Unreachable(_) | Problem::TimedOut(_) => ErrorClass::Retry,
            Problem::Tls(_) | Problem::Misconfigured(_) => ErrorClass::Misconfigured,
            Problem::Malformed(_) | Problem::Rejected { .. } | Problem::DigestMismatch(_) => {
                ErrorClass::Broken
            }
        }
    }
}

impl Problem {
    pub(crate) fn during(self, attempt: impl AsRef<str>) -> Error {
        Error { attempt: attempt.as_ref().into(), problem: self }
    }

    pub(crate) fn malformed(detail: impl AsRef<str>) -> Self {
        Self::Malformed(detail.into())
    }

    /// The problem an answer's status stands for; `None` for success.
    pub(crate) fn of_status(status: StatusCode, quota: &Quota, words: &str, now: SystemTime) -> Option<Self> {
        let detail = |fallback: &str| Detail::from(if words.is_empty() { fallback } else { words });
        Some(match status.as_u16() {
            200..=299 => return None,
            401 => Self::Unauthorised(words.into()),
            403 => Self::Forbidden(words.into()),
            404 => Self::NotFound(words.into()),
            429 => Self::quota(quota, words, now),
            300..=399 => Self::Malformed(format!("status {status} leads nowhere").into()),
            501 | 505 => Self::Rejected { status: status.as_u16(), detail: words.into() },
            500.. => Self::Unreachable(detail(&format!("it answers with status {status}"))),
            code => Self::Rejected { status: code, detail: words.into() },
        })
    }

    pub(crate) fn quota(quota: &Quota, words: &str, now: SystemTime) -> Self {
        Self::RateLimited {
            until: quota.ends_in().and_then(|rest| now.checked_add(rest)),
            detail: words.into(),
        }
    }

    pub(crate) fn of_failure(failure: Failure) -> Self {
        match failure {
            Failure::Unreachable(reason) | Failure::Unsent(reason) => Self::Unreachable(reason.into()),
            Failure::Tls(reason) | Failure::NotTls(reason) => Self::Tls(reason.into()),
            Failure::Forbidden(forbidden) => {
                Self::Malformed(format!("it leads to an address that is not contacted: {forbidden}").into())
            }
            Failure::Malformed(reason) => Self::Malformed(reason.into()),
        }
    }

    /// What this says about an image.
    pub fn verdict(&self) -> Verdict {
        let reason = || -> Arc<str> { self.to_string().into() };
        match self {
            Self::NotFound(_) => Verdict::NotFound { reason: reason() },
            Self::Unauthorised(_) => Verdict::Unauthorised { reason: reason() },
            Self::Forbidden(_) => Verdict::Forbidden { reason: reason() },
            Self::RateLimited { until, .. } => Verdict::RateLimited { until: *until, reason: reason() },
            Self::Unreachable(_) | Self::TimedOut(_) => Verdict::Unreachable { reason: reason() },
            Self::Tls(_) | Self::Misconfigured(_) => Verdict::TlsError { reason: reason() },
            Self::Malformed(_) | Self::Rejected { .. } | Self::DigestMismatch(_) => {
                Verdict::Malformed { reason: reason() }
            }
        }
    }

    /// Whether it may simply not be there: registries also hide what does not exist behind a refusal.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(self, Self::NotFound(_) | Self::Forbidden(_) | Self::Unauthorised(_))
    }

    /// Whether another credential could have a different outcome.
    pub(crate) fn depends_on_credential(&self) -> bool {
        matches!(
            self,
            Self::NotFound(_) | Self::Unauthorised(_) | Self::Forbidden(_) | Self::RateLimited { .. }
        )
    }
}

#[derive(Deserialize)]
struct ErrorBody {
    errors: Vec<ErrorEntry>,
}

#[derive(Deserialize)]
struct ErrorEntry {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// A registry's own explanation, made fit for one line: control characters out, length bounded.
pub(crate) fn words_of(body: &[u8]) -> String {
    let Ok(ErrorBody { errors }) = serde_json::from_slice(body) else {
        return String::new();
    };
    let said = errors.into_iter().take(3).map(|ErrorEntry { code, message }| {
        match (code.is_empty(), message.is_empty()) {
            (false, false) => format!("{code} ({message})"),
            (false, true) => code,
            (true, _) => message,
        }
    });
    let line: String = said.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ");
    line.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(LONGEST_QUOTE).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;

    fn problem(status: u16) -> Option<Problem> {
        Problem::of_status(StatusCode::from_u16(status).unwrap(), &Quota::default(), "", UNIX_EPOCH)
    }

    #[test]
    fn every_status_has_its_meaning() {
        for status in [200, 201, 202, 204, 206] {
            assert_eq!(problem(status), None, "{status}");
        }
        assert!(matches!(problem(401), Some(Problem::Unauthorised(_))));
        assert!(matches!(problem(403), Some(Problem::Forbidden(_))));
        assert!(matches!(problem(404), Some(Problem::NotFound(_))));
        assert!(matches!(problem(429), Some(Problem::RateLimited { until: None, .. })));
        for status in [400, 405, 409, 413, 416, 501] {
            assert!(matches!(problem(status), Some(Problem::Rejected { .. })), "{status}");
        }
        for status in [500, 502, 503, 504, 522] {
            assert!(matches!(problem(status), Some(Problem::Unreachable(_))), "{status}");
        }
        assert!(matches!(problem(302), Some(Problem::Malformed(_))));
    }

    #[test]
    fn a_quota_says_when_it_ends() {
        let quota = Quota { retry_after: Some(Duration::from_secs(30)), ..Quota::default() };
        let problem = Problem::of_status(StatusCode::TOO_MANY_REQUESTS, &quota, "", UNIX_EPOCH);
        let until = Some(UNIX_EPOCH + Duration::from_secs(30));
        assert_eq!(problem, Some(Problem::RateLimited { until, detail: Detail::none() }));
    }

    #[test]
    fn a_registrys_words_are_repeated_on_one_line() {
        let body = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest\nunknown"},{"code":"X"}]}"#;
        assert_eq!(words_of(body), "MANIFEST_UNKNOWN (manifest unknown); X");
        assert_eq!(words_of(b"<html>"), "");
        let error = Problem::NotFound(words_of(body).into()).during("look up r.example/a:1");
        assert_eq!(
            error.to_string(),
            "cannot look up r.example/a:1: it is not there: MANIFEST_UNKNOWN (manifest unknown); X"
        );
    }

    proptest! {
        #[test]
        fn any_body_gives_one_bounded_line(body in proptest::collection::vec(any::<u8>(), 0..500), message in "\\PC{0,500}") {
            for bytes in [body, serde_json::json!({"errors": [{"message": message}]}).to_string().into_bytes()] {
                let words = words_of(&bytes);
                prop_assert!(words.chars().count() <= LONGEST_QUOTE && !words.contains('\n'));
            }
        }
    }
}
