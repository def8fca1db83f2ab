//! The ledger of mirrored and watched images: who owns a copy, what it must contain, how long it is kept, and what the
//! last look at a watched image found.
//!
//! An object that matches thousands of images has several ledgers, each of bounded size. The registry is the truth
//! about what exists; the ledger is the truth about what is ours. Its content is in `spec`, which backups keep, and
//! `status` only sums it up. Both are written at once, so the definition has no status subresource: a ledger that is
//! rewritten often must not cost two writes each time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::kuik::{Availability, MAX_MIRRORS};

/// Copies in one ledger, over all its entries: large enough for few objects, small enough to rewrite on every change.
pub const MAX_COPIES: usize = 500;

/// Namespaces that one entry remembers as having proven access.
pub const MAX_PROOFS: usize = 64;

/// Images of one object, and their copies.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "fairlead.dev",
    version = "v1alpha1",
    kind = "ImageLedger",
    plural = "imageledgers",
    shortname = "iledger",
    category = "fairlead",
    namespaced,
    status = "ImageLedgerStatus",
    derive = "PartialEq",
    doc = "Record of the copies that Fairlead made for a ClusterImageSetMirror or ImageSetMirror, or of the images that it watches for a ClusterImageSetAvailability. Fairlead writes it; edit that object instead.",
    printcolumn = r#"{"name": "Kind", "type": "string", "jsonPath": ".spec.owner.kind", "description": "Kind of the object that the ledger belongs to."}"#,
    printcolumn = r#"{"name": "Owner", "type": "string", "jsonPath": ".spec.owner.name", "description": "Name of the object that the ledger belongs to."}"#,
    printcolumn = r#"{"name": "Images", "type": "integer", "jsonPath": ".status.imageCount", "description": "Images in this ledger."}"#,
    printcolumn = r#"{"name": "Mirrored", "type": "integer", "jsonPath": ".status.mirroredCount", "description": "Copies that are in place."}"#,
    printcolumn = r#"{"name": "Failed", "type": "integer", "jsonPath": ".status.failedCount", "description": "Copies that failed or were refused, and watched images that cannot be pulled."}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "description": "Whether every copy is in place."}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "Time since the object was created."}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ImageLedgerSpec {
    /// The object that the ledger belongs to.
    #[x_kube(validation = Rule::new("self == oldSelf").message("owner cannot be changed: a ledger belongs to one object for life"))]
    pub owner: LedgerOwner,
    /// How the copies were made. Absent: as they are, without anything that refers to them. When the configuration asks
    /// for another manner, they are made again.
    #[serde(default, skip_serializing_if = "LedgerManner::is_verbatim")]
    pub manner: LedgerManner,
    /// The images, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_COPIES))]
    #[x_kube(validation = at_most_max_copies(), merge_strategy = ListMerge::Atomic)]
    pub entries: Vec<LedgerEntry>,
}

fn at_most_max_copies() -> Rule {
    Rule::new(format!("self.map(entry, has(entry.mirrors) ? entry.mirrors.size() : 0).sum() <= {MAX_COPIES}"))
        .message(&*format!(
            "entries hold more than {MAX_COPIES} mirrors in total: continue in another ImageLedger"
        ))
}

/// How copies are made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LedgerManner {
    /// Platforms that are kept of images that are for several. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub platforms: Vec<String>,
    /// Whether signatures, attestations and whatever else refers to an image are copied, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub referrers: bool,
}

impl LedgerManner {
    fn is_verbatim(&self) -> bool {
        *self == Self::default()
    }
}

/// An object whose images are mirrored or watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LedgerOwner {
    /// `ClusterImageSetMirror`, `ImageSetMirror` or `ClusterImageSetAvailability`.
    #[schemars(extend("enum" = ["ClusterImageSetMirror", "ImageSetMirror", "ClusterImageSetAvailability"]))]
    pub kind: String,
    /// Name of the object. An `ImageSetMirror` is in the namespace of the ledger.
    #[schemars(schema_with = "crate::schema::object_name")]
    pub name: String,
    /// UID of the object: one of the same name that is created later has ledgers of its own.
    #[schemars(length(min = 1, max = 63))]
    pub uid: String,
}

/// One image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LedgerEntry {
    /// Reference of the image that is copied or watched.
    #[schemars(schema_with = "crate::schema::image_reference")]
    pub source: String,
    /// Digest that the source had when it was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::digest")]
    pub source_digest: Option<String>,
    /// Since when no Pod uses the image under this object: because none has it, or because the filter leaves it out.
    /// Absent while one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub unused_since: Option<Time>,
    /// The image was never copied, because its source does not let it be: it is not found, access is denied, or its
    /// content is not as it must be. It owns no destination that another image wants.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncopyable: bool,
    /// Namespaces that have proven access to the image. Only in ledgers of objects whose `access` is `Proven`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_PROOFS))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub access: Vec<LedgerProof>,
    /// Its copies: one for each mirror, and those on mirrors that the object no longer names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_MIRRORS))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub mirrors: Vec<LedgerCopy>,
    /// What the last look found. Only in ledgers of a `ClusterImageSetAvailability`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<LedgerWatch>,
}

/// Proof that a namespace has access to an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LedgerProof {
    /// The namespace.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// When its own credentials, or none, last opened the image, or when a Pod of it last ran the image.
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub proven_at: Time,
}

/// One copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.state != 'Mirrored' || has(self.digest)")
        .message("digest must be set where state is Mirrored: without it the copy cannot be verified")
        .field_path(".digest"),
    validation = Rule::new("!(self.state in ['Failed', 'Refused']) || has(self.lastError)")
        .message("lastError must say why where state is Failed or Refused")
        .field_path(".lastError"),
)]
pub struct LedgerCopy {
    /// Reference of the copy.
    #[schemars(schema_with = "crate::schema::image_reference")]
    pub destination: String,
    /// Digest that the copy must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::digest")]
    pub digest: Option<String>,
    /// How far it is. `Pending`: still to be copied. `Mirrored`: in place. `Failed`: the last attempt failed.
    /// `Refused`: another source owns the destination. `Deleting`: no longer needed, being removed from the registry.
    pub state: CopyState,
    /// Since when the state has been this.
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub since: Time,
    /// What went wrong in the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub last_error: Option<String>,
    /// Digests that Fairlead wrote under this name: the last one, and the one before it until the registry has
    /// confirmed the last. Clean-up deletes the copy only while the name has one of them. Absent: Fairlead did not
    /// write what is there, and keeps it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "written_digests")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub written: Vec<String>,
    /// kube-image-keeper wrote the copy. Its digest becomes `written` as soon as Fairlead has looked at it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// The name holds the copy of another source until this one is made. It is not offered to Pods before that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaces: bool,
    /// A Pod names the copy itself as its image, although no Pod uses the source. Retention starts when the last one is
    /// gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub named: bool,
    /// When the last Pod was gone that named the copy itself. Retention counts from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub named_until: Option<Time>,
    /// Why clean-up leaves the copy in the registry for good. It is looked after again when a Pod uses the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub kept: Option<String>,
}

/// Digests of one copy that the ledger remembers.
pub const MAX_WRITTEN: usize = 4;

fn written_digests(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "maxItems": MAX_WRITTEN,
        "items": crate::schema::digest(generator),
    })
}

/// What the watch knows of one image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LedgerWatch {
    /// What the last look found.
    #[serde(default)]
    pub status: Availability,
    /// When it was last looked at. Absent: never yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub last_monitor: Option<Time>,
    /// Why the last look did not find it available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub last_error: Option<String>,
    /// Whether a Pod asked for exactly this image, rather than being given it in place of another.
    #[serde(default)]
    pub original: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CopyState {
    Pending,
    Mirrored,
    Failed,
    Refused,
    Deleting,
}

/// The ledger summed up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageLedgerStatus {
    /// Number of images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_count: Option<u32>,
    /// Number of copies that are in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirrored_count: Option<u32>,
    /// Number of copies that failed or were refused, and of watched images that could not be pulled at the last look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_count: Option<u32>,
    /// `Ready`: whether every copy is in place, and if not, why. A ledger of watched images has none: the object that
    /// it belongs to has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::list")]
    pub conditions: Vec<Condition>,
}
