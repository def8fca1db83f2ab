//! The ledger of warmed nodes: what each node's last pull of one image came to.
//!
//! A node's own list of images is short and late, so what was pulled is remembered here: the result of a pull is stored
//! before its Pod is deleted, and the next attempt counts from it. An image on thousands of nodes has several ledgers,
//! each small enough to be rewritten whenever one of its nodes changes. Spec and status are written at once, as with
//! the ledger of mirrored images.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;

/// Nodes in one ledger. A row takes at most 1.7 KiB, so a ledger stays below 512 KiB.
pub const MAX_WARMED_NODES: usize = 250;

/// Characters of a failure that are remembered.
pub const MAX_FAILURE_MESSAGE: usize = 256;

/// Nodes of one image, and what is known of it there.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "fairlead.dev",
    version = "v1alpha1",
    kind = "WarmLedger",
    plural = "warmledgers",
    shortname = "wledger",
    category = "fairlead",
    namespaced,
    status = "WarmLedgerStatus",
    derive = "PartialEq",
    doc = "Record of the pulls that Fairlead made for a CachedImage, by node. Fairlead writes it; delete it to have the image pulled again.",
    printcolumn = r#"{"name": "Owner", "type": "string", "jsonPath": ".spec.owner.name", "description": "CachedImage that the ledger belongs to."}"#,
    printcolumn = r#"{"name": "Nodes", "type": "integer", "jsonPath": ".status.nodeCount", "description": "Nodes in this ledger."}"#,
    printcolumn = r#"{"name": "Failed", "type": "integer", "jsonPath": ".status.failedCount", "description": "Nodes whose last pull failed."}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "Time since the object was created."}"#
)]
#[serde(rename_all = "camelCase")]
pub struct WarmLedgerSpec {
    /// The `CachedImage` that the ledger belongs to.
    #[x_kube(validation = Rule::new("self == oldSelf").message("owner cannot be changed: a ledger belongs to one object for life"))]
    pub owner: WarmLedgerOwner,
    /// Reference that was pulled onto the nodes that name no other.
    #[schemars(schema_with = "crate::schema::image_reference")]
    pub reference: String,
    /// Digest that was found on the nodes that name no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::digest")]
    pub digest: Option<String>,
    /// When a pull of the image last started, on whatever node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub last_start: Option<Time>,
    /// The nodes, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_WARMED_NODES))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub nodes: Vec<WarmedNode>,
}

/// A `CachedImage`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WarmLedgerOwner {
    /// Name of the object.
    #[schemars(schema_with = "crate::schema::object_name")]
    pub name: String,
    /// UID of the object: one of the same name that is created later has ledgers of its own.
    #[schemars(length(min = 1, max = 63))]
    pub uid: String,
}

/// What the pulls on one node came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WarmedNode {
    /// UID of the node: one of the same name that joins later starts anew.
    #[schemars(length(min = 1, max = 63))]
    pub uid: String,
    /// Name of the node.
    #[schemars(schema_with = "crate::schema::object_name")]
    pub name: String,
    /// Number of the last pull that ended here. The name of the next Pod follows from it.
    #[schemars(range(min = 1))]
    pub attempt: u32,
    /// Reference that was pulled last, where it is not that of the ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::image_reference")]
    pub reference: Option<String>,
    /// Digest that the node got, where it is not that of the ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::digest")]
    pub digest: Option<String>,
    /// When the node got the image. Absent: it did not get this reference yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub pulled_at: Option<Time>,
    /// Pulls that failed since the last one that did not.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub failures: u32,
    /// When the last of them failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub failed_at: Option<Time>,
    /// Why it failed, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// Why it failed, in more words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_FAILURE_MESSAGE))]
    pub message: Option<String>,
    /// The node does not list the image although it was pulled again for that reason. Its list is not relied on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlisted: bool,
}

/// The ledger summed up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WarmLedgerStatus {
    /// Number of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_count: Option<u32>,
    /// Number of nodes whose last pull failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_count: Option<u32>,
    /// None so far: whether the image is where it should be is said by its `CachedImage`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::list")]
    pub conditions: Vec<Condition>,
}
