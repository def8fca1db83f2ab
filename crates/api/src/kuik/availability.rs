//! The watch: images in use are looked up in their registries now and then, before an outage needs them.

use fairlead_domain::duration::Duration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::filter::{of_images_in_cluster, one_filter_only};
use super::{Filter, ImageFilter};
use crate::conditions::Condition;
use crate::schema::{rules, spec_may_be_absent};

/// Which images are watched.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kuik.enix.io",
    version = "v1alpha1",
    kind = "ClusterImageSetAvailability",
    plural = "clusterimagesetavailabilities",
    shortname = "cisa",
    category = "fairlead",
    category = "kuik",
    status = "ClusterImageSetAvailabilityStatus",
    derive = "PartialEq",
    doc = "Watches whether the images that Pods use can still be pulled.",
    printcolumn = r#"{"name": "Images", "type": "integer", "jsonPath": ".status.imageCount", "description": "Images that are watched."}"#,
    printcolumn = r#"{"name": "Available", "type": "integer", "jsonPath": ".status.availableCount", "description": "Images that could be pulled at the last look."}"#,
    printcolumn = r#"{"name": "Unavailable", "type": "integer", "jsonPath": ".status.unavailableCount", "description": "Images that could not be pulled at the last look."}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "description": "Whether every image is available."}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason", "description": "Why it is ready or not.", "priority": 1}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message", "description": "What is missing.", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "Time since the object was created."}"#
)]
#[serde(rename_all = "camelCase", remote = "Self")]
#[schemars(extend("x-kubernetes-validations" = rules([one_filter_only()])))]
pub struct ClusterImageSetAvailabilitySpec {
    /// How long an image that no Pod uses is still watched, such as `720h` for thirty days. Left out or 0: for ever.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub unused_image_expiry: Duration,
    /// Images to watch, by regular expressions over the whole reference. Kept for existing manifests; `filter` can do
    /// more.
    #[serde(default, skip_serializing_if = "ImageFilter::is_empty")]
    pub image_filter: ImageFilter,
    /// Images to watch, and the Pods, by label, annotation or namespace, whose images count. Without `filter` and
    /// `imageFilter` nothing is watched.
    #[serde(default, skip_serializing_if = "Filter::is_empty")]
    #[schemars(schema_with = "of_images_in_cluster")]
    pub filter: Filter,
}
spec_may_be_absent!(ClusterImageSetAvailabilitySpec);

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterImageSetAvailabilityStatus {
    /// Generation of the object that this status was found for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of images that are watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_count: Option<u32>,
    /// Number of images that could be pulled at the last look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_count: Option<u32>,
    /// Number of images that could not be pulled at the last look. Images that were not looked at yet are in neither
    /// number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_count: Option<u32>,
    /// The first hundred images, those that are not available before the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["image".into()]))]
    pub images: Vec<MonitoredImage>,
    /// `Ready`: whether every image is available, and if not, why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::list")]
    pub conditions: Vec<Condition>,
}

/// One image that is watched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MonitoredImage {
    /// Reference of the image, registry included.
    pub image: String,
    /// What the last look found.
    #[serde(default)]
    pub status: Availability,
    /// Since when no Pod uses it. Absent while one does. `0001-01-01T01:00:00Z`: the filter no longer matches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub unused_since: Option<Time>,
    /// Why the last look did not find it available.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_error: String,
    /// When it was last looked at. Absent: never yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub last_monitor: Option<Time>,
    /// Whether a Pod asked for exactly this image, rather than being given it in place of another.
    #[serde(default)]
    pub original: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Availability {
    #[default]
    Scheduled,
    Available,
    NotFound,
    Unreachable,
    InvalidAuth,
    UnavailableSecret,
    QuotaExceeded,
}
