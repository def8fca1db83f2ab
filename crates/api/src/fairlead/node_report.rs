//! What the agent of one node says about the mirror policies there.
//!
//! The object has the name of its node and belongs to it, so it goes with the node. Only the agent on that node may
//! write it: an admission policy compares the name with the node in the agent's token. It is written when something
//! changes, and is small: hashes stand for the policies and for what they come to.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;

/// Sources in one list of a report.
pub const MAX_REPORTED_SOURCES: usize = 256;
/// Characters of one message of a report.
pub const MAX_REPORT_MESSAGE: usize = 512;

/// What is in force on one node.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "fairlead.dev",
    version = "v1alpha1",
    kind = "NodeMirrorReport",
    plural = "nodemirrorreports",
    shortname = "nmr",
    category = "fairlead",
    status = "NodeMirrorReportStatus",
    derive = "PartialEq",
    doc = "What the agent on the node of the same name says about mirror policies there. Fairlead's agents write it; it goes with its node.",
    printcolumn = r#"{"name": "Runtime", "type": "string", "jsonPath": ".spec.runtime", "description": "Container runtime of the node."}"#,
    printcolumn = r#"{"name": "Policies", "type": "string", "jsonPath": ".spec.policies", "description": "Hash of the policies that are in force."}"#,
    printcolumn = r#"{"name": "Agent", "type": "string", "jsonPath": ".spec.agent", "description": "Version of the agent."}"#,
    printcolumn = r#"{"name": "Error", "type": "string", "jsonPath": ".spec.error", "description": "Why the node does not follow its policies."}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "Time since the object was created."}"#
)]
#[serde(rename_all = "camelCase")]
pub struct NodeMirrorReportSpec {
    /// Version of the agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub agent: String,
    /// Container runtime of the node, and its version where that is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub runtime: String,
    /// Directory that the runtime reads, and that the agent writes to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub directory: String,
    /// Hash of the policies, and of insecure and blocked registries, that the files of the runtime are made from.
    /// Absent while the files are not current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub policies: Option<String>,
    /// Hash of what they come to when they are merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub config: Option<String>,
    /// Sources that the agent leaves alone, because a file of another owner decides about them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_REPORTED_SOURCES))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub skipped: Vec<ReportedSource>,
    /// Sources that the runtime does not treat exactly as their policies say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_REPORTED_SOURCES))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub inexact: Vec<ReportedSource>,
    /// How many sources did not fit into these lists.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub unlisted: u32,
    /// Why the node does not follow its policies, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_REPORT_MESSAGE))]
    pub error: Option<String>,
}

/// A source, and what is to be said about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportedSource {
    /// The source, as policies name it.
    #[schemars(length(max = 512))]
    pub source: String,
    /// What holds for it.
    #[schemars(length(max = MAX_REPORT_MESSAGE))]
    pub message: String,
}

/// The report summed up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeMirrorReportStatus {
    /// None so far: what nodes do with a policy is said by the policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::list")]
    pub conditions: Vec<Condition>,
}
