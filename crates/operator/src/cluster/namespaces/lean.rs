//! A `Namespace` and a webhook configuration as they are decoded: names, labels and selectors, and nothing else.

use std::collections::BTreeMap;

use fairlead_api::names::fairlead::PIN;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ObjectMeta;
use kube::core::Selector;
use serde::Deserialize;

use crate::cluster::watch::{LeanMeta, or_default, stands_for};
use crate::platform::certificates::is_own_webhook;

#[derive(Debug, Clone, Deserialize)]
#[serde(from = "WireNamespace")]
pub(crate) struct LeanNamespace {
    /// Name, version, labels, and of the annotations the one that asks for pinning; nothing else is filled.
    pub(crate) metadata: ObjectMeta,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "WireConfiguration")]
pub(crate) struct LeanWebhooks {
    /// Name and version; nothing else is filled.
    pub(crate) metadata: ObjectMeta,
    /// The namespace selector of each webhook of ours.
    pub(super) selectors: Vec<Selector>,
}

#[derive(Deserialize)]
struct WireNamespace {
    #[serde(default)]
    metadata: WireMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMeta {
    name: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    #[serde(default, deserialize_with = "or_default")]
    annotations: WireAnnotations,
}

#[derive(Default, Deserialize)]
struct WireAnnotations {
    #[serde(rename = "fairlead.dev/pin")]
    pin: Option<String>,
}

#[derive(Deserialize)]
struct WireConfiguration {
    #[serde(default)]
    metadata: LeanMeta<()>,
    webhooks: Option<Vec<WireWebhook>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireWebhook {
    #[serde(default)]
    name: String,
    namespace_selector: Option<LabelSelector>,
}

impl From<WireNamespace> for LeanNamespace {
    fn from(wire: WireNamespace) -> Self {
        let WireMeta { name, resource_version, labels, annotations } = wire.metadata;
        let annotations = annotations.pin.map(|pin| BTreeMap::from([(PIN.to_owned(), pin)]));
        Self { metadata: ObjectMeta { name, resource_version, labels, annotations, ..ObjectMeta::default() } }
    }
}

impl TryFrom<WireConfiguration> for LeanWebhooks {
    type Error = kube::core::ParseExpressionError;

    fn try_from(wire: WireConfiguration) -> Result<Self, Self::Error> {
        let own =
            wire.webhooks.unwrap_or_default().into_iter().filter(|webhook| is_own_webhook(&webhook.name));
        // Without a selector, a webhook is called for every namespace.
        let selectors = own.map(|webhook| Selector::try_from(webhook.namespace_selector.unwrap_or_default()));
        Ok(Self { selectors: selectors.collect::<Result<_, _>>()?, metadata: wire.metadata.into() })
    }
}

stands_for!(LeanNamespace, Namespace);
stands_for!(LeanWebhooks, MutatingWebhookConfiguration);
