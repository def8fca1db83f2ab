//! What the coming and going of Pods tells about their controllers: which of them recreate rewritten Pods.
//!
//! Every replica admits Pods, so every replica watches for itself. The record on a Pod that was left alone carries the
//! end of the pause: replicas that were not there when the loop was found, or were restarted since, learn of it from
//! there.

use std::sync::Arc;

use fairlead_api::names;
use fairlead_plan::owners::{OwnerKey, Pause, Recreations, is_rewritten, recorded_pause};
use jiff::Timestamp;
use parking_lot::RwLock;

use super::changes::{Bell, Changes};
use super::entry::{Owner, PodEntry};

/// Cheap to clone. Written by the Pod watch alone.
#[derive(Debug, Clone, Default)]
pub struct Owners {
    recreations: Arc<RwLock<Recreations>>,
    changed: Arc<Bell>,
}

impl Owners {
    /// Until when the Pods of a controller are not rewritten.
    pub fn paused_until(&self, namespace: &str, uid: &str) -> Option<Timestamp> {
        let recreations = self.recreations.read();
        // Admission asks about every Pod, and nearly always nothing is paused.
        if recreations.is_idle() {
            return None;
        }
        recreations.paused_until(&key(namespace, uid), Timestamp::now())
    }

    /// All pauses in force.
    pub fn paused(&self) -> Vec<(OwnerKey, Pause)> {
        let recreations = self.recreations.read();
        recreations.paused(Timestamp::now()).map(|(owner, pause)| (owner.clone(), pause.clone())).collect()
    }

    /// Word of every pause that begins.
    pub fn changes(&self) -> Changes {
        self.changed.listen()
    }

    /// Takes note of one change of one Pod; `None` is a Pod that is not there.
    pub(super) fn changed(&self, before: Option<&PodEntry>, after: Option<&PodEntry>) {
        let is_same = before.map(|pod| &pod.uid) == after.map(|pod| &pod.uid);
        // A Pod that is being deleted is as good as gone: its successor may come before it is.
        if let Some(before) = before.filter(|pod| !pod.deleting) {
            let last = after.filter(|_| is_same).unwrap_or(before);
            if !is_same || last.deleting {
                self.gone(last);
            }
        }
        if let Some(after) = after.filter(|pod| !is_same && !pod.deleting) {
            self.came(after);
        }
    }

    fn gone(&self, pod: &PodEntry) {
        let (Some(owner), false) = (&pod.owner, pod.started) else { return };
        let record = pod.annotation(names::fairlead::ROUTES);
        if record.is_some_and(|record| is_rewritten(record, pod.places())) {
            let key = key(&pod.key.namespace, &owner.uid);
            self.write(|recreations| recreations.deleted(&key, &pod.uid, Timestamp::now()));
        }
    }

    fn came(&self, pod: &PodEntry) {
        let Some(owner) = &pod.owner else { return };
        let (key, now) = (key(&pod.key.namespace, &owner.uid), Timestamp::now());
        let begun = self.write(|recreations| recreations.created(&key, &owner.controller(), &pod.uid, now));
        if let Some(pause) = begun {
            self.tell(
                pod,
                owner,
                &pause,
                "a controller recreates rewritten Pods; rewriting is paused for its Pods",
            );
        }
        let until = pod.annotation(names::fairlead::ROUTES).and_then(|record| recorded_pause(record));
        let adopted = until.and_then(|until| {
            self.write(|recreations| recreations.adopt(&key, &owner.controller(), until, now))
        });
        if let Some(pause) = adopted {
            self.tell(
                pod,
                owner,
                &pause,
                "rewriting is paused for the Pods of a controller, as a Pod's record says",
            );
        }
    }

    fn tell(&self, pod: &PodEntry, owner: &Owner, pause: &Pause, message: &'static str) {
        let (namespace, controller) = (&*pod.key.namespace, owner.controller());
        tracing::warn!(namespace, controller = %controller, until = %pause.until, "{message}");
        self.changed.ring();
    }

    fn write<T>(&self, change: impl FnOnce(&mut Recreations) -> T) -> T {
        change(&mut self.recreations.write())
    }
}

fn key(namespace: &str, uid: &str) -> OwnerKey {
    OwnerKey { namespace: namespace.into(), uid: uid.into() }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::super::{PodListing, Pods};
    use crate::cluster::watch::pod::LeanPod;

    /// A rewritten Pod of a controller.
    fn pod(name: &str, uid: &str, status: &serde_json::Value) -> LeanPod {
        let record = json!({"v": 1, "images": {"app": {"asked": "app:1", "used": "m.io/app:1", "by": "x"}}});
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "shop", "uid": uid,
                "annotations": {"fairlead.dev/routes": record.to_string()},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Mere", "name": "owner", "uid": "m"},
                    {"apiVersion": "a.io/v1", "kind": "Thing", "name": "x", "uid": "o", "controller": true},
                ],
            },
            "spec": {"containers": [{"name": "app", "image": "m.io/app:1"}]},
            "status": status,
        }))
        .expect("a Pod")
    }

    fn deleting(mut pod: LeanPod) -> LeanPod {
        pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        pod
    }

    fn is_paused(pods: &Pods) -> bool {
        assert_eq!(pods.owners().paused_until("shop", "m"), None, "it controls nothing");
        pods.owners().paused_until("shop", "o").is_some()
    }

    #[test]
    fn a_loop_is_seen_however_pods_go() {
        let waiting = json!({"phase": "Pending"});
        // At once, after a while under another name, and while the watch was away.
        for way in ["deleted", "terminating", "relisted", "replaced"] {
            let pods = Pods::default();
            let mut listing = PodListing::new(pods.clone());
            for number in 0..8 {
                let name = if way == "replaced" { "x-0".to_owned() } else { format!("x-{number}") };
                let next = pod(&name, &number.to_string(), &waiting);
                if way == "relisted" {
                    listing.begin();
                    listing.listed(&next);
                    listing.finish();
                } else {
                    listing.applied(&next);
                }
                assert_eq!(is_paused(&pods), number > 5, "{way}, Pod {number}");
                match way {
                    "deleted" => listing.deleted(&next.metadata),
                    "terminating" => listing.applied(&deleting(next)),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn pods_that_ran_or_were_not_rewritten_do_not_count() {
        let running = json!({"phase": "Running"});
        let crashed = json!({"phase": "Pending", "containerStatuses": [{
            "name": "app", "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"startedAt": "2026-01-01T00:00:00Z"}},
        }]});
        for status in [running, crashed, json!(null)] {
            let pods = Pods::default();
            let mut listing = PodListing::new(pods.clone());
            for number in 0..20 {
                let mut next = pod("x-0", &number.to_string(), &status);
                if status.is_null() {
                    next.spec.containers[0].image = "app:1".to_owned();
                }
                listing.applied(&next);
                listing.applied(&deleting(next.clone()));
                listing.deleted(&next.metadata);
            }
            assert!(!is_paused(&pods), "{status}");
        }
    }

    #[test]
    fn a_pause_is_learnt_from_the_record_of_a_pod() {
        let pods = Pods::default();
        let mut listing = PodListing::new(pods.clone());
        let until = Timestamp::now().as_second() + 600;
        let until = Timestamp::from_second(until).expect("a time");
        let record = json!({"v": 1, "images": {"app": {
            "asked": "app:1", "used": "app:1", "by": "original", "pausedUntil": until.to_string(),
        }}});
        let mut kept = pod("x-0", "1", &json!(null));
        kept.annotations = vec![("fairlead.dev/routes".to_owned(), Some(record.to_string()))];
        listing.begin();
        listing.listed(&kept);
        listing.finish();
        assert_eq!(pods.owners().paused_until("shop", "o"), Some(until));
        assert_eq!(pods.owners().paused_until("other", "o"), None);
        assert_eq!(pods.owners().paused().len(), 1);
    }
}
