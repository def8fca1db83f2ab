//! A Pod as it is decoded: what is kept, and nothing that would be allocated only to be dropped.
//!
//! A Pod of a busy cluster is ten kilobytes of JSON, most of it managed fields, environment and conditions. Fields that
//! are not named here are skipped over in the text. Absent and null fields read as empty, so no Pod fails to decode.

use std::fmt;

use fairlead_api::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{or_default, stands_for};

/// Annotations that are kept whole, whatever their length.
const OURS: [&str; 8] = [
    names::fairlead::ROUTES,
    names::fairlead::VOLUME_DIGESTS,
    names::fairlead::HEALED,
    names::fairlead::PULLS,
    names::kuik::ORIGINAL_IMAGES,
    names::reef::ORIGINAL_UPSTREAMS,
    names::reef::PATCHED_CONTAINERS,
    names::reef::PATCHED,
];

/// Selectors cannot name a longer value.
const LONGEST_SELECTABLE: usize = 63;

#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Wire")]
pub struct LeanPod {
    /// Name, namespace, UID, version, times, labels, owners; nothing else is filled.
    pub metadata: ObjectMeta,
    /// A key with its value, or without one where the value is too long to matter.
    pub annotations: Vec<(String, Option<String>)>,
    /// Bytes of all of them, keys and whole values.
    pub annotation_bytes: usize,
    pub spec: LeanSpec,
    pub status: LeanStatus,
}

#[derive(Deserialize)]
struct Wire {
    #[serde(default, deserialize_with = "or_default")]
    metadata: LeanMeta,
    #[serde(default, deserialize_with = "or_default")]
    spec: LeanSpec,
    #[serde(default, deserialize_with = "or_default")]
    status: LeanStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeanMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<std::collections::BTreeMap<String, String>>,
    #[serde(default, deserialize_with = "or_default")]
    annotations: Annotations,
    owner_references: Option<Vec<OwnerReference>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeanSpec {
    pub node_name: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub containers: Vec<LeanContainer>,
    #[serde(deserialize_with = "or_default")]
    pub init_containers: Vec<LeanContainer>,
    #[serde(deserialize_with = "or_default")]
    pub ephemeral_containers: Vec<LeanContainer>,
    #[serde(deserialize_with = "or_default")]
    pub service_account_name: String,
    #[serde(deserialize_with = "or_default")]
    image_pull_secrets: Vec<SecretName>,
    #[serde(deserialize_with = "or_default")]
    volumes: Vec<LeanVolume>,
}

impl LeanSpec {
    pub fn pull_secrets(&self) -> impl Iterator<Item = &str> {
        self.image_pull_secrets.iter().map(|secret| secret.name.as_str()).filter(|name| !name.is_empty())
    }

    /// Name and source of every volume that is an image.
    pub fn image_volumes(&self) -> impl Iterator<Item = (&str, &LeanImageSource)> {
        self.volumes
            .iter()
            .filter_map(|volume| Some((volume.name.as_str(), volume.image.as_ref()?)))
            .filter(|(_, source)| !source.reference.is_empty())
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeanContainer {
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub image: String,
    #[serde(deserialize_with = "or_default")]
    pub image_pull_policy: String,
    /// `Always` makes an init container a sidecar.
    #[serde(deserialize_with = "or_default")]
    pub restart_policy: String,
    #[serde(deserialize_with = "or_default")]
    pub volume_mounts: Vec<LeanMount>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeanMount {
    /// The volume's.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub mount_path: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct SecretName {
    #[serde(deserialize_with = "or_default")]
    name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanVolume {
    #[serde(deserialize_with = "or_default")]
    name: String,
    image: Option<LeanImageSource>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeanImageSource {
    #[serde(deserialize_with = "or_default")]
    pub reference: String,
    #[serde(deserialize_with = "or_default")]
    pub pull_policy: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeanStatus {
    #[serde(deserialize_with = "or_default")]
    pub phase: String,
    /// Why the Pod as a whole failed, `Evicted` for instance.
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    #[serde(deserialize_with = "or_default")]
    conditions: Vec<LeanCondition>,
    #[serde(deserialize_with = "or_default")]
    pub container_statuses: Vec<LeanContainerStatus>,
    #[serde(deserialize_with = "or_default")]
    pub init_container_statuses: Vec<LeanContainerStatus>,
    #[serde(deserialize_with = "or_default")]
    pub ephemeral_container_statuses: Vec<LeanContainerStatus>,
}

/// A condition, for the one kind of Pod whose readiness matters.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeanCondition {
    #[serde(rename = "type", deserialize_with = "or_default")]
    kind: String,
    #[serde(deserialize_with = "or_default")]
    status: String,
    last_transition_time: Option<Time>,
}

impl LeanStatus {
    /// Whether the Pod is ready, and since when it is that or is not, in seconds since 1970. 0: not known.
    pub fn readiness(&self) -> (bool, i64) {
        let ready = self.conditions.iter().find(|condition| condition.kind == "Ready");
        let since = ready.and_then(|ready| ready.last_transition_time.as_ref());
        (ready.is_some_and(|ready| ready.status == "True"), since.map_or(0, |time| time.0.as_second()))
    }

    /// Whether some container of the Pod runs or ever ran.
    pub fn has_started(&self) -> bool {
        let all =
            [&self.init_container_statuses, &self.container_statuses, &self.ephemeral_container_statuses];
        matches!(&*self.phase, "Running" | "Succeeded")
            || all.into_iter().flatten().any(LeanContainerStatus::has_started)
    }

    /// Whether the Pod does, or has done, what it is there for: a main container runs or ran. Init containers and
    /// sidecars only prepare that. Ephemeral containers are used by a person while they run.
    pub fn is_in_use(&self) -> bool {
        self.container_statuses.iter().any(LeanContainerStatus::has_started)
            || self.ephemeral_container_statuses.iter().any(|status| status.state.running.is_some())
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeanContainerStatus {
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub image: String,
    #[serde(rename = "imageID", deserialize_with = "or_default")]
    pub image_id: String,
    #[serde(rename = "containerID", deserialize_with = "or_default")]
    pub container_id: String,
    #[serde(deserialize_with = "or_default")]
    volume_mounts: Vec<LeanMountStatus>,
    #[serde(deserialize_with = "or_default")]
    state: LeanState,
    #[serde(deserialize_with = "or_default")]
    last_state: LeanState,
}

impl LeanContainerStatus {
    pub fn waiting(&self) -> Option<&Waiting> {
        self.state.waiting.as_ref()
    }

    pub fn terminated_reason(&self) -> Option<&str> {
        self.state.terminated.as_ref()?.reason.as_deref()
    }

    /// Every mount of which the kubelet reports an image. The API server does not check that the volume is one.
    pub fn mounted_images(&self) -> impl Iterator<Item = MountedImage<'_>> {
        self.volume_mounts.iter().filter_map(|mount| {
            let reported = mount.volume_status.as_ref()?.image.as_ref()?.image_ref.as_str();
            let (volume, path) = (mount.name.as_str(), mount.mount_path.as_str());
            (!reported.is_empty()).then_some(MountedImage { volume, path, reported })
        })
    }

    /// Whether it runs or ever ran.
    pub fn has_started(&self) -> bool {
        self.state.has_started() || self.last_state.has_started()
    }
}

/// An image that the kubelet says is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountedImage<'a> {
    pub volume: &'a str,
    pub path: &'a str,
    pub reported: &'a str,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanState {
    waiting: Option<Waiting>,
    running: Option<IgnoredAny>,
    terminated: Option<Terminated>,
}

impl LeanState {
    fn has_started(&self) -> bool {
        let ran = self.terminated.as_ref().and_then(|terminated| terminated.started_at.as_ref());
        self.running.is_some() || ran.is_some_and(|started| started.0.as_second() > 0)
    }
}

/// The kubelet calls containers of a deleted Pod terminated although they never ran, without the time of a start; a
/// container that could not be started has the runtime's time zero.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    reason: Option<String>,
    started_at: Option<Time>,
}

/// Why a container waits.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Waiting {
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    #[serde(deserialize_with = "or_default")]
    pub message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeanMountStatus {
    #[serde(deserialize_with = "or_default")]
    name: String,
    #[serde(deserialize_with = "or_default")]
    mount_path: String,
    volume_status: Option<LeanVolumeStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanVolumeStatus {
    image: Option<LeanImageStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeanImageStatus {
    #[serde(deserialize_with = "or_default")]
    image_ref: String,
}

impl From<Wire> for LeanPod {
    fn from(wire: Wire) -> Self {
        let meta = wire.metadata;
        Self {
            metadata: ObjectMeta {
                name: meta.name,
                namespace: meta.namespace,
                uid: meta.uid,
                resource_version: meta.resource_version,
                creation_timestamp: meta.creation_timestamp,
                deletion_timestamp: meta.deletion_timestamp,
                labels: meta.labels,
                owner_references: meta.owner_references,
                ..ObjectMeta::default()
            },
            annotations: meta.annotations.kept,
            annotation_bytes: meta.annotations.bytes,
            spec: wire.spec,
            status: wire.status,
        }
    }
}

#[derive(Default)]
struct Annotations {
    kept: Vec<(String, Option<String>)>,
    bytes: usize,
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Annotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = Annotations::default();
                while let Some(key) = map.next_key::<String>()? {
                    let (value, bytes) = if OURS.contains(&key.as_str()) {
                        let value = map.next_value::<String>()?;
                        let bytes = value.len();
                        (Some(value), bytes)
                    } else {
                        let Short(value, bytes) = map.next_value()?;
                        (value, bytes)
                    };
                    all.bytes += key.len() + bytes;
                    all.kept.push((key, value));
                }
                Ok(all)
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// A text if it is short enough, and its length; a long one is not even copied.
struct Short(Option<String>, usize);

impl<'de> Deserialize<'de> for Short {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Short;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Short((text.len() <= LONGEST_SELECTABLE).then(|| text.to_owned()), text.len()))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

stands_for!(LeanPod, k8s_openapi::api::core::v1::Pod);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_capabilities_need_is_kept_and_the_rest_is_not() {
        let long = "x".repeat(64);
        let routes = format!("{{\"v\":1,\"images\":{{\"{long}\":{{}}}}}}");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web-0", "namespace": "shop", "uid": "u", "resourceVersion": "12",
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": null,
                "labels": {"app": "web"},
                "annotations": {"short": "yes", "long": long, (names::fairlead::ROUTES): routes},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "o", "controller": true}],
                "managedFields": [{"manager": "x"}],
            },
            "spec": {
                "nodeName": "node-1",
                "imagePullSecrets": [{"name": "registry"}, {}],
                "initContainers": [{"name": "prepare", "image": "busybox"}],
                "containers": [{"name": "web", "image": "nginx:1", "env": [{"name": "A", "value": "b"}]}],
                "volumes": [
                    {"name": "data", "emptyDir": {}},
                    {"name": "model", "image": {"reference": "models/llm:3", "pullPolicy": "Always"}},
                ],
            },
            "status": {
                "phase": "Pending",
                "initContainerStatuses": null,
                "containerStatuses": [{
                    "name": "web", "image": "nginx:1", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"waiting": {"reason": "ImagePullBackOff", "message": "…"}},
                }],
            },
        });
        let pod: LeanPod = serde_json::from_str(&pod.to_string()).expect("a Pod");
        assert_eq!(pod.metadata.name.as_deref(), Some("web-0"));
        assert_eq!(pod.metadata.managed_fields, None);
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string());
        assert_eq!(created.as_deref(), Some("2026-01-01T00:00:00Z"));
        let value = |key: &str| {
            pod.annotations.iter().find(|(found, _)| found == key).map(|(_, value)| value.clone())
        };
        assert_eq!(value("short"), Some(Some("yes".to_owned())));
        assert_eq!(value("long"), Some(None));
        let bytes = ["short", "yes", "long", &long, names::fairlead::ROUTES, &routes].map(str::len);
        assert_eq!(pod.annotation_bytes, bytes.iter().sum::<usize>(), "also of what is not kept");
        assert_eq!(value(names::fairlead::ROUTES), Some(Some(routes)));
        assert_eq!(pod.spec.pull_secrets().collect::<Vec<_>>(), ["registry"]);
        let volumes: Vec<_> = pod.spec.image_volumes().collect();
        let [("model", source)] = volumes[..] else { panic!("{volumes:?}") };
        assert_eq!((&*source.reference, &*source.pull_policy), ("models/llm:3", "Always"));
        let waiting = pod.status.container_statuses[0].waiting().expect("it waits");
        assert_eq!((&*waiting.reason, &*waiting.message), ("ImagePullBackOff", "…"));
    }

    #[test]
    fn only_main_containers_and_what_a_person_runs_put_a_pod_to_use() {
        let ran = json!([{"name": "a", "state": {"terminated": {"startedAt": "2026-01-01T00:00:00Z"}}}]);
        let runs = json!([{"name": "a", "state": {"running": {}}}]);
        for (list, statuses, in_use) in [
            ("initContainerStatuses", &ran, false),
            ("initContainerStatuses", &runs, false),
            ("containerStatuses", &ran, true),
            ("containerStatuses", &runs, true),
            ("ephemeralContainerStatuses", &ran, false),
            ("ephemeralContainerStatuses", &runs, true),
        ] {
            let status: LeanStatus = serde_json::from_value(json!({list: statuses})).expect("a status");
            assert_eq!((status.is_in_use(), status.has_started()), (in_use, true), "{list}: {statuses}");
        }
    }

    #[test]
    fn a_container_has_started_if_it_runs_or_ran() {
        for (status, started) in [
            (json!({"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}), true),
            (json!({"state": {"running": {}}}), true),
            (json!({"state": {"terminated": {"exitCode": 1, "startedAt": "2026-01-01T00:00:00Z"}}}), true),
            (
                json!({
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": {"startedAt": "2026-01-01T00:00:00Z"}},
                }),
                true,
            ),
            (json!({"state": {"waiting": {"reason": "ImagePullBackOff"}}, "lastState": {}}), false),
            (
                json!({"state": {"terminated": {"reason": "ContainerStatusUnknown", "startedAt": null}}}),
                false,
            ),
            (
                json!({"state": {"terminated": {"reason": "StartError", "startedAt": "1970-01-01T00:00:00Z"}}}),
                false,
            ),
            (json!({"state": null, "lastState": null}), false),
            (json!({}), false),
        ] {
            let pod = json!({"status": {"containerStatuses": [status]}});
            let pod: LeanPod = serde_json::from_str(&pod.to_string()).expect("a Pod");
            assert_eq!(pod.status.container_statuses[0].has_started(), started, "{status}");
        }
    }

    #[test]
    fn a_pod_of_which_little_is_known_decodes() {
        for text in ["{}", r#"{"metadata":null,"spec":{"containers":null},"status":null}"#] {
            assert!(serde_json::from_str::<LeanPod>(text).is_ok(), "{text}");
        }
    }
}
