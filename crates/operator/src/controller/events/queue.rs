//! News that other parts of the operator have about objects of the cluster, as events.
//!
//! The component that reports an event says what makes two events the same, and the event's name follows from that
//! alone: told twice, or by the next lease holder again, it is one event. Telling never waits: what does not fit the
//! queue is dropped and counted.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::Instant;

use super::api::EventDraft;
use super::metrics::{Metrics, SendOutcome};
use crate::cluster::state::PodEntry;
use crate::controller::rate_limit::Rate;

/// Notices that wait to be sent, at most.
const QUEUE: usize = 4096;

pub(super) const RATE: Rate = Rate { per_second: 10, burst: 50 };

/// A notice that could not be sent for so long is no news any more.
const NEWS: Duration = Duration::from_mins(10);

/// What an event takes; the API server refuses a longer message.
const LONGEST_MESSAGE: usize = 1024;
/// Bytes of an object's name in an event's name, so that the rest fits beside it.
const LONGEST_NAME: usize = 200;

/// The object that news is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    pub api_version: String,
    pub kind: String,
    /// `None`: the kind is cluster-scoped; its events are in the namespace `default`.
    pub namespace: Option<String>,
    pub name: String,
    pub uid: String,
}

impl About {
    pub fn pod(pod: &PodEntry) -> Self {
        Self {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            namespace: Some(pod.key.namespace.to_string()),
            name: pod.key.name.to_string(),
            uid: pod.uid.to_string(),
        }
    }
}

/// News about one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub about: About,
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
    /// With the same object, reason and key it is sent once.
    pub key: String,
}

impl Notice {
    fn name(&self) -> String {
        let mut hasher = Sha256::new();
        for part in [&*self.about.kind, &*self.about.uid, self.reason, &*self.key] {
            hasher.update(part);
            hasher.update([0]);
        }
        let bytes: [u8; 32] = hasher.finalize().into();
        let hash = bytes.iter().take(8).fold(0_u64, |hash, byte| hash << 8 | u64::from(*byte));
        let name = &self.about.name;
        // Names of objects are ASCII; cut in the middle of a label they might end in what no name may end in.
        let name = name.get(..LONGEST_NAME).unwrap_or(name).trim_end_matches(['.', '-']);
        format!("{name}.{hash:016x}")
    }

    pub(super) fn draft(&self) -> EventDraft {
        let About { api_version, kind, namespace, name, uid } = self.about.clone();
        let mut message = self.message.clone();
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
        EventDraft {
            name: self.name(),
            about: ObjectReference {
                api_version: Some(api_version),
                kind: Some(kind),
                namespace,
                name: Some(name),
                uid: Some(uid),
                ..ObjectReference::default()
            },
            warning: self.warning,
            reason: self.reason,
            message,
            count: 1,
        }
    }
}

/// A notice that waits to be sent.
pub(super) struct Waiting {
    pub(super) notice: Notice,
    since: Instant,
}

impl Waiting {
    pub(super) fn is_news(&self) -> bool {
        self.since.elapsed() <= NEWS
    }
}

/// The queue of events. Cheap to clone and to call.
#[derive(Debug, Clone)]
pub struct EventQueue {
    queue: Sender<Waiting>,
    metrics: Metrics,
}

/// The other end, read by the lease holder.
#[derive(Debug, Clone)]
pub struct Queued(pub(super) Arc<Mutex<Receiver<Waiting>>>);

impl EventQueue {
    pub(crate) fn new(metrics: Metrics) -> (Self, Queued) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        (Self { queue, metrics }, Queued(Arc::new(Mutex::new(waiting))))
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Puts it into the queue. For controllers: it is sent only while this replica leads.
    pub fn tell(&self, notice: Notice) {
        let reason = notice.reason;
        if self.queue.try_send(Waiting { notice, since: Instant::now() }).is_err() {
            self.metrics.count(reason, SendOutcome::Dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(name: &str, key: &str) -> Notice {
        Notice {
            about: About {
                api_version: "kuik.enix.io/v1alpha1".to_owned(),
                kind: "ClusterImageSetAvailability".to_owned(),
                namespace: None,
                name: name.to_owned(),
                uid: "1-2-3".to_owned(),
            },
            warning: true,
            reason: "ImageDisappeared",
            message: "ä".repeat(2000),
            key: key.to_owned(),
        }
    }

    #[test]
    fn the_same_news_has_the_same_name_and_other_news_another() {
        let one = notice("all", "docker.io/library/nginx:1").name();
        assert_eq!(one, notice("all", "docker.io/library/nginx:1").name());
        assert_ne!(one, notice("all", "docker.io/library/nginx:2").name());
        let returned = Notice { reason: "ImageReturned", ..notice("all", "docker.io/library/nginx:1") };
        assert_ne!(one, returned.name());
        assert!(one.starts_with("all.") && one.len() == "all.".len() + 16, "{one}");
    }

    #[test]
    fn names_and_messages_fit_whatever_the_object_is_called() {
        let draft = notice(&format!("{}.{}", "a".repeat(199), "b".repeat(53)), "x").draft();
        assert!(draft.name.len() <= 253 && !draft.name.contains(".."), "{}", draft.name);
        assert!(draft.message.len() <= LONGEST_MESSAGE);
    }

    #[tokio::test]
    async fn what_does_not_fit_the_queue_is_dropped_and_counted() {
        let metrics = Metrics::default();
        let (events, _queued) = EventQueue::new(metrics.clone());
        for number in 0..QUEUE + 3 {
            events.tell(notice("all", &number.to_string()));
        }
        assert_eq!(metrics.counted("ImageDisappeared", SendOutcome::Dropped), 3);
    }
}
