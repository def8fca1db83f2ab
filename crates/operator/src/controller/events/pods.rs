//! Events on Pods, from the records that admission left on them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fairlead_api::names;
use fairlead_plan::routing_events::{self, Event, is_recent};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::api::EventDraft;
use super::metrics::{Metrics, SendOutcome};
use crate::cluster::state::{Key, PodEntry, Pods};
use crate::controller::rate_limit::Rate;

/// Events that wait to be sent, at most. At the rate below that is as many as are sent while their Pods are young.
const QUEUE: usize = 4096;

pub(super) const RATE: Rate = Rate { per_second: 20, burst: 100 };

/// An event on its way.
pub(super) struct Pending {
    pod: Key,
    uid: Arc<str>,
    created: i64,
    event: Event,
}

/// What was read of records on Pods, and the events that follow from it.
#[derive(Default)]
pub(super) struct Records {
    /// Records that were read, by UID of their Pod. Only young Pods are looked at, so only those are remembered.
    read: HashMap<Arc<str>, (i64, Arc<str>)>,
    queue: VecDeque<Pending>,
}

impl Records {
    /// The young Pods whose record was not read yet.
    fn unread(&mut self, pods: &Pods, now: i64) -> Vec<Arc<PodEntry>> {
        self.read.retain(|_, (created, _)| is_recent(*created, now));
        let known = &self.read;
        let is_unread = |pod: &PodEntry, record: &Arc<str>| {
            known.get(&pod.uid).is_none_or(|(_, before)| !Arc::ptr_eq(before, record) && before != record)
        };
        let fresh = pods.select(|pod| {
            is_recent(pod.created, now)
                && !pod.deleting
                && pod.annotation(names::fairlead::ROUTES).is_some_and(|record| is_unread(pod, record))
        });
        for pod in &fresh {
            if let Some(record) = pod.annotation(names::fairlead::ROUTES) {
                self.read.insert(pod.uid.clone(), (pod.created, record.clone()));
            }
        }
        fresh
    }
}

impl Records {
    /// Queues what there is to tell of Pods whose record was not read yet.
    pub(super) fn look(&mut self, pods: &Pods, metrics: &Metrics) {
        for pod in self.unread(pods, Timestamp::now().as_second()) {
            for event in events(&pod) {
                if self.queue.len() >= QUEUE {
                    metrics.count(event.kind.reason(), SendOutcome::Dropped);
                    continue;
                }
                let (pod, uid, created) = (pod.key.clone(), pod.uid.clone(), pod.created);
                self.queue.push_back(Pending { pod, uid, created, event });
            }
        }
    }

    pub(super) fn next(&mut self) -> Option<Pending> {
        self.queue.pop_front()
    }
}

fn events(pod: &PodEntry) -> Vec<Event> {
    let Some(record) = pod.annotation(names::fairlead::ROUTES) else {
        return Vec::new();
    };
    let images = pod.places().collect();
    routing_events::events(&routing_events::Pod { name: &pod.key.name, uid: &pod.uid, record, images })
}

impl Pending {
    pub(super) fn reason(&self) -> &'static str {
        self.event.kind.reason()
    }

    /// Whether the Pod is still there and young.
    pub(super) fn is_wanted(&self, pods: &Pods) -> bool {
        is_recent(self.created, Timestamp::now().as_second())
            && pods.get(&self.pod).is_some_and(|pod| pod.uid == self.uid)
    }

    pub(super) fn draft(&self) -> EventDraft {
        let event = &self.event;
        EventDraft {
            name: event.name.clone(),
            about: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                namespace: Some(self.pod.namespace.to_string()),
                name: Some(self.pod.name.to_string()),
                uid: Some(self.uid.to_string()),
                field_path: Some(event.field.clone()),
                ..ObjectReference::default()
            },
            warning: event.kind.is_warning(),
            reason: event.kind.reason(),
            message: event.message.clone(),
            count: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use fairlead_plan::routing_events::EventKind;
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

    fn fresh(seen: &mut Records, pods: &Pods, now: i64) -> Vec<String> {
        let mut names: Vec<_> = seen.unread(pods, now).iter().map(|pod| pod.key.name.to_string()).collect();
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
        let mut seen = Records::default();
        assert_eq!(fresh(&mut seen, &pods, NOW), ["young"]);
        listing.applied(&pod("new", 0, ""));
        assert_eq!(fresh(&mut seen, &pods, NOW), ["new"], "the others are known");
        listing.applied(&pod("young", 10, "another record"));
        assert_eq!(fresh(&mut seen, &pods, NOW), ["young"]);
        assert!(fresh(&mut seen, &pods, NOW + 3600).is_empty());
        assert!(seen.read.is_empty(), "what is old is forgotten");
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
                kind: EventKind::ImageRewritten,
                field: String::new(),
                message: String::new(),
            };
            let pod = Key { namespace: "shop".into(), name: "web-0".into() };
            Pending { pod, uid: uid.into(), created, event }
        };
        assert!(!pending("web-0", now).is_wanted(&pods));
        listing.applied(&pod("web-0", 0, ""));
        assert!(pending("web-0", now).is_wanted(&pods));
        assert!(!pending("of-its-predecessor", now).is_wanted(&pods));
        assert!(!pending("web-0", now - 3600).is_wanted(&pods), "it waited too long");
    }

    #[test]
    fn what_does_not_fit_the_queue_is_dropped_and_counted() {
        let (pods, metrics) = (Pods::default(), Metrics::default());
        let mut listing = PodListing::new(pods.clone());
        for number in 0..QUEUE + 2 {
            let mut pod = pod(&format!("web-{number}"), 0, "");
            pod.metadata.creation_timestamp = Some(Time(Timestamp::now()));
            listing.applied(&pod);
        }
        let mut records = Records::default();
        records.look(&pods, &metrics);
        assert_eq!(metrics.counted(EventKind::ImageRewritten.reason(), SendOutcome::Dropped), 2);
        assert_eq!(std::iter::from_fn(|| records.next()).count(), QUEUE);
    }
}
