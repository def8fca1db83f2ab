//! A Node as it is decoded: what warming, node configuration and accounting need, and nothing else.
//!
//! A Node reports itself every few seconds, with up to fifty images of up to five names each. The names are hashed
//! while they are decoded.

use std::collections::BTreeMap;
use std::fmt;

use fairlead_domain::reference::Reference;
use fairlead_plan::node::ImageList;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

use crate::cluster::watch::{or_default, stands_for};

/// Images that a kubelet lists unless it is configured otherwise. A list that long may leave some out.
const MOST_IMAGES: usize = 50;
/// Names that a kubelet lists for one image.
const MOST_NAMES: usize = 5;

#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Wire")]
pub(crate) struct LeanNode {
    /// Name, UID, version, time of creation and labels; nothing else is filled.
    pub(crate) metadata: ObjectMeta,
    pub(super) spec: LeanSpec,
    pub(super) status: LeanStatus,
}

#[derive(Deserialize)]
struct Wire {
    #[serde(default, deserialize_with = "or_default")]
    metadata: WireMeta,
    #[serde(default, deserialize_with = "or_default")]
    spec: LeanSpec,
    #[serde(default, deserialize_with = "or_default")]
    status: LeanStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMeta {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanSpec {
    #[serde(deserialize_with = "or_default")]
    pub(super) unschedulable: bool,
    #[serde(deserialize_with = "or_default")]
    pub(super) taints: Vec<LeanTaint>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanTaint {
    #[serde(deserialize_with = "or_default")]
    pub(super) key: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) value: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) effect: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LeanStatus {
    #[serde(deserialize_with = "or_default")]
    pub(super) conditions: Vec<LeanCondition>,
    #[serde(deserialize_with = "or_default")]
    pub(super) node_info: LeanInfo,
    #[serde(deserialize_with = "or_default")]
    pub(super) images: LeanImages,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LeanCondition {
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub(super) kind: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) status: String,
    pub(super) last_heartbeat_time: Option<Time>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LeanInfo {
    #[serde(deserialize_with = "or_default")]
    pub(super) operating_system: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) architecture: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) container_runtime_version: String,
}

#[derive(Debug, Clone, Default)]
pub(super) struct LeanImages(pub(super) ImageList);

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireImage {
    #[serde(deserialize_with = "or_default")]
    names: Vec<String>,
}

impl<'de> Deserialize<'de> for LeanImages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Images;
        impl<'de> Visitor<'de> for Images {
            type Value = LeanImages;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("images")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut images: A) -> Result<Self::Value, A::Error> {
                let (mut hashes, mut count, mut long) = (Vec::new(), 0, false);
                while let Some(image) = images.next_element::<WireImage>()? {
                    count += 1;
                    long |= image.names.len() >= MOST_NAMES;
                    // What is not a reference, `<none>` for instance, is not asked for either.
                    let names = image.names.iter().filter_map(|name| Reference::parse(name).ok());
                    hashes.extend(names.map(|name| ImageList::hash(&name)));
                }
                Ok(LeanImages(ImageList::new(hashes, long || count >= MOST_IMAGES)))
            }
        }
        deserializer.deserialize_seq(Images)
    }
}

impl From<Wire> for LeanNode {
    fn from(wire: Wire) -> Self {
        let WireMeta { name, uid, resource_version, creation_timestamp, labels } = wire.metadata;
        let metadata =
            ObjectMeta { name, uid, resource_version, creation_timestamp, labels, ..ObjectMeta::default() };
        Self { metadata, spec: wire.spec, status: wire.status }
    }
}

stands_for!(LeanNode, k8s_openapi::api::core::v1::Node);
