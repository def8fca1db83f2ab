//! What went wrong with a request to the API server, in words that help, and what kind of trouble it is.
//!
//! kube's errors print the same status twice and never say which right was missing; both the election and the
//! watches need a short text for people and a class to act on.

use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use futures::FutureExt;
use kube::runtime::watcher;

/// The time for one request to the API server: no request holds up the next for longer.
pub const LIMIT: Duration = Duration::from_secs(10);

/// What the API server says of a JSON patch that does not fit the object as it is now, with the status of an invalid
/// object: mostly a test in it has failed.
const PATCH_DOES_NOT_FIT: &str = "the server rejected our request due to an error in our request";

/// What kind of trouble a failed request met; each is handled in its own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The caller lacks a right, or its credentials are not accepted.
    Denied,
    /// Neither the object nor perhaps its kind is there.
    Absent,
    /// Another writer changed or created the object first.
    Conflict,
    /// The API server asks for a new list, which is part of normal operation.
    Expired,
    /// The API server did not answer, or said that it cannot right now.
    Unavailable,
    /// Anything else that it answered.
    Rejected,
}

impl Class {
    /// Name for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Absent => "absent",
            Self::Conflict => "conflict",
            Self::Expired => "expired",
            Self::Unavailable => "unavailable",
            Self::Rejected => "rejected",
        }
    }

    fn of_status(code: u16) -> Self {
        match code {
            401 | 403 => Self::Denied,
            404 => Self::Absent,
            409 => Self::Conflict,
            410 => Self::Expired,
            429 | 500..=599 => Self::Unavailable,
            _ => Self::Rejected,
        }
    }
}

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub class: Class,
    message: String,
}

impl Failure {
    /// A request that was given up after its time limit.
    pub fn timed_out(limit: Duration) -> Self {
        Self {
            class: Class::Unavailable,
            message: format!("the API server did not answer within {} ms", limit.as_millis()),
        }
    }

    /// The same without a secret that the API server may have repeated.
    #[must_use]
    pub(crate) fn without(mut self, secret: &str) -> Self {
        self.message = self.message.replace(secret, "…");
        self
    }
}

/// What the API server answers to a request, if it does within the limit. (As an `async fn` it would hold the request
/// twice.)
pub fn within<T>(
    limit: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> impl Future<Output = Result<T, Failure>> {
    tokio::time::timeout(limit, request).map(move |answered| match answered {
        Ok(answer) => answer.map_err(|error| Failure::from(&error)),
        Err(_) => Err(Failure::timed_out(limit)),
    })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<&kube::Error> for Failure {
    fn from(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from(&**status),
            // Text that the API server could not have meant: the object or the response is broken, not the line.
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => {
                Self { class: Class::Rejected, message: chain(error) }
            }
            _ => Self { class: Class::Unavailable, message: chain(error) },
        }
    }
}

impl From<&kube::core::Status> for Failure {
    fn from(status: &kube::core::Status) -> Self {
        let message = match (status.message.trim(), status.reason.trim()) {
            ("", "") => format!("the API server answered {}", status.code),
            ("", reason) => format!("the API server answered {} {reason}", status.code),
            (message, _) => format!("{message} ({})", status.code),
        };
        let class = match Class::of_status(status.code) {
            Class::Rejected if status.code == 422 && status.message.trim() == PATCH_DOES_NOT_FIT => {
                Class::Conflict
            }
            class => class,
        };
        Self { class, message }
    }
}

impl From<&watcher::Error> for Failure {
    fn from(error: &watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => Self::from(error),
            watcher::Error::WatchError(status) => Self::from(&**status),
            watcher::Error::NoResourceVersion => Self { class: Class::Rejected, message: error.to_string() },
        }
    }
}

/// The innermost causes carry the facts (connection refused, certificate unknown), so all are printed, each once.
fn chain(error: &kube::Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !message.contains(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        source = cause.source();
    }
    message
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_refusal_keeps_the_sentence_that_names_the_missing_right() {
        let text = "pods is forbidden: User \"x\" cannot list resource \"pods\" in API group \"\" at the cluster scope";
        let status = Status::failure(text, "Forbidden").with_code(403);
        let failure = Failure::from(&kube::Error::Api(status.boxed()));
        assert_eq!(failure.class, Class::Denied);
        assert_eq!(failure.to_string(), format!("{text} (403)"));
    }

    #[test]
    fn a_status_without_words_still_says_something() {
        let failure = Failure::from(&Status::failure("", "").with_code(503));
        assert_eq!(
            (failure.class, failure.to_string().as_str()),
            (Class::Unavailable, "the API server answered 503")
        );
    }

    #[test]
    fn a_patch_whose_test_fails_is_a_conflict_and_an_invalid_object_is_not() {
        let class = |message: &str| Failure::from(&Status::failure(message, "Invalid").with_code(422)).class;
        assert_eq!(class("the server rejected our request due to an error in our request"), Class::Conflict);
        let invalid = "CachedImage.drop.corewire.io \"a\" is invalid: spec.image: Required value";
        assert_eq!(class(invalid), Class::Rejected);
    }

    #[test]
    fn causes_are_told_once() {
        let inner = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "connection refused");
        let failure = Failure::from(&kube::Error::ReadEvents(inner));
        assert_eq!(failure.to_string().matches("connection refused").count(), 1);
    }
}
