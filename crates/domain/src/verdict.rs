//! The result of asking a registry about an image.
//!
//! Kept apart as finely as decisions need: a missing image, a refused credential, a registry that wants us to wait and
//! one that cannot be reached are four different things to a person and to a plan.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use crate::digest::Digest;

/// The outcome of a probe, with the reason in words unless it is available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The manifest exists; with its digest, if the registry sent it.
    Available {
        digest: Option<Digest>,
    },
    NotFound {
        reason: Arc<str>,
    },
    /// No credential, or one that the registry does not know.
    Unauthorised {
        reason: Arc<str>,
    },
    /// The credential is known and not entitled.
    Forbidden {
        reason: Arc<str>,
    },
    /// The registry wants no requests until then, where it said so.
    RateLimited {
        until: Option<SystemTime>,
        reason: Arc<str>,
    },
    Unreachable {
        reason: Arc<str>,
    },
    /// The registry answered, and its certificate or protocol was not acceptable.
    TlsError {
        reason: Arc<str>,
    },
    /// The answer broke the protocol, so it says nothing about the image.
    Malformed {
        reason: Arc<str>,
    },
    /// The registry was not contacted: a tenant chose its host, and it leads to this machine or is link-local.
    OffLimits {
        reason: Arc<str>,
    },
    /// The registry has it, and nodes could not pull it all the same.
    FailsOnNodes {
        reason: Arc<str>,
    },
    /// Nothing was found out, for instance because nodes may hold a credential that we do not.
    Unknown {
        reason: Arc<str>,
    },
}

/// A verdict without its details: for counting, labelling and comparing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VerdictKind {
    Available,
    NotFound,
    Unauthorised,
    Forbidden,
    RateLimited,
    Unreachable,
    TlsError,
    Malformed,
    OffLimits,
    FailsOnNodes,
    Unknown,
}

impl VerdictKind {
    pub const ALL: [Self; 11] = [
        Self::Available,
        Self::NotFound,
        Self::Unauthorised,
        Self::Forbidden,
        Self::RateLimited,
        Self::Unreachable,
        Self::TlsError,
        Self::Malformed,
        Self::OffLimits,
        Self::FailsOnNodes,
        Self::Unknown,
    ];

    /// Stable, for metrics, logs and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::NotFound => "not-found",
            Self::Unauthorised => "unauthorised",
            Self::Forbidden => "forbidden",
            Self::RateLimited => "rate-limited",
            Self::Unreachable => "unreachable",
            Self::TlsError => "tls-error",
            Self::Malformed => "malformed-answer",
            Self::OffLimits => "off-limits",
            Self::FailsOnNodes => "fails-on-nodes",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for VerdictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Verdict {
    pub fn kind(&self) -> VerdictKind {
        match self {
            Self::Available { .. } => VerdictKind::Available,
            Self::NotFound { .. } => VerdictKind::NotFound,
            Self::Unauthorised { .. } => VerdictKind::Unauthorised,
            Self::Forbidden { .. } => VerdictKind::Forbidden,
            Self::RateLimited { .. } => VerdictKind::RateLimited,
            Self::Unreachable { .. } => VerdictKind::Unreachable,
            Self::TlsError { .. } => VerdictKind::TlsError,
            Self::Malformed { .. } => VerdictKind::Malformed,
            Self::OffLimits { .. } => VerdictKind::OffLimits,
            Self::FailsOnNodes { .. } => VerdictKind::FailsOnNodes,
            Self::Unknown { .. } => VerdictKind::Unknown,
        }
    }

    pub fn is_available(&self) -> bool {
        matches!(self, Self::Available { .. })
    }

    /// Whether a pull may succeed: the image exists, or nothing is known against it.
    pub fn is_usable(&self) -> bool {
        matches!(self, Self::Available { .. } | Self::Unknown { .. })
    }

    pub fn digest(&self) -> Option<Digest> {
        match self {
            Self::Available { digest } => *digest,
            _ => None,
        }
    }

    /// Why it is not available; empty when it is.
    pub fn reason(&self) -> &str {
        match self {
            Self::Available { .. } => "",
            Self::NotFound { reason }
            | Self::Unauthorised { reason }
            | Self::Forbidden { reason }
            | Self::RateLimited { reason, .. }
            | Self::Unreachable { reason }
            | Self::TlsError { reason }
            | Self::Malformed { reason }
            | Self::OffLimits { reason }
            | Self::FailsOnNodes { reason }
            | Self::Unknown { reason } => reason,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, reason) = (self.kind(), self.reason());
        if reason.is_empty() { write!(f, "{kind}") } else { write!(f, "{kind}: {reason}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_and_why() {
        let digest = Digest::sha256(b"x");
        let available = Verdict::Available { digest: Some(digest) };
        assert!(available.is_available() && available.digest() == Some(digest));
        assert_eq!(available.to_string(), "available");
        let limited = Verdict::RateLimited { until: None, reason: "100 pulls in 6 hours are used up".into() };
        assert_eq!(limited.to_string(), "rate-limited: 100 pulls in 6 hours are used up");
        assert!(!limited.is_available() && limited.digest().is_none());
    }

    #[test]
    fn names_are_distinct() {
        let names: std::collections::BTreeSet<_> = VerdictKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), VerdictKind::ALL.len());
    }
}
