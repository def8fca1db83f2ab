//! Errors of registry calls, by what users and planners can do about them.

use std::sync::Arc;
use std::time::SystemTime;

use fairlead_domain::verdict::Verdict;
use hyper::StatusCode;
use serde::Deserialize;
use thiserror::Error;

use crate::auth::redact::SentSecrets;
use crate::limits::quota::Quota;
use crate::transport::failure::Failure;

/// Longest quote of a registry's own words in a message, in characters.
const LONGEST_QUOTE: usize = 300;

/// In place of words that contain a secret.
const LEFT_OUT: &str = "its words repeat a secret and are left out";

/// Longest detail, in characters. It may contain words of a server, and ends up in logs, events and the status of
/// objects.
const LONGEST_DETAIL: usize = 1000;

/// A failed operation and its problem.
#[derive(Clone, Debug, Error)]
#[error("cannot {attempt}: {problem}")]
pub struct Error {
    pub attempt: Arc<str>,
    pub problem: Problem,
}

/// What went wrong. Cheap to clone, because callers that share a request share its failure.
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
        /// When it is known to be available again.
        until: Option<SystemTime>,
        detail: Detail,
    },
    #[error("{0}")]
    Unreachable(Outage),
    #[error("there was no answer before the deadline{0}")]
    TimedOut(Detail),
    #[error("no trusted connection to the registry{0}")]
    Tls(Detail),
    #[error("the registry's response is malformed{0}")]
    Malformed(Detail),
    #[error("the registry refuses the request with status {status}{detail}")]
    Rejected { status: u16, detail: Detail },
    #[error("the registry is not contacted{0}")]
    OffLimits(Detail),
    #[error("the settings of this registry are wrong{0}")]
    Misconfigured(Detail),
    #[error("the content does not have the digest it was asked for by{0}")]
    DigestMismatch(Detail),
}

/// How a failure is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// It may pass; retry later.
    Retry,
    /// Retry when the quota is available again.
    WaitForQuota,
    /// A setting is wrong; a retry does not help.
    Misconfigured,
    /// Other credentials or rights are needed.
    Denied,
    /// It does not exist.
    Absent,
    /// The server breaks the protocol.
    Broken,
}

/// The particulars of a problem, shown after a colon.
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
        if text.is_empty() {
            return Self::none();
        }
        let mut line = on_one_line(text, LONGEST_DETAIL);
        if line.len() < text.len() {
            line.push('…');
        }
        Self(Some(line.into()))
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

/// Why a registry cannot be used, and until when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outage {
    pub kind: OutageKind,
    pub detail: Detail,
    /// No request makes sense before this: the registry said so, or its next trial is due then.
    pub until: Option<SystemTime>,
}

/// Kinds of outages, which users investigate in different places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutageKind {
    /// No connection, or no answer.
    #[default]
    Away,
    /// It answers with an error of its own.
    Erring,
    /// It answers that its storage is full.
    Full,
}

impl<T: AsRef<str>> From<T> for Outage {
    fn from(text: T) -> Self {
        Self { kind: OutageKind::Away, detail: text.into(), until: None }
    }
}

impl std::fmt::Display for Outage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.kind {
            OutageKind::Away => "the registry cannot be reached",
            OutageKind::Erring => "the registry answers with an error",
            OutageKind::Full => "the registry has no space left",
        };
        write!(f, "{what}{}", self.detail)
    }
}

impl Error {
    pub fn class(&self) -> ErrorClass {
        match &self.problem {
            Problem::NotFound(_) => ErrorClass::Absent,
            Problem::Unauthorised(_) | Problem::Forbidden(_) => ErrorClass::Denied,
            Problem::RateLimited { .. } => ErrorClass::WaitForQuota,
            Problem::Unreachable(_) | Problem::TimedOut(_) => ErrorClass::Retry,
            Problem::Tls(_) | Problem::Misconfigured(_) | Problem::OffLimits(_) => ErrorClass::Misconfigured,
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

    /// The problem that a status stands for; `None` for success.
    pub(crate) fn of_status(
        status: StatusCode,
        quota: &Quota,
        words: &str,
        is_full: bool,
        now: SystemTime,
    ) -> Option<Self> {
        let detail = |fallback: &str| Detail::from(if words.is_empty() { fallback } else { words });
        Some(match status.as_u16() {
            200..=299 => return None,
            401 => Self::Unauthorised(words.into()),
            403 => Self::Forbidden(words.into()),
            404 | 410 => Self::NotFound(words.into()),
            429 => Self::quota(quota, words, now),
            300..=399 => Self::Malformed(detail(&format!("status {} leads nowhere", named(status)))),
            407 => {
                Self::Unreachable("a proxy on the way to it wants a user name and password, or others".into())
            }
            501 | 505 => Self::Rejected { status: status.as_u16(), detail: words.into() },
            408 | 499 => {
                let detail = detail(&format!("it answers with status {}", named(status)));
                let until = quota.retry_after.and_then(|rest| now.checked_add(rest));
                Self::Unreachable(Outage { kind: OutageKind::Away, detail, until })
            }
            500.. => {
                let detail = detail(&format!("it answers with status {}", named(status)));
                let until = quota.retry_after.and_then(|rest| now.checked_add(rest));
                let kind = if is_full || status == StatusCode::INSUFFICIENT_STORAGE {
                    OutageKind::Full
                } else {
                    OutageKind::Erring
                };
                Self::Unreachable(Outage { kind, detail, until })
            }
            code => Self::Rejected { status: code, detail: words.into() },
        })
    }

    /// A server that answers with an error.
    pub(crate) fn of_server_error(status: StatusCode) -> Self {
        let detail = format!("it answered with status {}", named(status)).into();
        Self::Unreachable(Outage { kind: OutageKind::Erring, detail, until: None })
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
            Failure::OffLimits(off_limits) => Self::OffLimits(off_limits.to_string().into()),
            Failure::Malformed(reason) => Self::Malformed(reason.into()),
        }
    }

    /// The same problem of another server that the registry points to.
    pub(crate) fn of(self, whose: &str) -> Self {
        let told =
            |detail: &Detail| Detail::from(format!("{whose}: {}", detail.as_str().unwrap_or("no answer")));
        match self {
            Self::Unreachable(outage) => Self::Unreachable(Outage { detail: told(&outage.detail), ..outage }),
            Self::TimedOut(detail) => Self::TimedOut(told(&detail)),
            Self::Tls(detail) => Self::Tls(told(&detail)),
            Self::Malformed(detail) => Self::Malformed(told(&detail)),
            other => other,
        }
    }

    /// The verdict on an image.
    pub fn verdict(&self) -> Verdict {
        let reason = || -> Arc<str> { self.to_string().into() };
        match self {
            Self::NotFound(_) => Verdict::NotFound { reason: reason() },
            Self::Unauthorised(_) => Verdict::Unauthorised { reason: reason() },
            Self::Forbidden(_) => Verdict::Forbidden { reason: reason() },
            Self::RateLimited { until, .. } => Verdict::RateLimited { until: *until, reason: reason() },
            Self::Unreachable(_) | Self::TimedOut(_) => Verdict::Unreachable { reason: reason() },
            Self::Tls(_) | Self::Misconfigured(_) => Verdict::TlsError { reason: reason() },
            Self::OffLimits(_) => Verdict::OffLimits { reason: reason() },
            Self::Malformed(_) | Self::Rejected { .. } | Self::DigestMismatch(_) => {
                Verdict::Malformed { reason: reason() }
            }
        }
    }

    /// Whether the content may be absent: registries also answer with a refusal then.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(self, Self::NotFound(_) | Self::Forbidden(_) | Self::Unauthorised(_))
    }

    /// Whether another credential could lead to another result.
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

/// A registry's own explanation on one line, without secrets. They are searched before anything is cut off, because
/// half a secret is not recognised.
pub(crate) fn words_of(body: &[u8], secrets: SentSecrets<'_>) -> String {
    let Ok(ErrorBody { errors }) = serde_json::from_slice(body) else {
        return String::new();
    };
    let fit = |text: String| if secrets.are_in(&text) { LEFT_OUT.to_owned() } else { text };
    let said = errors.into_iter().take(3).map(|ErrorEntry { code, message }| {
        let (code, message) = (fit(code), fit(message));
        match (code.is_empty(), message.is_empty()) {
            (false, false) => format!("{code} ({message})"),
            (false, true) => code,
            (true, _) => message,
        }
    });
    let line: String = said.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ");
    on_one_line(&line, LONGEST_QUOTE)
}

/// `ENOSPC` and `EDQUOT`.
const NO_ROOM: [i64; 2] = [28, 122];

/// Whether an error says that the storage is full. Registries pass on the storage's message or, as distribution does,
/// the number of the operating system's error.
pub(crate) fn says_full(body: &[u8]) -> bool {
    let Ok(body) = serde_json::from_slice::<serde_json::Value>(body) else { return false };
    is_no_room(&body, false)
}

fn is_no_room(value: &serde_json::Value, is_errno: bool) -> bool {
    use serde_json::Value;
    match value {
        Value::String(text) => {
            let text = text.to_ascii_lowercase();
            ["no space left on device", "disk quota exceeded", "insufficient storage"]
                .iter()
                .any(|words| text.contains(words))
        }
        Value::Number(number) => is_errno && number.as_i64().is_some_and(|number| NO_ROOM.contains(&number)),
        Value::Array(values) => values.iter().any(|value| is_no_room(value, false)),
        Value::Object(fields) => fields.iter().any(|(name, value)| is_no_room(value, name == "Err")),
        Value::Null | Value::Bool(_) => false,
    }
}

/// A status with its name.
pub(crate) fn named(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(name) => format!("{} {name}", status.as_str()),
        None => status.as_str().to_owned(),
    }
}

/// Without control characters, and cut to a length.
fn on_one_line(text: &str, longest: usize) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(longest).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;

    fn problem(status: u16) -> Option<Problem> {
        Problem::of_status(StatusCode::from_u16(status).unwrap(), &Quota::default(), "", false, UNIX_EPOCH)
    }

    #[test]
    fn every_status_has_its_meaning() {
        for status in [200, 201, 202, 204, 206] {
            assert_eq!(problem(status), None, "{status}");
        }
        assert!(matches!(problem(401), Some(Problem::Unauthorised(_))));
        assert!(matches!(problem(403), Some(Problem::Forbidden(_))));
        for status in [404, 410] {
            assert!(matches!(problem(status), Some(Problem::NotFound(_))), "{status}");
        }
        assert!(matches!(problem(429), Some(Problem::RateLimited { until: None, .. })));
        for status in [400, 405, 409, 413, 416, 501] {
            assert!(matches!(problem(status), Some(Problem::Rejected { .. })), "{status}");
        }
        for status in [408, 499, 500, 502, 503, 504, 520, 522, 524] {
            assert!(matches!(problem(status), Some(Problem::Unreachable(_))), "{status}");
        }
        assert!(matches!(problem(302), Some(Problem::Malformed(_))));
        let proxys = problem(407).unwrap();
        assert!(
            matches!(proxys, Problem::Unreachable(_)) && proxys.to_string().contains("a proxy"),
            "{proxys}"
        );
    }

    #[test]
    fn a_quota_says_when_it_ends() {
        let quota = Quota { retry_after: Some(Duration::from_secs(30)), ..Quota::default() };
        let problem = Problem::of_status(StatusCode::TOO_MANY_REQUESTS, &quota, "", false, UNIX_EPOCH);
        let until = Some(UNIX_EPOCH + Duration::from_secs(30));
        assert_eq!(problem, Some(Problem::RateLimited { until, detail: Detail::none() }));
    }

    #[test]
    fn a_registry_that_is_away_says_when_it_is_back() {
        let quota = Quota { retry_after: Some(Duration::from_secs(30)), ..Quota::default() };
        let problem = Problem::of_status(StatusCode::SERVICE_UNAVAILABLE, &quota, "later", false, UNIX_EPOCH);
        let until = Some(UNIX_EPOCH + Duration::from_secs(30));
        let erring = |detail: &str| Outage { kind: OutageKind::Erring, detail: detail.into(), until };
        assert_eq!(problem, Some(Problem::Unreachable(erring("later"))));
        let told = problem.map(|problem| problem.of("its storage"));
        assert_eq!(told, Some(Problem::Unreachable(erring("its storage: later"))));
    }

    #[test]
    fn a_full_disk_does_not_read_as_a_registry_that_is_away() {
        let told = |status: u16, body: &str| {
            let (status, words) =
                (StatusCode::from_u16(status).unwrap(), words_of(body.as_bytes(), SentSecrets::default()));
            let full = says_full(body.as_bytes());
            Problem::of_status(status, &Quota::default(), &words, full, UNIX_EPOCH).unwrap().to_string()
        };
        // As distribution tells it: the number is ENOSPC.
        let distribution = r#"{"errors":[{"code":"UNKNOWN","message":"unknown error","detail":{"DriverName":"filesystem",
            "Enclosed":{"Op":"mkdir","Path":"/var/lib/registry/docker","Err":28}}}]}"#;
        assert_eq!(told(500, distribution), "the registry has no space left: UNKNOWN (unknown error)");
        let words = r#"{"errors":[{"code":"UNKNOWN","message":"write /data/x: No space left on device"}]}"#;
        assert!(
            told(500, words).starts_with("the registry has no space left: UNKNOWN (write"),
            "{}",
            told(500, words)
        );
        assert!(told(507, "").starts_with("the registry has no space left: "), "{}", told(507, ""));
        let other = r#"{"errors":[{"code":"UNKNOWN","message":"unknown error","detail":{"Err":13}}]}"#;
        assert_eq!(told(500, other), "the registry answers with an error: UNKNOWN (unknown error)");
        assert!(told(503, "<html>").starts_with("the registry answers with an error: "));
        assert!(told(408, "").starts_with("the registry cannot be reached: "));
        let watched = r#"{"errors":[{"code":"X","detail":{"count":28}}]}"#;
        assert!(
            !says_full(watched.as_bytes()) && !says_full(b"no space left on device"),
            "only what is an error"
        );
    }

    #[test]
    fn a_registrys_words_are_repeated_on_one_line() {
        let body = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest\nunknown"},{"code":"X"}]}"#;
        assert_eq!(words_of(body, SentSecrets::default()), "MANIFEST_UNKNOWN (manifest unknown); X");
        assert_eq!(words_of(b"<html>", SentSecrets::default()), "");
        let error =
            Problem::NotFound(words_of(body, SentSecrets::default()).into()).during("look up r.example/a:1");
        assert_eq!(
            error.to_string(),
            "cannot look up r.example/a:1: it is not there: MANIFEST_UNKNOWN (manifest unknown); X"
        );
    }

    #[test]
    fn strangers_words_are_bounded_wherever_they_come_from() {
        let problem = Problem::malformed(format!("it sent no manifest but é\n{}", "x".repeat(5_000_000)));
        let told = problem.to_string();
        assert!(told.contains("but é x") && told.ends_with("x…"), "{}", &told[..100]);
        assert!(told.chars().count() < LONGEST_DETAIL + 100);
        assert_eq!(Detail::from("é".repeat(LONGEST_DETAIL)).as_str().map(str::len), Some(2 * LONGEST_DETAIL));
    }

    proptest! {
        #[test]
        fn any_body_gives_one_bounded_line(body in proptest::collection::vec(any::<u8>(), 0..500), message in "\\PC{0,500}") {
            for bytes in [body, serde_json::json!({"errors": [{"message": message}]}).to_string().into_bytes()] {
                let words = words_of(&bytes, SentSecrets::default());
                prop_assert!(words.chars().count() <= LONGEST_QUOTE && !words.contains('\n'));
            }
        }
    }
}
