//! The Pod that has a kubelet pull an image: it names its node, runs `true`, and is gone.
//!
//! Nothing of the image is needed to run: a container that cannot start has its image on the node all the same. The Pod
//! meets the restricted standard for Pods, has no token, and asks for next to no resources.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::drop::{API_VERSION, CachedImage, CachedImageSpec, ImagePullPolicy};
use fairlead_api::names::{drop, fairlead, kubernetes};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ImageVolumeSource, LocalObjectReference, Pod, PodOS, PodSecurityContext,
    PodSpec, ResourceRequirements, SeccompProfile, SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::record::{Pull, Record, label_value};
use crate::node::Node;

/// `nobody` on most systems.
const USER: i64 = 65_534;
/// Where an image volume is mounted; its container never looks.
const MOUNT_PATH: &str = "/image";

/// What is to be pulled onto one node by one Pod. Orders may wait by the thousand, so they share what they hold.
#[derive(Debug, Clone)]
pub struct Order {
    pub namespace: Arc<str>,
    pub node: Arc<Node>,
    pub record: Arc<Record>,
    /// Tolerations, secrets and pull policy, in which all images agree.
    pub like: Arc<CachedImage>,
    /// Names of Secrets besides those that the images name.
    pub pull_secrets: Arc<[Arc<str>]>,
    /// After which the kubelet gives up.
    pub deadline: Duration,
    /// The images are volumes of containers that run this image instead.
    pub runner: Option<Arc<str>>,
}

/// The Pod of an order.
pub fn pull_pod(order: &Order) -> Pod {
    let (spec, record) = (&order.like.spec, &*order.record);
    let windows = &*order.node.os == "windows";
    let policy = pull_policy(spec.image_pull_policy);
    let (containers, volumes) = match &order.runner {
        None => {
            let containers =
                record.pulls.iter().map(|pull| container(record, pull, &pull.reference, policy, windows));
            (containers.collect(), None)
        }
        Some(runner) => {
            let containers = record.pulls.iter().map(|pull| Container {
                volume_mounts: Some(vec![VolumeMount {
                    name: record.container(pull),
                    mount_path: MOUNT_PATH.to_owned(),
                    read_only: Some(true),
                    ..VolumeMount::default()
                }]),
                ..container(record, pull, runner, "IfNotPresent", windows)
            });
            (
                containers.collect(),
                Some(record.pulls.iter().map(|pull| volume(record, pull, policy)).collect()),
            )
        }
    };
    Pod {
        metadata: metadata(order),
        spec: Some(PodSpec {
            active_deadline_seconds: Some(i64::try_from(order.deadline.as_secs()).unwrap_or(i64::MAX).max(1)),
            automount_service_account_token: Some(false),
            containers,
            enable_service_links: Some(false),
            image_pull_secrets: Some(pull_secrets(order)).filter(|secrets| !secrets.is_empty()),
            node_name: Some(order.node.name.to_string()),
            os: windows.then(|| PodOS { name: "windows".to_owned() }),
            restart_policy: Some("Never".to_owned()),
            security_context: Some(pod_security(windows)),
            termination_grace_period_seconds: Some(0),
            tolerations: Some(tolerations(spec)),
            volumes,
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// Service meshes have nothing to add to a Pod that sends nothing, and what they add needs rights that it must not
/// have.
const NO_SIDECARS: [(&str, &str); 2] =
    [("sidecar.istio.io/inject", "false"), ("linkerd.io/inject", "disabled")];

fn metadata(order: &Order) -> ObjectMeta {
    let record = &*order.record;
    let mut annotations = BTreeMap::from([(fairlead::PULLS.to_owned(), record.write())]);
    annotations.extend(NO_SIDECARS.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let names: Vec<&str> = record.pulls.iter().map(|pull| &*pull.image).collect();
    let (names, pod_name) = (names.join(","), record.pod_name());
    let mut label = |key: &str, value: &str| {
        // Labels have no commas: for a list of names the Pod's own name stands, which ends with a hash of all.
        let shown = label_value(if value.contains(',') { &pod_name } else { value });
        if shown != value {
            annotations.insert(key.to_owned(), value.to_owned());
        }
        (key.to_owned(), shown.into_owned())
    };
    let labels = [
        label(kubernetes::MANAGED_BY, drop::MANAGED_BY_DROP),
        label(drop::CACHED_IMAGE, &names),
        label(drop::NODE, &order.node.name),
    ];
    let owners = record.pulls.iter().map(|pull| OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: "CachedImage".to_owned(),
        name: pull.image.to_string(),
        uid: pull.uid.to_string(),
        // Of several owners none is the controller.
        controller: (record.pulls.len() == 1).then_some(true),
        block_owner_deletion: None,
    });
    ObjectMeta {
        name: Some(pod_name),
        namespace: Some(order.namespace.to_string()),
        labels: Some(labels.into()),
        owner_references: Some(owners.collect()),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    }
}

/// Those that the image names, and those that the place needs where routing found it.
fn pull_secrets(order: &Order) -> Vec<LocalObjectReference> {
    let mut secrets = order.like.spec.image_pull_secrets.clone();
    for name in &*order.pull_secrets {
        if !secrets.iter().any(|known| known.name == **name) {
            secrets.push(LocalObjectReference { name: name.to_string() });
        }
    }
    secrets
}

/// Those of the image, and the taint that holds other Pods back until images like this are there.
fn tolerations(spec: &CachedImageSpec) -> Vec<Toleration> {
    let gate = Toleration {
        key: Some(fairlead::WARMING.to_owned()),
        operator: Some("Exists".to_owned()),
        ..Toleration::default()
    };
    spec.tolerations.iter().cloned().chain([gate]).collect()
}

fn container(record: &Record, pull: &Pull, image: &str, policy: &str, windows: bool) -> Container {
    let quantities = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned())));
        Some(pairs.collect())
    };
    Container {
        name: record.container(pull),
        image: Some(image.to_owned()),
        image_pull_policy: Some(policy.to_owned()),
        command: Some(vec!["true".to_owned()]),
        resources: Some(ResourceRequirements {
            requests: quantities(&[("cpu", "1m"), ("memory", "8Mi")]),
            limits: quantities(&[("memory", "64Mi")]),
            ..ResourceRequirements::default()
        }),
        security_context: (!windows).then(|| SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}

fn volume(record: &Record, pull: &Pull, policy: &str) -> Volume {
    Volume {
        name: record.container(pull),
        image: Some(ImageVolumeSource {
            reference: Some(pull.reference.to_string()),
            pull_policy: Some(policy.to_owned()),
        }),
        ..Volume::default()
    }
}

/// Windows takes none of the fields that are about Linux, and the restricted standard does not ask for them there.
fn pod_security(windows: bool) -> PodSecurityContext {
    if windows {
        return PodSecurityContext { run_as_non_root: Some(true), ..PodSecurityContext::default() };
    }
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        fs_group: Some(USER),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..PodSecurityContext::default()
    }
}

fn pull_policy(policy: ImagePullPolicy) -> &'static str {
    match policy {
        ImagePullPolicy::Always => "Always",
        ImagePullPolicy::IfNotPresent => "IfNotPresent",
        ImagePullPolicy::Never => "Never",
    }
}
