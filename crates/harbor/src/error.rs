//! Why a call of Harbor failed, in words for people and in classes for callers.

use fairlead_registry::http_client::HttpError;
use hyper::StatusCode;
use serde::Deserialize;
use thiserror::Error;

use crate::client::API;

/// Texts of Harbor that are passed on are no longer.
const LONGEST_TEXT: usize = 512;

#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum Error {
    #[error("cannot {attempt}: {cause}")]
    Http { attempt: String, cause: HttpError },
    /// Harbor's answer, with the code and the text of its error.
    #[error("cannot {attempt}: Harbor answered {status}{}", described(.code, .text))]
    Refused { attempt: String, status: StatusCode, code: String, text: String },
    #[error("cannot {attempt}: Harbor's answer cannot be read: {reason}")]
    Malformed { attempt: String, reason: String },
}

/// What a caller does about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Harbor does not take the login.
    Unauthorised,
    /// The login lacks a right, or Harbor is read-only.
    Denied,
    Absent,
    /// The name is taken.
    Taken,
    /// Something else has to go first.
    InUse,
    /// Harbor does not take the values; for an endpoint also: it cannot reach the upstream with them.
    Rejected,
    /// It did not answer, or not in a way that can be understood.
    Unavailable,
}

impl Error {
    pub fn class(&self) -> Class {
        let Self::Refused { status, .. } = self else { return Class::Unavailable };
        match status.as_u16() {
            400 | 422 => Class::Rejected,
            401 => Class::Unauthorised,
            403 => Class::Denied,
            404 => Class::Absent,
            409 => Class::Taken,
            412 => Class::InUse,
            _ => Class::Unavailable,
        }
    }

    /// What Harbor said itself, if it answered.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Refused { text, .. } if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    /// Reads the error of an answer. A proxy in front of Harbor may answer with a page.
    pub(crate) fn refused(attempt: String, status: StatusCode, location: Option<&str>, body: &[u8]) -> Self {
        let envelope: Envelope = serde_json::from_slice(body).unwrap_or_default();
        let Problem { code, message } = envelope.errors.into_iter().next().unwrap_or_default();
        let mut text = message;
        if let (true, Some(location)) = (status.is_redirection(), location) {
            let base = location.split_once(API).map_or(location, |(base, _)| base);
            text = format!("a redirect to {base}; write that address into harbor.url");
        }
        text.truncate(text.floor_char_boundary(LONGEST_TEXT));
        Self::Refused { attempt, status, code, text }
    }
}

fn described(code: &str, text: &str) -> String {
    match (code, text) {
        ("", "") => String::new(),
        (code, "") => format!(" ({code})"),
        (_, text) => format!(": {text}"),
    }
}

#[derive(Default, Deserialize)]
struct Envelope {
    #[serde(default)]
    errors: Vec<Problem>,
}

#[derive(Default, Deserialize)]
struct Problem {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

#[cfg(test)]
mod tests {
    use super::Class::{Absent, Denied, InUse, Rejected, Taken, Unauthorised, Unavailable};
    use super::*;

    fn refused(status: u16, body: &str) -> Error {
        let status = StatusCode::from_u16(status).unwrap();
        Error::refused("list endpoints".to_owned(), status, Some("https://h/"), body.as_bytes())
    }

    #[test]
    fn texts_of_harbor_are_passed_on() {
        let error = refused(409, r#"{"errors":[{"code":"CONFLICT","message":"taken"}]}"#);
        assert_eq!(error.to_string(), "cannot list endpoints: Harbor answered 409 Conflict: taken");
        assert_eq!((error.class(), error.text()), (Class::Taken, Some("taken")));
    }

    #[test]
    fn pages_and_redirects_are_no_texts_of_harbor() {
        let page = refused(502, "<html>Bad Gateway</html>");
        assert_eq!(page.to_string(), "cannot list endpoints: Harbor answered 502 Bad Gateway");
        assert_eq!(page.class(), Class::Unavailable);
        assert!(
            refused(301, "")
                .to_string()
                .contains("a redirect to https://h/; write that address into harbor.url")
        );
        let status = StatusCode::PERMANENT_REDIRECT;
        let location = Some("https://h/below/api/v2.0/registries?page=1");
        let error = Error::refused("log in".to_owned(), status, location, b"");
        assert_eq!(error.text(), Some("a redirect to https://h/below/; write that address into harbor.url"));
    }

    #[test]
    fn every_status_has_a_class() {
        let classes =
            [400, 422, 401, 403, 404, 409, 412, 429, 500, 302].map(|status| refused(status, "").class());
        let expected = [
            Rejected,
            Rejected,
            Unauthorised,
            Denied,
            Absent,
            Taken,
            InUse,
            Unavailable,
            Unavailable,
            Unavailable,
        ];
        assert_eq!(classes, expected);
    }
}
