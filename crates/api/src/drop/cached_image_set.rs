//! `CachedImageSet`: many images with one set of instructions.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LocalObjectReference, Toleration};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::reference::{self, ImagePullPolicy, NameRef};
use crate::conditions::Condition;
use crate::schema;

/// Images of a set, from a list and from discovery together. An object without `spec` is an empty set.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "drop.corewire.io",
    version = "v1alpha1",
    kind = "CachedImageSet",
    plural = "cachedimagesets",
    category = "drop",
    status = "CachedImageSetStatus",
    derive = "PartialEq",
    doc = "Images that are pulled onto nodes before a Pod asks for them: listed, discovered, or both.",
    printcolumn = r#"{"name": "Status", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.imagesReady"}"#,
    printcolumn = r#"{"name": "Managed", "type": "integer", "jsonPath": ".status.imagesManaged"}"#,
    printcolumn = r#"{"name": "Source", "type": "string", "jsonPath": ".spec.discoveryPolicyRef.name"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct CachedImageSetSpec {
    /// `PullPolicy` that paces the pulls. Left out: one node at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_ref: Option<NameRef>,
    /// `DiscoveryPolicy` whose images belong to the set, in addition to those listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery_policy_ref: Option<NameRef>,
    /// When the kubelet asks the registry: `Always` looks for a newer image under the same tag and downloads only
    /// what is new, `IfNotPresent` asks only where the image is missing.
    #[serde(default)]
    pub image_pull_policy: ImagePullPolicy,
    /// Secrets to pull with, from the namespace where pull Pods run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::secret_references")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Labels that a node must carry, all of them. Left out: every node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::schema::node_labels")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that do not keep the images from a node. Nodes with any other taint of effect `NoSchedule` or `NoExecute`
    /// are left alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::tolerations")]
    pub tolerations: Vec<Toleration>,
    /// Images of the set. An image that is named twice counts once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub images: Vec<ImageEntry>,
    /// Nodes that join with the taint `fairlead.dev/warming` keep it until the images of the set are there, or until
    /// the configured `warm.gateDeadline` has passed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gate: bool,
}

schema::spec_may_be_absent!(CachedImageSetSpec);

/// One image of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = reference::without_scheme(),
    validation = reference::without_digest(),
    validation = reference::without_second_tag(),
    validation = reference::is_repository(),
    validation = reference::is_tag(),
    validation = reference::is_digest()
)]
pub struct ImageEntry {
    /// Repository of the image, without tag and digest: `docker.io/library/nginx`.
    #[schemars(length(min = 1, max = reference::MAX_IMAGE_LENGTH))]
    pub image: String,
    /// Tag to pull. Left out or empty: `latest`. Not used when there is a digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = reference::MAX_TAG_LENGTH))]
    pub tag: Option<String>,
    /// Digest to pull. It wins over the tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = reference::MAX_DIGEST_LENGTH))]
    pub digest: Option<String>,
}

/// How many images of the set are where they should be. Condition: `Ready`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CachedImageSetStatus {
    /// Generation of the object that this status was found for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Summary in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<CachedImageSetPhase>,
    /// Number of images in the set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images_managed: Option<i32>,
    /// Number of images that are on every node they should be on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images_ready: Option<i32>,
    /// What holds of this object, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::list")]
    pub conditions: Vec<Condition>,
}

/// Where a `CachedImageSet` stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CachedImageSetPhase {
    Pending,
    Ready,
    Degraded,
}
