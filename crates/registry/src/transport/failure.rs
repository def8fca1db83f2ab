//! Failures below HTTP.
//!
//! The HTTP client wraps causes several layers deep. This module finds the one that matters to users and to the
//! verdict: no connection, no trust, or an invalid answer. URLs are left out of messages, because the query of a
//! redirect can be a signature.

use std::error::Error as StdError;
use std::{fmt, io};

use hyper_util::client::legacy;
use rustls::{AlertDescription, CertificateError};

use super::connect::ProxyFailed;
use super::resolver::{ForbiddenAddress, OffLimits};
use super::tls::is_of_authority;

const REFUSED: &str = "the connection was refused";
const UNRESOLVED: &str = "its name cannot be resolved";

/// Why there is no connection, where that tells a person where to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoConnection {
    UnknownName,
    Refused,
    Other,
}

impl NoConnection {
    /// Reads it from a reason given here.
    pub fn of(reason: &str) -> Self {
        if reason.contains(UNRESOLVED) {
            Self::UnknownName
        } else if reason.contains(REFUSED) {
            Self::Refused
        } else {
            Self::Other
        }
    }
}

/// Kinds of failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection, or a broken one: name not found, refused, reset, closed.
    Unreachable(String),
    /// The TLS handshake failed.
    Tls(String),
    /// The server does not speak TLS.
    NotTls(String),
    /// The name resolves to an address that the answer must not lead to.
    Forbidden(ForbiddenAddress),
    /// The address is off limits for tenants.
    OffLimits(OffLimits),
    /// The answer is not valid HTTP.
    Malformed(String),
    /// The body that was being sent broke off.
    Unsent(String),
}

impl Failure {
    pub fn of(error: &(dyn StdError + 'static)) -> Self {
        let mut cause = Some(error);
        let mut reason = None;
        let (mut in_http, mut malformed, mut unsent) = (false, false, false);
        while let Some(current) = cause {
            if let Some(found) = Self::decisive(current) {
                return found;
            }
            if let Some(ProxyFailed { proxy, .. }) = current.downcast_ref() {
                let reason = current.source().map_or_else(String::new, |cause| Self::of(cause).to_string());
                return Self::Unreachable(format!("the proxy {proxy} gives no way to it: {reason}"));
            }
            if let Some(error) = current.downcast_ref::<hyper::Error>() {
                in_http = true;
                malformed |= is_malformed(error);
                unsent |= error.is_user();
            }
            malformed |= in_http && breaks_rules(current);
            reason = message(current).or(reason);
            cause = current.source();
        }
        let reason = reason.unwrap_or_else(|| "the connection failed".to_owned());
        match (malformed, unsent) {
            (_, true) => Self::Unsent(reason),
            (true, false) => Self::Malformed(reason),
            (false, false) => Self::Unreachable(reason),
        }
    }

    fn decisive(cause: &(dyn StdError + 'static)) -> Option<Self> {
        if let Some(forbidden) = cause.downcast_ref::<ForbiddenAddress>() {
            return Some(Self::Forbidden(forbidden.clone()));
        }
        if let Some(off_limits) = cause.downcast_ref::<OffLimits>() {
            return Some(Self::OffLimits(off_limits.clone()));
        }
        if let Some(error) = cause.downcast_ref::<rustls::Error>() {
            return Some(of_tls(error));
        }
        let error = cause.downcast_ref::<io::Error>()?;
        if error.kind() == io::ErrorKind::UnexpectedEof && error.to_string().contains("handshake") {
            return Some(Self::NotTls("the connection was closed during the TLS handshake".to_owned()));
        }
        // The inner error of an I/O error is not its `source`.
        error.get_ref().and_then(|inner| Self::decisive(inner))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden(forbidden) => forbidden.fmt(f),
            Self::OffLimits(off_limits) => off_limits.fmt(f),
            Self::Unreachable(reason)
            | Self::Tls(reason)
            | Self::NotTls(reason)
            | Self::Malformed(reason)
            | Self::Unsent(reason) => f.write_str(reason),
        }
    }
}

/// The message of one layer. The innermost message is used.
fn message(cause: &(dyn StdError + 'static)) -> Option<String> {
    if cause.is::<legacy::Error>() {
        return None;
    }
    if let Some(error) = cause.downcast_ref::<hyper::Error>()
        && (error.is_incomplete_message() || error.is_closed() || error.is_canceled())
    {
        return Some("the connection was closed before the answer was complete".to_owned());
    }
    let known = cause.downcast_ref::<io::Error>().and_then(|error| match innermost(error).kind() {
        io::ErrorKind::ConnectionRefused => Some(REFUSED),
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => Some("the connection was reset"),
        io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof | io::ErrorKind::NotConnected => {
            Some("the connection was closed before the answer was complete")
        }
        io::ErrorKind::TimedOut => Some("the connection timed out"),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Some("there is no way to it"),
        _ => None,
    });
    let text = known.map_or_else(|| cause.to_string(), str::to_owned);
    Some(match text.strip_prefix("failed to lookup address information: ") {
        Some(why) => format!("{UNRESOLVED}: {why}"),
        None => text,
    })
}

/// The innermost I/O error.
fn innermost(error: &io::Error) -> &io::Error {
    error.get_ref().and_then(|inner| inner.downcast_ref()).map_or(error, innermost)
}

fn of_tls(error: &rustls::Error) -> Failure {
    match error {
        rustls::Error::InvalidMessage(_) => Failure::NotTls(
            "what answers there does not speak TLS; if it is meant to be so, say it in registries.<host>.plainHttp"
                .to_owned(),
        ),
        rustls::Error::InvalidCertificate(reason) => Failure::Tls(of_certificate(reason)),
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            Failure::Tls("it wants a certificate from its clients, and there is none to give".to_owned())
        }
        rustls::Error::AlertReceived(alert) => Failure::Tls(format!("it ends the handshake with {alert:?}")),
        other => Failure::Tls(other.to_string()),
    }
}

/// Names a setting only where that helps.
fn of_certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => {
            "its certificate comes from an authority that is not trusted; a private one is named in registries.<host>.caFile"
                .to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired and must be renewed there, unless the clock is wrong here".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet, unless the clock is wrong here".to_owned()
        }
        CertificateError::NotValidForNameContext { expected, .. } => {
            format!("its certificate is not for {} but for other names", expected.to_str())
        }
        CertificateError::NotValidForName => "its certificate is for other names".to_owned(),
        error if is_of_authority(error) => {
            "its certificate is one of an authority; it is trusted if it is itself named in registries.<host>.caFile"
                .to_owned()
        }
        other => format!("its certificate is not accepted: {other}"),
    }
}

fn is_malformed(error: &hyper::Error) -> bool {
    error.is_parse() || error.is_parse_status() || error.is_parse_too_large()
}

/// Whether the other side broke the protocol below the message layer: in the chunks of a body or the frames of HTTP/2.
fn breaks_rules(cause: &(dyn StdError + 'static)) -> bool {
    if let Some(error) = cause.downcast_ref::<io::Error>() {
        return matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput);
    }
    cause.downcast_ref::<h2::Error>().is_some_and(h2::Error::is_library)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::OtherError;
    use rustls::pki_types::UnixTime;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("CaUsedAsEndEntity")]
    struct Authority;

    #[test]
    fn a_certificate_is_judged_in_words_that_help() {
        let (time, not_after) = (UnixTime::now(), UnixTime::now());
        for (error, words, is_a_matter_of_trust) in [
            (CertificateError::UnknownIssuer, "authority that is not trusted", true),
            (CertificateError::Other(OtherError(Arc::new(Authority))), "one of an authority", true),
            (CertificateError::Expired, "has expired", false),
            (CertificateError::ExpiredContext { time, not_after }, "has expired", false),
            (CertificateError::NotValidForName, "for other names", false),
            (CertificateError::BadSignature, "is not accepted", false),
        ] {
            let told = of_certificate(&error);
            assert!(told.contains(words), "{error:?}: {told}");
            assert_eq!(told.contains("registries.<host>.caFile"), is_a_matter_of_trust, "{error:?}: {told}");
        }
    }
}
