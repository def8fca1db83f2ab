//! Pins: the digest that a tag meant when a workload revision first used it, so that every replica and every migration
//! target of that revision runs the same bytes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;

/// The images of one revision of one workload.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "fairlead.dev",
    version = "v1alpha1",
    kind = "ImagePin",
    plural = "imagepins",
    shortname = "ipin",
    category = "fairlead",
    namespaced,
    status = "ImagePinStatus",
    derive = "PartialEq",
    doc = "Digests that the image tags of one workload revision are held to. Fairlead writes it, and it goes away with the workload; delete it to have the tags looked up again.",
    printcolumn = r#"{"name": "Kind", "type": "string", "jsonPath": ".spec.workload.kind", "description": "Kind of the workload."}"#,
    printcolumn = r#"{"name": "Workload", "type": "string", "jsonPath": ".spec.workload.name", "description": "Name of the workload."}"#,
    printcolumn = r#"{"name": "Revision", "type": "string", "jsonPath": ".spec.revision", "description": "Revision that the pins hold for."}"#,
    printcolumn = r#"{"name": "Images", "type": "integer", "jsonPath": ".status.imageCount", "description": "Images that are pinned."}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "description": "Whether every Pod of the revision runs what is pinned."}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "Time since the object was created."}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ImagePinSpec {
    /// The workload: the controller that made the Pods.
    #[x_kube(validation = Rule::new("self == oldSelf").message("workload cannot be changed: make another ImagePin"))]
    pub workload: PinnedWorkload,
    /// Revision of the workload: its `pod-template-hash` or `controller-revision-hash`, or the UID of the owner where
    /// it has neither.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("revision cannot be changed: make another ImagePin"))]
    pub revision: String,
    /// The images, each reference once.
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["asked".into()]))]
    pub images: Vec<PinnedImage>,
}

/// A workload in the namespace of the pin.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PinnedWorkload {
    /// API group and version, such as `apps/v1`.
    #[schemars(length(min = 1, max = 317))]
    pub api_version: String,
    /// Kind, such as `ReplicaSet`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Name.
    #[schemars(schema_with = "crate::schema::object_name")]
    pub name: String,
    /// UID: a workload of the same name that is created later has pins of its own.
    #[schemars(length(min = 1, max = 63))]
    pub uid: String,
}

/// One image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.digest == oldSelf.digest")
        .message("digest of a pinned image cannot be changed: Pods that run it would differ from those that come after; delete the ImagePin to look the tag up again")
        .field_path(".digest"),
)]
pub struct PinnedImage {
    /// Reference that the workload asks for, registry included.
    #[schemars(schema_with = "crate::schema::image_reference")]
    pub asked: String,
    /// Digest that it is held to.
    #[schemars(schema_with = "crate::schema::digest")]
    pub digest: String,
    /// Reference of the place that named the digest, if it was not the one asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::image_reference")]
    pub resolved_from: Option<String>,
    /// When the digest was looked up.
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub resolved_at: Time,
}

/// Whether the pins hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImagePinStatus {
    /// Generation of the pin that this status was found for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of images that are pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_count: Option<u32>,
    /// `Ready`: whether every Pod of the revision runs what is pinned, and if not, why. `Current`: whether the tags
    /// still name what is pinned, and the Pods report the same content; present once they did not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::list")]
    pub conditions: Vec<Condition>,
}
