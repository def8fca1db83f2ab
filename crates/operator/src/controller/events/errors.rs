//! Internal errors of the operator as one event on its own Deployment, where `kubectl describe` shows it.
//!
//! Pods are admitted whatever goes wrong, so errors would go unnoticed but for logs and metrics. One event says how
//! many there were and of what kind; it is written at most once a minute, however many there are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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

/// Different errors that are counted apart; more are counted together.
const MOST_KINDS: usize = 16;
/// Of these so many are written out, the most frequent first.
const MOST_TOLD: usize = 3;
const LONGEST_TEXT: usize = 250;

/// Where all parts note internal errors. Cheap to clone and to call.
#[derive(Debug, Clone, Default)]
pub struct Errors {
    shared: Arc<ErrorsInner>,
}

#[derive(Debug, Default)]
struct ErrorsInner {
    tally: Mutex<Tally>,
    noted: Notify,
}

/// Errors since they were last told.
#[derive(Debug, Default, Clone)]
struct Tally {
    count: u64,
    kinds: BTreeMap<String, u64>,
}

impl Errors {
    /// Takes note of an error. Errors of the same text are one kind, so the text must name no Pod and no image.
    pub fn note(&self, text: &str) {
        let text = &text[..text.floor_char_boundary(LONGEST_TEXT)];
        self.lock().add(text, 1);
        self.shared.noted.notify_one();
    }

    /// Waits until there is something to tell, and takes it.
    async fn take(&self) -> Tally {
        loop {
            let noted = self.shared.noted.notified();
            let tally = std::mem::take(&mut *self.lock());
            if tally.count > 0 {
                return tally;
            }
            noted.await;
        }
    }

    /// What could not be sent is sent with what comes next.
    fn put_back(&self, tally: &Tally) {
        let told_apart: u64 = tally.kinds.values().sum();
        let mut now = self.lock();
        now.count += tally.count - told_apart;
        for (text, count) in &tally.kinds {
            now.add(text, *count);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tally> {
        self.shared.tally.lock()
    }
}

impl Tally {
    fn add(&mut self, text: &str, times: u64) {
        self.count += times;
        if let Some(count) = self.kinds.get_mut(text) {
            *count += times;
        } else if self.kinds.len() < MOST_KINDS {
            self.kinds.insert(text.to_owned(), times);
        }
    }

    fn message(&self) -> String {
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let told: Vec<_> =
            kinds.iter().take(MOST_TOLD).map(|(text, count)| format!("{text} ({count})")).collect();
        format!(
            "{} internal errors since the last report; Pods were admitted unchanged. {}. See the operator's log",
            self.count,
            told.join("; ")
        )
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

async fn write(post: &Post, source: &Installation<'_>, tally: &Tally) -> Result<(), Failure> {
    let name = INTERNAL_ERRORS.to_owned();
    let before = post.count(source.namespace, &name).await?;
    let count = i32::try_from(tally.count).unwrap_or(i32::MAX);
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
    fn errors_are_counted_by_kind_and_the_most_frequent_is_told_first() {
        let errors = Errors::default();
        assert!(errors.take().now_or_never().is_none(), "nothing happened");
        for (text, times) in
            [("panic in the handler", 2), ("no answer in time", 5), ("odd request", 1), ("rare", 1)]
        {
            for _ in 0..times {
                errors.note(text);
            }
        }
        let tally = errors.take().now_or_never().expect("errors were noted");
        assert_eq!(
            tally.message(),
            "9 internal errors since the last report; Pods were admitted unchanged. no answer in time (5); \
             panic in the handler (2); odd request (1). See the operator's log"
        );
        assert!(errors.take().now_or_never().is_none(), "they were taken");
        errors.put_back(&tally);
        errors.note("odd request");
        assert_eq!(errors.take().now_or_never().map(|tally| tally.count), Some(10));
    }

    #[test]
    fn the_message_stays_within_what_an_event_takes() {
        let errors = Errors::default();
        for number in 0..1000 {
            errors.note(&format!("{number} {}", "ä".repeat(500)));
        }
        let tally = errors.take().now_or_never().expect("errors were noted");
        assert_eq!((tally.count, tally.kinds.len()), (1000, MOST_KINDS));
        assert!(tally.message().len() <= 1024, "{}", tally.message().len());
    }
}
