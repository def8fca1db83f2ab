//! Events on Pods, from the records that admission left on them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::names;
use fairlead_plan::routing_events::{self, Event, is_recent};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::time::Instant;

use super::api::{Delivery, Letter, Post};
use super::metrics::{Fate, Metrics};
use crate::cluster::state::{Key, PodEntry, Pods};
use crate::controller::rate_limit::Rate;
use crate::platform::leader::Term;

/// Events that wait to be sent, at most. At the rate below that is as many as are sent while their Pods are young.
pub(super) const QUEUE: usize = 4096;

const RATE: Rate = Rate { per_second: 20, burst: 100 };

/// The shortest time between two looks at all Pods.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(500);

/// An event on its way.
pub(super) struct Pending {
    pod: Key,
    uid: Arc<str>,
    created: i64,
    event: Event,
}

/// Records that were read already, by UID of their Pod. Only young Pods are looked at, so only those are remembered.
#[derive(Default)]
struct Seen {
    records: HashMap<Arc<str>, (i64, Arc<str>)>,
}

impl Seen {
    /// The young Pods whose record was not read yet.
    fn fresh(&mut self, pods: &Pods, now: i64) -> Vec<Arc<PodEntry>> {
        self.records.retain(|_, (created, _)| is_recent(*created, now));
        let known = &self.records;
        let unread = |pod: &PodEntry, record: &Arc<str>| {
            known.get(&pod.uid).is_none_or(|(_, before)| !Arc::ptr_eq(before, record) && before != record)
        };
        let fresh = pods.select(|pod| {
            is_recent(pod.created, now)
                && !pod.deleting
                && pod.annotation(names::fairlead::ROUTES).is_some_and(|record| unread(pod, record))
        });
        for pod in &fresh {
            if let Some(record) = pod.annotation(names::fairlead::ROUTES) {
                self.records.insert(pod.uid.clone(), (pod.created, record.clone()));
            }
        }
        fresh
    }
}

/// Looks at the Pods whenever they change, and queues what there is to tell.
pub(super) async fn look(pods: &Pods, queue: &Sender<Pending>, metrics: &Metrics) {
    let mut changes = pods.changes();
    let mut seen = Seen::default();
    loop {
        let begun = Instant::now();
        for pod in seen.fresh(pods, Timestamp::now().as_second()) {
            for event in events(&pod) {
                let kind = event.kind;
                let pending =
                    Pending { pod: pod.key.clone(), uid: pod.uid.clone(), created: pod.created, event };
                if queue.try_send(pending).is_err() {
                    metrics.count(kind.reason(), Fate::Dropped);
                }
            }
        }
        changes.next().await;
        tokio::time::sleep_until(begun + SHORTEST_INTERVAL).await;
    }
}

fn events(pod: &PodEntry) -> Vec<Event> {
    let Some(record) = pod.annotation(names::fairlead::ROUTES) else {
        return Vec::new();
    };
    let images = pod.places().collect();
    routing_events::events(&routing_events::Pod { name: &pod.key.name, uid: &pod.uid, record, images })
}

/// Sends what is queued, one after the other.
pub(super) async fn send(
    post: &Post,
    pods: &Pods,
    mut queue: Receiver<Pending>,
    metrics: &Metrics,
    term: &Term,
) {
    let mut delivery = Delivery::new(post, term, RATE);
    while let Some(pending) = queue.recv().await {
        let Some(fate) = delivery.deliver(&letter(&pending), || is_wanted(&pending, pods)).await else {
            return;
        };
        metrics.count(pending.event.kind.reason(), fate);
    }
}

/// Whether the Pod is still there and young.
fn is_wanted(pending: &Pending, pods: &Pods) -> bool {
    is_recent(pending.created, Timestamp::now().as_second())
        && pods.get(&pending.pod).is_some_and(|pod| pod.uid == pending.uid)
}

fn letter(pending: &Pending) -> Letter {
    let event = &pending.event;
    Letter {
        name: event.name.clone(),
        about: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pending.pod.namespace.to_string()),
            name: Some(pending.pod.name.to_string()),
            uid: Some(pending.uid.to_string()),
            field_path: Some(event.field.clone()),
            ..ObjectReference::default()
        },
        warning: event.kind.is_warning(),
        reason: event.kind.reason(),
        message: event.message.clone(),
        count: 1,
    }
}

#[cfg(test)]
mod tests {
    use fairlead_plan::routing_events::Kind;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use crate::cluster::state::PodListing;
    use crate::cluster::watch::pod::LeanPod;

    const NOW: i64 = 1_700_000_000;

    fn pod(name: &str, age: i64, why: &str) -> LeanPod {
        let created = Timestamp::from_second(NOW - age).unwrap().to_string();
        let record = json!({"v": 1, "images": {"web": {
            "asked": "nginx:1", "used": "mirror.example/nginx:1", "by": "ImageSetMirror/shop/m", "why": why,
        }}});
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "shop", "uid": name, "creationTimestamp": created,
                "annotations": {"fairlead.dev/routes": record.to_string()},
            },
            "spec": {"containers": [{"name": "web", "image": "mirror.example/nginx:1"}]},
        }))
        .expect("a Pod")
    }

    fn fresh(seen: &mut Seen, pods: &Pods, now: i64) -> Vec<String> {
        let mut names: Vec<_> = seen.fresh(pods, now).iter().map(|pod| pod.key.name.to_string()).collect();
        names.sort();
        names
    }

    #[test]
    fn each_record_is_read_once_while_its_pod_is_young() {
        let pods = Pods::default();
        let mut listing = PodListing::new(pods.clone());
        for (name, age) in [("old", 3600), ("young", 10)] {
            listing.applied(&pod(name, age, ""));
        }
        let mut seen = Seen::default();
        assert_eq!(fresh(&mut seen, &pods, NOW), ["young"]);
        listing.applied(&pod("new", 0, ""));
        assert_eq!(fresh(&mut seen, &pods, NOW), ["new"], "the others are known");
        listing.applied(&pod("young", 10, "another record"));
        assert_eq!(fresh(&mut seen, &pods, NOW), ["young"]);
        assert!(fresh(&mut seen, &pods, NOW + 3600).is_empty());
        assert!(seen.records.is_empty(), "what is old is forgotten");
    }

    #[test]
    fn a_pod_becomes_the_events_that_its_record_calls_for() {
        let pods = Pods::default();
        PodListing::new(pods.clone()).applied(&pod("web-0", 0, "first available"));
        let found = pods.all().iter().flat_map(|pod| events(pod)).collect::<Vec<_>>();
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].name.as_str(), found[0].field.as_str()),
            ("web-0.web-0.web.rewritten", "spec.containers{web}")
        );
    }

    #[test]
    fn an_event_is_not_wanted_once_its_pod_is_gone_or_another() {
        let (pods, now) = (Pods::default(), Timestamp::now().as_second());
        let mut listing = PodListing::new(pods.clone());
        let pending = |uid: &str, created| {
            let event = Event {
                name: String::new(),
                kind: Kind::ImageRewritten,
                field: String::new(),
                message: String::new(),
            };
            let pod = Key { namespace: "shop".into(), name: "web-0".into() };
            Pending { pod, uid: uid.into(), created, event }
        };
        assert!(!is_wanted(&pending("web-0", now), &pods));
        listing.applied(&pod("web-0", 0, ""));
        assert!(is_wanted(&pending("web-0", now), &pods));
        assert!(!is_wanted(&pending("of-its-predecessor", now), &pods));
        assert!(!is_wanted(&pending("web-0", now - 3600), &pods), "it waited too long");
    }

    #[tokio::test]
    async fn what_does_not_fit_the_queue_is_dropped_and_counted() {
        let (pods, metrics) = (Pods::default(), Metrics::default());
        let mut listing = PodListing::new(pods.clone());
        for number in 0..5 {
            let mut pod = pod(&format!("web-{number}"), 0, "");
            pod.metadata.creation_timestamp = Some(Time(Timestamp::now()));
            listing.applied(&pod);
        }
        let (sender, mut receiver) = tokio::sync::mpsc::channel(3);
        let looking = tokio::time::timeout(Duration::from_millis(50), look(&pods, &sender, &metrics));
        assert!(looking.await.is_err(), "it looks for ever");
        assert_eq!(metrics.counted(Kind::ImageRewritten.reason(), Fate::Dropped), 2);
        for _ in 0..3 {
            assert!(receiver.try_recv().is_ok());
        }
    }
}
