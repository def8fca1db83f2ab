//! `CachedImage`: one image that is to be present on nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LocalObjectReference, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::reference::{self, ImagePullPolicy, NameRef};
use crate::conditions::Condition;

/// Condition that says whether pulls are under way.
pub const PULL_PROGRESS: &str = "PullProgress";

/// Names in `cachedNodes`: a status of any number of nodes stays small enough to be rewritten often.
pub const MAX_CACHED_NODES: usize = 1000;

/// What to pull, and where to.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "drop.corewire.io",
    version = "v1alpha1",
    kind = "CachedImage",
    plural = "cachedimages",
    category = "drop",
    status = "CachedImageStatus",
    derive = "PartialEq",
    doc = "An image that is pulled onto nodes before a Pod asks for it.",
    printcolumn = r#"{"name": "Image", "type": "string", "jsonPath": ".spec.image"}"#,
    printcolumn = r#"{"name": "Tag", "type": "string", "jsonPath": ".spec.tag"}"#,
    printcolumn = r#"{"name": "Status", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.ready"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Digest", "type": "string", "jsonPath": ".status.resolvedDigest", "priority": 1}"#,
    printcolumn = r#"{"name": "Set", "type": "string", "jsonPath": ".metadata.labels.drop\\.corewire\\.io/imageset", "description": "CachedImageSet that made this image.", "priority": 1}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message", "priority": 1}"#,
    printcolumn = r#"{"name": "Policy", "type": "string", "jsonPath": ".spec.policyRef.name", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = reference::without_scheme(),
    validation = reference::without_digest(),
    validation = reference::without_second_tag(),
    validation = reference::is_repository(),
    validation = reference::is_tag(),
    validation = reference::is_digest()
)]
pub struct CachedImageSpec {
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
    /// Taints that do not keep the image from a node. Nodes with any other taint of effect `NoSchedule` or `NoExecute`
    /// are left alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::tolerations")]
    pub tolerations: Vec<Toleration>,
    /// Order between images that wait for a slot: lower numbers first, and equal ones take turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// `PullPolicy` that paces the pulls. Left out: one node at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_ref: Option<NameRef>,
    /// Nodes that join with the taint `fairlead.dev/warming` keep it until this image is there, or until the
    /// configured `warm.gateDeadline` has passed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gate: bool,
}

/// How far warming has come. Conditions: `Ready`, `PullProgress`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CachedImageStatus {
    /// Generation of the object that this status was found for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Summary in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<CachedImagePhase>,
    /// Nodes that hold the image, of those that should: `2/5`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Digest of the image that was pulled last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_digest: Option<String>,
    /// Number of nodes that should hold the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_targeted: Option<i32>,
    /// Number of nodes that hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_ready: Option<i32>,
    /// Number of nodes that are pulling it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_pulling: Option<i32>,
    /// Names of the nodes that hold it, in order: the first 1,000 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cached_nodes: Vec<String>,
    /// The most failures in a row that one node has had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consecutive_failures: Option<i32>,
    /// When a node last got the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub last_pulled_at: Option<Time>,
    /// When a pull was last tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub last_attempted_at: Option<Time>,
    /// What holds of this object, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::list")]
    pub conditions: Vec<Condition>,
}

/// Where a `CachedImage` stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CachedImagePhase {
    Pending,
    Pulling,
    Ready,
    Degraded,
}
