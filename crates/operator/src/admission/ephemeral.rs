//! Records of containers that are added to running Pods for debugging.
//!
//! When they are added the API server takes nothing but the containers themselves, so what was decided about their
//! images is written onto the Pod afterwards: from a bounded queue, best effort, and only once the Pod really has the
//! container with that image.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_plan::pod_record::{self, Entry, Place, PodAnnotations, Route};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::decide::PodRequest;
use super::patch::pointer;

use crate::controller::backoff::Backoff;

/// Records that wait to be written. Debugging is done by people, one container at a time.
const QUEUE: usize = 256;
/// Records written at once.
const AT_ONCE: usize = 4;
/// The container appears as soon as the API server has stored it; it may also be refused after it was asked about.
const ATTEMPTS: u32 = 6;
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(8)).with_jitter(0.2);

/// What was decided about containers of one Pod.
#[derive(Debug, Clone)]
pub struct Notice {
    namespace: String,
    pod: String,
    uid: String,
    routes: Vec<(String, Route)>,
}

impl Notice {
    pub(super) fn new(request: &PodRequest<'_>, entries: Vec<Entry<'_>>) -> Self {
        let metadata = request.pod.metadata.as_ref();
        Self {
            namespace: request.namespace.to_owned(),
            pod: metadata.map(|metadata| metadata.name.to_string()).unwrap_or_default(),
            uid: metadata.map(|metadata| metadata.uid.to_string()).unwrap_or_default(),
            routes: entries.into_iter().map(|entry| (entry.place.key(), entry.route)).collect(),
        }
    }
}

/// Where admission leaves what it cannot write itself.
#[derive(Debug, Clone)]
pub struct Records {
    queue: mpsc::Sender<Arc<Notice>>,
    lost: Counter,
}

impl Records {
    /// The queue, and the task that empties it.
    pub fn new(client: Client, registry: &mut Registry) -> (Self, Recorder) {
        let (queue, notices) = mpsc::channel(QUEUE);
        let lost = Counter::default();
        registry.register(
            "fairlead_ephemeral_records_lost",
            "Records of ephemeral containers that could not be written onto their Pods",
            lost.clone(),
        );
        (Self { queue, lost: lost.clone() }, Recorder { client, notices, lost })
    }

    pub(super) fn note(&self, notice: Notice) {
        if !notice.routes.is_empty() && self.queue.try_send(Arc::new(notice)).is_err() {
            self.lost.inc();
        }
    }
}

/// Writes records of ephemeral containers onto their Pods.
pub struct Recorder {
    client: Client,
    notices: mpsc::Receiver<Arc<Notice>>,
    lost: Counter,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { client, notices, lost } = self;
        let notices = stream::unfold(notices, async |mut notices| Some((notices.recv().await?, notices)));
        let writing = notices.for_each_concurrent(AT_ONCE, |notice| {
            let (client, lost) = (client.clone(), lost.clone());
            async move {
                if let Err(error) = write(client, &notice).await {
                    lost.inc();
                    tracing::debug!(%error, namespace = notice.namespace, pod = notice.pod, "an ephemeral container stays without a record");
                }
            }
        });
        shutdown.run_until_cancelled(writing).await;
    }
}

async fn write(client: Client, notice: &Notice) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client, &notice.namespace);
    for attempt in 0..ATTEMPTS {
        sleep(PAUSES.pause(attempt, fastrand::f64())).await;
        let pod = match pods.get_opt(&notice.pod).await? {
            Some(pod) if pod.metadata.uid.as_deref() == Some(&notice.uid) => pod,
            // The Pod is gone, and with it what was to be recorded.
            _ => return Ok(()),
        };
        let Some(patch) = amendment(&pod, notice) else { continue };
        match pods.patch(&notice.pod, &PatchParams::default(), &Patch::Json::<()>(patch)).await {
            // The Pod has changed since it was read.
            Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422) => {}
            done => return done.map(|_| ()),
        }
    }
    Ok(())
}

/// The patch that adds what is not recorded yet; none while the Pod does not have the containers.
fn amendment(pod: &Pod, notice: &Notice) -> Option<json_patch::Patch> {
    let present = pod.spec.as_ref()?.ephemeral_containers.as_deref().unwrap_or_default();
    let has = |name: &str, route: &Route| {
        present.iter().any(|container| {
            container.name == name && container.image.as_deref() == Some(route.used.as_str())
        })
    };
    let entries: Vec<_> = notice
        .routes
        .iter()
        .filter(|(name, route)| has(name, route))
        .map(|(name, route)| Entry { place: Place::Ephemeral(name), route: route.clone() })
        .collect();
    if entries.is_empty() {
        return None;
    }
    let annotations = pod.metadata.annotations.iter().flatten();
    let found = PodAnnotations::of(annotations.map(|(key, value)| (key.as_str(), value.as_str())));
    let changes = pod_record::amended(&found, entries).changes;
    let mut patch = vec![
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": pod.metadata.resource_version}),
    ];
    if pod.metadata.annotations.is_none() {
        patch.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
    }
    for (name, text) in changes {
        let place = pointer("/metadata/annotations", name);
        patch.push(match text {
            Some(text) => json!({"op": "add", "path": place, "value": text}),
            None => json!({"op": "remove", "path": place}),
        });
    }
    serde_json::from_value(patch.into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(containers: &serde_json::Value, annotations: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "uid": "u", "resourceVersion": "7", "annotations": annotations},
            "spec": {"containers": [], "ephemeralContainers": containers},
        }))
        .unwrap()
    }

    fn notice() -> Notice {
        let route = Route {
            used: "m.io/debug:1".to_owned(),
            by: "ClusterImageSetMirror//m".to_owned(),
            ..Route::original("debug:1", "it answered first")
        };
        Notice {
            namespace: "team".to_owned(),
            pod: "web".to_owned(),
            uid: "u".to_owned(),
            routes: vec![("debugger".to_owned(), route)],
        }
    }

    #[test]
    fn nothing_is_written_before_the_container_is_there() {
        for containers in [json!([]), json!([{"name": "debugger", "image": "other"}]), json!([{"name": "x"}])]
        {
            assert_eq!(amendment(&pod(&containers, &json!(null)), &notice()), None, "{containers}");
        }
    }

    #[test]
    fn the_record_joins_what_is_there() {
        let there = json!([{"name": "debugger", "image": "m.io/debug:1"}]);
        let old = json!({"v": 1, "images": {"web": Route::original("nginx", "")}}).to_string();
        for annotations in [json!(null), json!({"a": "b", "fairlead.dev/routes": old})] {
            let pod = pod(&there, &annotations);
            let mut object = serde_json::to_value(&pod).unwrap();
            json_patch::patch(&mut object, &amendment(&pod, &notice()).unwrap()).unwrap();
            let record = object["metadata"]["annotations"]["fairlead.dev/routes"].as_str().unwrap();
            let record: serde_json::Value = serde_json::from_str(record).unwrap();
            assert_eq!(record["images"]["debugger"]["asked"], "debug:1");
            assert_eq!(record["images"].get("web").is_some(), !annotations.is_null());
            assert_eq!(
                object["metadata"]["annotations"]["kuik.enix.io/original-images"],
                r#"{"ephemeral:debugger":"debug:1"}"#
            );
        }
    }
}
