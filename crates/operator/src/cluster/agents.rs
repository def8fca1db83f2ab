//! The `DaemonSet` of agents: which nodes it selects, and nothing else.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Toleration;
use kube::api::ObjectMeta;
use serde::Deserialize;

use crate::cluster::watch::{LeanMeta, or_default, stands_for};

#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Wire")]
pub struct LeanDaemonSet {
    /// Name, namespace and version; nothing else is filled.
    pub metadata: ObjectMeta,
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Toleration>,
}

#[derive(Deserialize)]
struct Wire {
    #[serde(default, deserialize_with = "or_default")]
    metadata: LeanMeta<serde::de::IgnoredAny>,
    #[serde(default, deserialize_with = "or_default")]
    spec: WireSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireSpec {
    #[serde(deserialize_with = "or_default")]
    template: WireTemplate,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireTemplate {
    #[serde(deserialize_with = "or_default")]
    spec: WirePod,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WirePod {
    #[serde(deserialize_with = "or_default")]
    node_selector: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    tolerations: Vec<Toleration>,
}

impl From<Wire> for LeanDaemonSet {
    fn from(Wire { metadata, spec }: Wire) -> Self {
        let WirePod { node_selector, tolerations } = spec.template.spec;
        Self { metadata: metadata.into(), node_selector, tolerations }
    }
}

stands_for!(LeanDaemonSet, DaemonSet);
