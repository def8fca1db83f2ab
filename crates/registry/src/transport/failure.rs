//! What went wrong below HTTP.
//!
//! The HTTP client wraps causes several layers deep. This module digs out the one that matters to a person and to the
//! verdict: was there no answer, no trust, or no sense in it. Addresses are left out of the text, since a redirect's
//! query can be a signature worth keeping.

use std::{error::Error as StdError, io};

use super::resolver::ForbiddenAddress;

/// The kinds of failure that are told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection, or it broke: name not found, refused, reset, closed.
    Unreachable(String),
    /// A connection, but no agreement on TLS.
    Tls(String),
    /// A TLS handshake answered by something that speaks no TLS.
    NotTls(String),
    /// The name led where it may not lead.
    Forbidden(ForbiddenAddress),
    /// An answer that is no HTTP.
    Malformed(String),
    /// What we were sending broke off.
    Unsent(String),
}

impl Failure {
    pub fn of(error: &reqwest::Error) -> Self {
        let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
        let mut reasons = Vec::new();
        let (mut malformed, mut unsent) = (false, false);
        while let Some(current) = cause {
            if let Some(found) = Self::decisive(current) {
                return found;
            }
            if let Some(error) = current.downcast_ref::<hyper::Error>() {
                malformed |= is_malformed(error);
                unsent |= error.is_user();
            }
            if current.downcast_ref::<reqwest::Error>().is_none() {
                reasons.push(current.to_string());
            }
            cause = current.source();
        }
        // Outer layers repeat the inner ones; the innermost two say what happened and where.
        let reason = reasons.iter().rev().take(2).rev().cloned().collect::<Vec<_>>().join(": ");
        let reason = if reason.is_empty() { "the connection failed".to_owned() } else { reason };
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
        if let Some(error) = cause.downcast_ref::<rustls::Error>() {
            return Some(of_tls(error));
        }
        let error = cause.downcast_ref::<io::Error>()?;
        if error.kind() == io::ErrorKind::UnexpectedEof && error.to_string().contains("handshake") {
            return Some(Self::NotTls("the connection was closed during the TLS handshake".to_owned()));
        }
        // An I/O error hides what it carries from `source`, which goes past it.
        error.get_ref().and_then(|inner| Self::decisive(inner))
    }
}

fn of_tls(error: &rustls::Error) -> Failure {
    match error {
        rustls::Error::InvalidMessage(_) => {
            Failure::NotTls("what answers there does not speak TLS".to_owned())
        }
        rustls::Error::InvalidCertificate(reason) => {
            Failure::Tls(format!("its certificate is not accepted: {reason}"))
        }
        other => Failure::Tls(other.to_string()),
    }
}

fn is_malformed(error: &hyper::Error) -> bool {
    error.is_parse() || error.is_parse_status() || error.is_parse_too_large()
}
