//! Why a query failed, in the words that conditions use.

use thiserror::Error;

use fairlead_api::conditions::reasons;

/// Longest explanation of a server that is repeated.
const LONGEST_QUOTE: usize = 300;

/// Class of a failure: the reason of the `Ready` condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureReason {
    DnsError,
    ConnectionRefused,
    Timeout,
    Unauthorized,
    Forbidden,
    NotFound,
    TlsError,
    SecretUnavailable,
    /// None of the others.
    SyncFailed,
}

impl FailureReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DnsError => "DNSError",
            Self::ConnectionRefused => "ConnectionRefused",
            Self::Timeout => "Timeout",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::TlsError => "TLSError",
            Self::SecretUnavailable => reasons::SECRET_UNAVAILABLE,
            Self::SyncFailed => "SyncFailed",
        }
    }

    fn of_status(status: u16) -> Self {
        match status {
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            404 => Self::NotFound,
            408 | 504 => Self::Timeout,
            _ => Self::SyncFailed,
        }
    }
}

/// A query that failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Failure {
    pub reason: FailureReason,
    pub message: String,
}

impl Failure {
    pub fn new(reason: FailureReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// A malformed response.
    pub(super) fn malformed(message: impl Into<String>) -> Self {
        Self::new(FailureReason::SyncFailed, message)
    }

    /// An answer with a status other than 200. What a server says about the query is repeated where it refuses the
    /// query itself; anything else it says may be a page of a proxy.
    pub(super) fn of_status(status: u16, words: &str) -> Self {
        let words = quoted(words);
        let explained = matches!(status, 400 | 422) && !words.is_empty() && !words.starts_with('<');
        let message = if explained {
            format!("status {status}: {words}")
        } else {
            format!("the server answers with status {status}")
        };
        Self::new(FailureReason::of_status(status), message)
    }
}

/// One line of bounded length.
pub(super) fn quoted(words: &str) -> String {
    let line = words.trim().chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    line.take(LONGEST_QUOTE).collect()
}
