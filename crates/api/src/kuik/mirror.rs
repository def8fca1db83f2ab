//! Mirrors: images in use are copied to them, and Pods are offered the copies.

use fairlead_domain::duration::Duration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::credential::namespace_is_named;
use super::filter::{of_images_in_cluster, of_images_in_namespace, one_filter_only};
use super::{CredentialSecret, Filter, ImageFilter, MAX_PRIORITY};
use crate::conditions::Condition;
use crate::is_default;
use crate::schema::{rules, spec_may_be_absent};

/// Destinations of one object. Every image is copied to each of them, so more would be a mistake rather than a need.
pub const MAX_MIRRORS: usize = 32;

/// `unusedSince` of an image that the filter no longer matches: so long ago that any retention is over.
pub const NO_LONGER_MATCHING: &str = "0001-01-01T01:00:00Z";

/// Where copies of images are kept, for the Pods of all namespaces.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kuik.enix.io",
    version = "v1alpha1",
    kind = "ClusterImageSetMirror",
    plural = "clusterimagesetmirrors",
    shortname = "cism",
    category = "fairlead",
    category = "kuik",
    status = "MirrorSetStatus",
    derive = "PartialEq",
    doc = "Copies the images that Pods of any namespace use to mirrors, and offers the copies to Pods in place of the originals.",
    printcolumn = r#"{"name": "Priority", "type": "integer", "jsonPath": ".spec.priority", "description": "Below 0: mirrors come before the original image."}"#,
    printcolumn = r#"{"name": "Images", "type": "integer", "jsonPath": ".status.imageCount", "description": "Images in use that the filter matches."}"#,
    printcolumn = r#"{"name": "Mirrored", "type": "integer", "jsonPath": ".status.mirroredCount", "description": "Copies that are in place."}"#,
    printcolumn = r#"{"name": "Failed", "type": "integer", "jsonPath": ".status.failedCount", "description": "Copies whose last attempt failed."}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "description": "Whether everything is copied."}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason", "description": "Why it is ready or not.", "priority": 1}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message", "description": "What is missing.", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "Time since the object was created."}"#
)]
#[serde(rename_all = "camelCase", remote = "Self")]
#[schemars(extend("x-kubernetes-validations" = rules([one_filter_only()])))]
pub struct ClusterImageSetMirrorSpec {
    /// Place of these mirrors in the order of alternatives, lowest first. The original image stands at 0, before other
    /// alternatives of priority 0: a negative value puts the mirrors before the original, 0 or more makes them a
    /// fallback.
    #[serde(default)]
    #[schemars(range(min = -MAX_PRIORITY, max = MAX_PRIORITY))]
    pub priority: i64,
    /// Images to mirror, by regular expressions over the whole reference. Kept for existing manifests; `filter` can do
    /// more.
    #[serde(default, skip_serializing_if = "ImageFilter::is_empty")]
    pub image_filter: ImageFilter,
    /// Images to mirror, and the Pods, by label, annotation or namespace, whose images count. Without `filter` and
    /// `imageFilter` nothing is mirrored.
    #[serde(default, skip_serializing_if = "Filter::is_empty")]
    #[schemars(schema_with = "of_images_in_cluster")]
    pub filter: Filter,
    /// What becomes of copies that no Pod uses any more.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cleanup: Cleanup,
    /// Which namespaces are offered copies. `Shared`: all that the object serves. `Proven`: those that have proven
    /// access to the original, by opening it with their own pull secrets or without any, or by running it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub access: MirrorAccess,
    /// Destinations. Each image is copied to all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_MIRRORS), extend("x-kubernetes-list-type" = "atomic"), transform = namespace_is_named)]
    pub mirrors: Vec<Mirror>,
}
spec_may_be_absent!(ClusterImageSetMirrorSpec);

/// Where copies of images are kept, for the Pods of one namespace.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kuik.enix.io",
    version = "v1alpha1",
    kind = "ImageSetMirror",
    plural = "imagesetmirrors",
    shortname = "ism",
    category = "fairlead",
    category = "kuik",
    namespaced,
    status = "MirrorSetStatus",
    derive = "PartialEq",
    doc = "Copies the images that Pods of its own namespace use to mirrors, and offers the copies to Pods in place of the originals.",
    printcolumn = r#"{"name": "Priority", "type": "integer", "jsonPath": ".spec.priority", "description": "Below 0: mirrors come before the original image."}"#,
    printcolumn = r#"{"name": "Images", "type": "integer", "jsonPath": ".status.imageCount", "description": "Images in use that the filter matches."}"#,
    printcolumn = r#"{"name": "Mirrored", "type": "integer", "jsonPath": ".status.mirroredCount", "description": "Copies that are in place."}"#,
    printcolumn = r#"{"name": "Failed", "type": "integer", "jsonPath": ".status.failedCount", "description": "Copies whose last attempt failed."}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "description": "Whether everything is copied."}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason", "description": "Why it is ready or not.", "priority": 1}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message", "description": "What is missing.", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "Time since the object was created."}"#
)]
#[serde(rename_all = "camelCase", remote = "Self")]
#[schemars(extend("x-kubernetes-validations" = rules([one_filter_only()])))]
pub struct ImageSetMirrorSpec {
    /// Place of these mirrors in the order of alternatives, lowest first. The original image stands at 0, before other
    /// alternatives of priority 0: a negative value puts the mirrors before the original, 0 or more makes them a
    /// fallback.
    #[serde(default)]
    #[schemars(range(min = -MAX_PRIORITY, max = MAX_PRIORITY))]
    pub priority: i64,
    /// Images to mirror, by regular expressions over the whole reference. Kept for existing manifests; `filter` can do
    /// more.
    #[serde(default, skip_serializing_if = "ImageFilter::is_empty")]
    pub image_filter: ImageFilter,
    /// Images to mirror, and the Pods, by label or annotation, whose images count. Without `filter` and `imageFilter`
    /// nothing is mirrored.
    #[serde(default, skip_serializing_if = "Filter::is_empty")]
    #[schemars(schema_with = "of_images_in_namespace")]
    pub filter: Filter,
    /// What becomes of copies that no Pod uses any more.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cleanup: Cleanup,
    /// Which namespaces are offered copies. `Shared`: all that the object serves. `Proven`: those that have proven
    /// access to the original, by opening it with their own pull secrets or without any, or by running it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub access: MirrorAccess,
    /// Destinations. Each image is copied to all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_MIRRORS), extend("x-kubernetes-list-type" = "atomic"))]
    pub mirrors: Vec<Mirror>,
}
spec_may_be_absent!(ImageSetMirrorSpec);

/// Which namespaces are offered the copies of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MirrorAccess {
    #[default]
    Shared,
    Proven,
}

/// One destination: `docker.io/library/nginx:1.29` is copied to `<registry>/<path>/library/nginx:1.29`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Mirror {
    /// Host and port of the registry, without a scheme, such as `registry.example.com` or `registry:5000`.
    #[schemars(schema_with = "crate::schema::registry")]
    pub registry: String,
    /// Path below the registry under which copies are kept. Slashes at either end make no difference.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "crate::schema::repository_path")]
    pub path: String,
    /// Order among the mirrors of this object, lowest first. Equal values keep the order of the list.
    #[serde(default)]
    #[schemars(range(min = 0, max = MAX_PRIORITY))]
    pub priority: u64,
    /// Secret to copy and delete with. Without `pullSecret`, Pods that are given a copy receive this Secret too, with
    /// all its rights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential_secret: Option<CredentialSecret>,
    /// Secret that Pods receive to pull copies, and that availability is checked with. It needs the right to pull only;
    /// `credentialSecret` then stays in its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_secret: Option<CredentialSecret>,
    /// What becomes of unused copies on this mirror, instead of what `spec.cleanup` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleanup: Option<Cleanup>,
}

impl Mirror {
    /// The Secret that Pods receive.
    pub fn secret_for_pods(&self) -> Option<&CredentialSecret> {
        self.pull_secret.as_ref().or(self.credential_secret.as_ref())
    }
}

/// What becomes of copies that no Pod uses any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cleanup {
    /// Whether unused copies are deleted.
    #[serde(default)]
    pub enabled: bool,
    /// How long an unused copy is kept, such as `168h` for a week. Left out or 0: it is deleted at once.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub retention: Duration,
}

/// What was found and done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MirrorSetStatus {
    /// Generation of the object that this status was found for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of images that the filter matches, those waiting to be cleaned up included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_count: Option<u32>,
    /// Number of copies that are in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirrored_count: Option<u32>,
    /// Number of copies whose last attempt failed, or that may not be made because another source owns the destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_count: Option<u32>,
    /// The first hundred images, those with failures before the others. All of them are in the `ImageLedger` objects
    /// labelled with the UID of this object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["image".into()]))]
    pub matching_images: Vec<MatchingImage>,
    /// Other clusters that use the same mirrors, known by the usage lists that they keep there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["mirror".into(), "cluster".into()]))]
    pub shared_with: Vec<SharingCluster>,
    /// Registries that copies wait for: they are down, or their quota is used up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["registry".into()]))]
    pub waiting_for: Vec<AwaitedRegistry>,
    /// `Accepted`: whether the specification was understood and is in force, and if not, which field to correct.
    /// `Ready`: whether every image in use is on every mirror, and if not, why. `Isolated`: whether Pods receive
    /// Secrets that are named for pulling only. `UsageListed`: whether every mirror holds the list of what this cluster
    /// uses, which keeps other clusters from deleting it, and the lists of other clusters can be read. `Consistent`:
    /// present once places of one image were found to hold different digests, and whether they still do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::list")]
    pub conditions: Vec<Condition>,
}

/// Another cluster that uses a mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SharingCluster {
    /// Registry and path of the mirror.
    pub mirror: String,
    /// UID of the namespace `kube-system` of that cluster.
    pub cluster: String,
    /// The hour in which its usage list was last seen.
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub last_seen: Time,
}

/// A registry that copies wait for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AwaitedRegistry {
    /// Host of the registry, with its port.
    pub registry: String,
    /// Why it cannot be used now.
    pub reason: String,
    /// Number of copies and removals that wait for it.
    pub tasks: u32,
}

/// One image that is or was in use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MatchingImage {
    /// Reference of the source, registry included.
    pub image: String,
    /// Since when no Pod uses it. Absent while one does. `0001-01-01T01:00:00Z`: the filter no longer matches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub unused_since: Option<Time>,
    /// Its copies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["image".into()]))]
    pub mirrors: Vec<MirroredImage>,
}

/// One copy of an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MirroredImage {
    /// Reference of the copy.
    pub image: String,
    /// When the copy was made. Absent: it is still to be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub mirrored_at: Option<Time>,
    /// Why the last attempt to copy failed. Empty after a success.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_error: String,
}
