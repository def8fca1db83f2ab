//! Replicas: registries that hold the same images, of which Pods are offered the first that answers. Nothing is copied.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::credential::namespace_is_named;
use super::filter::{of_pods_in_cluster, of_pods_in_namespace};
use super::{CredentialSecret, Filter, ImageFilter, MAX_PRIORITY};
use crate::conditions::Condition;
use crate::schema::spec_may_be_absent;

/// Places that one object may declare to be equivalent.
const MAX_UPSTREAMS: usize = 32;

/// Registries that hold the same images, for the Pods of all namespaces.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kuik.enix.io",
    version = "v1alpha1",
    kind = "ClusterReplicatedImageSet",
    plural = "clusterreplicatedimagesets",
    shortname = "cris",
    category = "fairlead",
    category = "kuik",
    status = "ReplicatedSetStatus",
    derive = "PartialEq",
    doc = "Declares that several registries hold the same images, so that Pods of any namespace can be given whichever answers.",
    printcolumn = r#"{"name": "Priority", "type": "integer", "jsonPath": ".spec.priority", "description": "Below 0: upstreams come before the original image."}"#,
    printcolumn = r#"{"name": "Upstreams", "type": "integer", "jsonPath": ".status.upstreamCount", "description": "Upstreams that are offered."}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "description": "Whether the set is in use."}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason", "description": "Why it is ready or not.", "priority": 1}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message", "description": "What is wrong.", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "Time since the object was created."}"#
)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct ClusterReplicatedImageSetSpec {
    /// Place of these upstreams in the order of alternatives, lowest first. The original image stands at 0, before
    /// other alternatives of priority 0: a negative value puts the upstreams before the original, 0 or more makes them
    /// a fallback.
    #[serde(default)]
    #[schemars(range(min = -MAX_PRIORITY, max = MAX_PRIORITY))]
    pub priority: i64,
    /// Pods that the set applies to, by label, annotation or namespace. Left out: all.
    #[serde(default, skip_serializing_if = "Filter::is_empty")]
    #[schemars(schema_with = "of_pods_in_cluster")]
    pub filter: Filter,
    /// Places that hold the same images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_UPSTREAMS), extend("x-kubernetes-list-type" = "atomic"), transform = namespace_is_named)]
    pub upstreams: Vec<Upstream>,
}
spec_may_be_absent!(ClusterReplicatedImageSetSpec);

/// Registries that hold the same images, for the Pods of one namespace.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kuik.enix.io",
    version = "v1alpha1",
    kind = "ReplicatedImageSet",
    plural = "replicatedimagesets",
    shortname = "ris",
    category = "fairlead",
    category = "kuik",
    namespaced,
    status = "ReplicatedSetStatus",
    derive = "PartialEq",
    doc = "Declares that several registries hold the same images, so that Pods of its own namespace can be given whichever answers.",
    printcolumn = r#"{"name": "Priority", "type": "integer", "jsonPath": ".spec.priority", "description": "Below 0: upstreams come before the original image."}"#,
    printcolumn = r#"{"name": "Upstreams", "type": "integer", "jsonPath": ".status.upstreamCount", "description": "Upstreams that are offered."}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "description": "Whether the set is in use."}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason", "description": "Why it is ready or not.", "priority": 1}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message", "description": "What is wrong.", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "Time since the object was created."}"#
)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct ReplicatedImageSetSpec {
    /// Place of these upstreams in the order of alternatives, lowest first. The original image stands at 0, before
    /// other alternatives of priority 0: a negative value puts the upstreams before the original, 0 or more makes them
    /// a fallback.
    #[serde(default)]
    #[schemars(range(min = -MAX_PRIORITY, max = MAX_PRIORITY))]
    pub priority: i64,
    /// Pods that the set applies to, by label or annotation. Left out: all.
    #[serde(default, skip_serializing_if = "Filter::is_empty")]
    #[schemars(schema_with = "of_pods_in_namespace")]
    pub filter: Filter,
    /// Places that hold the same images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_UPSTREAMS), extend("x-kubernetes-list-type" = "atomic"))]
    pub upstreams: Vec<Upstream>,
}
spec_may_be_absent!(ReplicatedImageSetSpec);

/// One place. An image that matches one upstream is offered from all the others, with the path exchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Upstream {
    /// Host and port of the registry, without a scheme, such as `quay.io` or `registry:5000`.
    #[schemars(schema_with = "crate::schema::registry")]
    pub registry: String,
    /// Path below the registry that stands for the same place in every upstream. `/` or empty: the whole registry.
    #[schemars(schema_with = "crate::schema::repository_path")]
    pub path: String,
    /// Images of this registry that belong to the set. The regular expressions are compared with the reference after
    /// the registry, which begins with a slash: `/library/nginx:.+`. Left out: the upstream is only ever a replacement.
    #[serde(default, skip_serializing_if = "ImageFilter::is_empty")]
    pub image_filter: ImageFilter,
    /// Order among the upstreams of this object, lowest first. Equal values keep the order of the list.
    #[serde(default)]
    #[schemars(range(min = 0, max = MAX_PRIORITY))]
    pub priority: u64,
    /// Recognise images of this upstream, but never offer it: for a registry that has moved or is gone.
    #[serde(default)]
    pub discard_alternative: bool,
    /// Secret to check with. Pods that are given this upstream pull with this Secret too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential_secret: Option<CredentialSecret>,
}

/// Whether the set is in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedSetStatus {
    /// Generation of the object that this status was found for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of upstreams that are offered. Discarded ones do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_count: Option<u32>,
    /// `Ready`: whether the set is in use, and if not, why. `Consistent`: present once places of one image were found
    /// to hold different digests, and whether they still do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::list")]
    pub conditions: Vec<Condition>,
}
