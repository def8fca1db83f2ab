//! Internal errors of the operator as one event on its own Deployment, where `kubectl describe` shows it.
//!
//! Pods are admitted whatever goes wrong, so errors would go unnoticed but for logs and metrics. One event says how
//! many there were and of what kind; it is written at most once a minute, however many there are.

use std::sync::Arc;
use std::time::Duration;

use fairlead_plan::internal_errors::ErrorTally;
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::api::{EventDraft, EventRefusal, Post};
use crate::platform::api_error::Failure;

const REASON: &str = "InternalError";

/// Name of the one event.
pub const INTERNAL_ERRORS: &str = "fairlead.internal-errors";

/// At most one write in this time.
const INTERVAL: Duration = Duration::from_mins(1);

/// Where all parts note internal errors. Cheap to clone and to call.
#[derive(Debug, Clone, Default)]
pub struct Errors {
    shared: Arc<ErrorsInner>,
}

#[derive(Debug, Default)]
struct ErrorsInner {
    tally: Mutex<ErrorTally>,
    noted: Notify,
}

impl Errors {
    /// Takes note of an error. Errors of the same text are one kind, so the text must name no Pod and no image.
    pub fn note(&self, text: &str) {
        self.lock().add(text);
        self.shared.noted.notify_one();
    }

    /// Waits until there is something to tell, and takes it.
    async fn take(&self) -> ErrorTally {
        loop {
            let noted = self.shared.noted.notified();
            let tally = std::mem::take(&mut *self.lock());
            if !tally.is_empty() {
                return tally;
            }
            noted.await;
        }
    }

    /// What could not be sent is sent with what comes next.
    fn put_back(&self, tally: &ErrorTally) {
        self.lock().add_all(tally);
    }

    fn lock(&self) -> MutexGuard<'_, ErrorTally> {
        self.shared.tally.lock()
    }
}

/// The installation that the event is about.
pub(super) struct Installation<'a> {
    /// Of the operator.
    pub(super) namespace: &'a str,
    /// Name of the operator's Deployment.
    pub(super) deployment: &'a str,
}

/// Tells about errors as long as it runs.
pub(super) async fn tell(post: &Post, source: &Installation<'_>, errors: &Errors) {
    let mut told = None;
    loop {
        let tally = errors.take().await;
        let begun = Instant::now();
        // Requests make large futures, and errors are rare.
        if let Err(failure) = Box::pin(write(post, source, &tally)).await {
            if told.replace(failure.class) != Some(failure.class) {
                tracing::warn!(
                    error = %failure,
                    "event about internal errors could not be written; this needs create, get and patch on events, and get on the Deployment"
                );
            }
            errors.put_back(&tally);
        } else {
            told = None;
        }
        tokio::time::sleep_until(begun + INTERVAL).await;
    }
}

async fn write(post: &Post, source: &Installation<'_>, tally: &ErrorTally) -> Result<(), Failure> {
    let name = INTERNAL_ERRORS.to_owned();
    let before = post.count(source.namespace, &name).await?;
    let count = i32::try_from(tally.count()).unwrap_or(i32::MAX);
    let mut draft = EventDraft {
        name,
        about: post.deployment(source.namespace, source.deployment).await?,
        warning: true,
        reason: REASON,
        message: tally.message(),
        count: count.saturating_add(before.unwrap_or(0)),
    };
    let now = Timestamp::now();
    if before.is_some() {
        return post.repeat(&draft, now).await;
    }
    match post.create(&draft, now).await {
        Ok(()) => Ok(()),
        Err(EventRefusal::Exists) => {
            // Another writer was faster.
            let before = post.count(source.namespace, &draft.name).await?;
            draft.count = count.saturating_add(before.unwrap_or(0));
            post.repeat(&draft, now).await
        }
        Err(EventRefusal::Gone(failure) | EventRefusal::Failed(failure)) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn errors_are_taken_once_and_may_be_put_back() {
        let errors = Errors::default();
        assert!(errors.take().now_or_never().is_none(), "nothing happened");
        errors.note("odd request");
        let tally = errors.take().now_or_never().expect("an error was noted");
        assert!(errors.take().now_or_never().is_none(), "it was taken");
        errors.put_back(&tally);
        errors.note("odd request");
        assert_eq!(errors.take().now_or_never().map(|tally| tally.count()), Some(2));
    }
}
