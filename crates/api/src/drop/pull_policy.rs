//! `PullPolicy`: how fast images may be pulled onto nodes.

use std::collections::BTreeMap;
use std::time::Duration as Span;

use fairlead_domain::duration::Duration;
use k8s_openapi::api::core::v1::Toleration;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::schema;

/// Names that the status of a policy lists.
pub const MAX_USERS: usize = 100;

/// Limits and waiting times. An object without `spec` has the defaults.
#[derive(CustomResource, JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "drop.corewire.io",
    version = "v1alpha1",
    kind = "PullPolicy",
    plural = "pullpolicies",
    category = "drop",
    status = "PullPolicyStatus",
    derive = "PartialEq",
    doc = "How many pulls may run at once, how far apart they start, and what happens after a failure.",
    printcolumn = r#"{"name": "MaxNodes", "type": "integer", "jsonPath": ".spec.maxConcurrentNodes"}"#,
    printcolumn = r#"{"name": "MaxPulls", "type": "integer", "jsonPath": ".spec.maxConcurrentPulls"}"#,
    printcolumn = r#"{"name": "MinDelay", "type": "string", "jsonPath": ".spec.minDelayBetweenPulls"}"#,
    printcolumn = r#"{"name": "RepullInterval", "type": "string", "jsonPath": ".spec.repullInterval"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Users", "type": "integer", "jsonPath": ".status.userCount", "description": "CachedImages that are paced by the policy.", "priority": 1}"#
)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct PullPolicySpec {
    /// Nodes that may pull one image at the same time.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub max_concurrent_nodes: i32,
    /// Pulls that may run at the same time for all images with this policy. Left out: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_concurrent_pulls: Option<i32>,
    /// Time between the starts of two pulls of one image. Zero means the default.
    #[serde(default = "default_delay")]
    pub min_delay_between_pulls: Duration,
    /// Waiting times after failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_backoff: Option<FailureBackoff>,
    /// Time after which an image is pulled again, to follow a tag that moves. Left out or zero: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repull_interval: Option<Duration>,
    /// Labels of the nodes that this policy is for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::schema::node_labels")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of the nodes that this policy is for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::tolerations")]
    pub tolerations: Vec<Toleration>,
}

schema::spec_may_be_absent!(PullPolicySpec);

impl Default for PullPolicySpec {
    fn default() -> Self {
        Self {
            max_concurrent_nodes: one(),
            max_concurrent_pulls: None,
            min_delay_between_pulls: default_delay(),
            failure_backoff: None,
            repull_interval: None,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
        }
    }
}

/// Waiting times after failures: the first one, doubled with every further failure up to the longest one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureBackoff {
    /// Wait after the first failure.
    #[serde(default = "default_initial")]
    pub initial: Duration,
    /// Longest wait.
    #[serde(default = "default_max")]
    pub max: Duration,
}

impl Default for FailureBackoff {
    fn default() -> Self {
        Self { initial: default_initial(), max: default_max() }
    }
}

/// Whether the policy is in use. Condition: `Accepted`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PullPolicyStatus {
    /// Generation of the object that this status was found for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of `CachedImages` that the policy paces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_count: Option<u32>,
    /// Names of those `CachedImages`, in order: the first 100 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_USERS))]
    pub users: Vec<String>,
    /// What holds of this object, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::list")]
    pub conditions: Vec<Condition>,
}

fn one() -> i32 {
    1
}

fn default_delay() -> Duration {
    Span::from_secs(10).into()
}

fn default_initial() -> Duration {
    Span::from_secs(30).into()
}

fn default_max() -> Duration {
    Span::from_mins(5).into()
}
