//! What a cluster is asked, with the rights of the person who asks. Whatever they may not see is named, so that half an
//! explanation is not taken for a whole one.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow};
use fairlead_api::fairlead::{ImageLedger, ImagePin};
use fairlead_api::kuik::{
    ClusterImageSetMirror, ClusterReplicatedImageSet, ImageSetMirror, ReplicatedImageSet,
};
use fairlead_api::reef::ProxyCache;
use fairlead_operator::cluster::ledgers::Claims;
use fairlead_operator::cluster::watch::pod::LeanPod;
use fairlead_operator::platform::config::Config;
use fairlead_operator::platform::install::{CONFIG_KEY, CONFIG_MAP, WEBHOOK_NAME};
use futures::future::join_all;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhook;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use kube::api::{ApiResource, DynamicObject, ListParams, ObjectMeta};
use kube::core::{Selector, SelectorExt};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::api_server::{FORBIDDEN, NOT_FOUND, code, pages, patiently, pods, told, unknown_kind, webhook};

/// Ledgers per request. One may have half a megabyte.
const LEDGERS: u32 = 16;
/// Pods, and other small objects, per request.
const PODS: u32 = 500;

pub(crate) struct Cluster {
    client: Client,
}

/// What the cluster says about the operator in it.
pub(crate) struct Installation {
    /// Where the operator runs.
    pub(crate) namespace: Option<String>,
    webhook: Option<MutatingWebhook>,
    pub(crate) warnings: Vec<String>,
}

/// Policies as they are stored.
#[derive(Default)]
pub(crate) struct Listed {
    pub(crate) objects: Vec<Value>,
    pub(crate) warnings: Vec<String>,
}

impl Cluster {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The namespace that the kubeconfig prefers.
    pub(crate) fn namespace(&self) -> &str {
        self.client.default_namespace()
    }

    pub(crate) async fn pod(&self, namespace: &str, name: &str) -> Result<Value> {
        let pods = Api::<DynamicObject>::namespaced_with(
            self.client.clone(),
            namespace,
            &ApiResource::erase::<Pod>(&()),
        );
        let pod = pods.get(name).await.map_err(|error| {
            match code(&error) {
                NOT_FOUND => anyhow!(
                    "there is no Pod {name} in namespace {namespace}; name the namespace with -n, and write an image \
                     of that name in full: docker.io/pod/{name}"
                ),
                _ => anyhow!("cannot read Pod {namespace}/{name}: {}", told(&error)),
            }
        })?;
        serde_json::to_value(pod).context("a Pod of the cluster cannot be written as JSON")
    }

    /// Every policy that the person may see. Those of namespaces are looked for in all of them, else in `namespaces`.
    pub(crate) async fn policies(&self, namespaces: &BTreeSet<&str>) -> Result<Listed> {
        let kinds = [
            (ApiResource::erase::<ClusterImageSetMirror>(&()), true),
            (ApiResource::erase::<ImageSetMirror>(&()), false),
            (ApiResource::erase::<ClusterReplicatedImageSet>(&()), true),
            (ApiResource::erase::<ProxyCache>(&()), true),
            (ApiResource::erase::<ReplicatedImageSet>(&()), false),
        ];
        let lists = join_all(kinds.iter().map(|(kind, wide)| self.list(kind, *wide, namespaces))).await;
        let mut all = Listed::default();
        for listed in lists {
            let Listed { objects, warnings } = listed?;
            all.objects.extend(objects);
            all.warnings.extend(warnings);
        }
        Ok(all)
    }

    async fn list(&self, kind: &ApiResource, wide: bool, namespaces: &BTreeSet<&str>) -> Result<Listed> {
        let (mut listed, all) = (Listed::default(), ListParams::default());
        let everywhere = Api::<DynamicObject>::all_with(self.client.clone(), kind);
        match patiently(|| everywhere.list(&all)).await {
            Ok(list) => listed.add(kind, list.items)?,
            // A cluster without Harbor needs no such kind.
            Err(error) if code(&error) == NOT_FOUND && kind.kind == "ProxyCache" => {}
            Err(error) if code(&error) == NOT_FOUND => listed.warnings.push(unknown_kind(&kind.kind)),
            Err(error) if code(&error) == FORBIDDEN && !wide => {
                listed.warnings.push(format!(
                    "you may not list objects of kind {} in all namespaces; only those of {} are looked at",
                    kind.kind,
                    namespaces.iter().copied().collect::<Vec<_>>().join(", ")
                ));
                for namespace in namespaces {
                    let here = Api::<DynamicObject>::namespaced_with(self.client.clone(), namespace, kind);
                    match patiently(|| here.list(&all)).await {
                        Ok(list) => listed.add(kind, list.items)?,
                        Err(error) => {
                            listed.warnings.push(without(
                                kind,
                                &format!(" of namespace {namespace}"),
                                &error,
                            ));
                        }
                    }
                }
            }
            Err(error) if code(&error) == FORBIDDEN => listed.warnings.push(without(kind, "", &error)),
            Err(error) => return Err(anyhow!("cannot list objects of kind {}: {}", kind.kind, told(&error))),
        }
        Ok(listed)
    }

    /// What the ledgers say of copies. Where they cannot be read, that is said.
    pub(crate) async fn ledgers(&self, ledgers: &Claims, operator_namespace: &str) -> Result<(), String> {
        let kind = ApiResource::erase::<ImageLedger>(&());
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &kind);
        let mut page = ListParams::default().limit(LEDGERS);
        loop {
            let list = match patiently(|| api.list(&page)).await {
                // Nothing was ever copied.
                Err(error) if code(&error) == NOT_FOUND => return Ok(()),
                Err(error) => {
                    return Err(format!(
                        "cannot read ImageLedgers, so copies of other images may be offered here that admission would not \
                         offer: {}",
                        told(&error)
                    ));
                }
                Ok(list) => list,
            };
            list.items.iter().for_each(|ledger| ledgers.learn(ledger, operator_namespace));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(()),
            }
        }
    }

    /// Names of the Secrets that Pods of a `ServiceAccount` pull with, where they name none themselves.
    pub(crate) async fn account(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ServiceAccount>, String> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), namespace);
        accounts.get_opt(name).await.map_err(|error| {
            format!(
                "cannot read ServiceAccount {namespace}/{name}, so Secrets that it names are not used: {}",
                told(&error)
            )
        })
    }

    /// Whether and how the API server asks an operator about Pods.
    pub(crate) async fn installation(&self) -> Installation {
        let mut installation = Installation { namespace: None, webhook: None, warnings: Vec::new() };
        match webhook(&self.client).await {
            Ok(webhook) => {
                installation.webhook = webhook;
                let service =
                    installation.webhook.as_ref().and_then(|one| one.client_config.service.as_ref());
                installation.namespace = service.map(|service| service.namespace.clone());
                if installation.webhook.is_none() {
                    installation.warnings.push(format!(
                        "no webhook {WEBHOOK_NAME} is configured in this cluster, so nothing routes its Pods; this is what \
                         would happen if Fairlead were installed"
                    ));
                }
            }
            // Whether the operator is there is a detail that most people may not see, and need not.
            Err(error) if code(&error) == FORBIDDEN => {}
            Err(error) => {
                installation
                    .warnings
                    .push(format!("cannot tell whether Fairlead is installed: {}", told(&error)));
            }
        }
        installation
    }

    /// The operator's configuration, and what to say about it.
    pub(crate) async fn configuration(&self, namespace: &str) -> (Config, Option<String>) {
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), namespace);
        let name = format!("ConfigMap {namespace}/{CONFIG_MAP}");
        let instead = "the defaults are assumed; --config FILE names the operator's configuration";
        let text = match maps.get_opt(CONFIG_MAP).await {
            Ok(Some(map)) => map.data.unwrap_or_default().remove(CONFIG_KEY).unwrap_or_default(),
            // Plain manifests without a configuration install none: then the defaults are the truth.
            Ok(None) => return (Config::default(), None),
            Err(error) => {
                let warning = format!("cannot read {name}: {}; {instead}", told(&error));
                return (Config::default(), Some(warning));
            }
        };
        match Config::parse(&text) {
            Ok(loaded) => (loaded.config, None),
            Err(error) => (Config::default(), Some(format!("{name} is not valid, {instead}: {error}"))),
        }
    }

    /// The Pods that this person may see: of all namespaces, else of these. What cannot be read says nothing.
    pub(crate) async fn pods(&self, namespaces: &BTreeSet<&str>, everywhere: bool) -> Vec<LeanPod> {
        let page = || ListParams::default().limit(PODS);
        if everywhere && let Ok(found) = pods(&self.client, None, page()).await {
            return found;
        }
        let lists = namespaces.iter().map(|namespace| pods(&self.client, Some(namespace), page()));
        join_all(lists).await.into_iter().filter_map(Result::ok).flatten().collect()
    }

    /// The pins of a namespace.
    pub(crate) async fn pins(&self, namespace: &str) -> Result<Vec<ImagePin>, String> {
        let pins = &Api::<ImagePin>::namespaced(self.client.clone(), namespace);
        let page = ListParams::default().limit(PODS);
        match pages(page, |page| async move { pins.list(&page).await }).await {
            Err(error) if code(&error) == NOT_FOUND => Ok(Vec::new()),
            listed => listed.map_err(|error| {
                format!(
                    "cannot read the ImagePins of namespace {namespace}, so tags may be pinned to other digests: {}",
                    told(&error)
                )
            }),
        }
    }

    /// A namespace, as far as that can be seen; none if it is not there.
    pub(crate) async fn metadata_of(&self, namespace: &str) -> Option<ObjectMeta> {
        match Api::<Namespace>::all(self.client.clone()).get_opt(namespace).await {
            Ok(found) => Some(found?.metadata),
            // Every namespace has this label.
            Err(_) => Some(ObjectMeta {
                name: Some(namespace.to_owned()),
                labels: Some(BTreeMap::from([(
                    "kubernetes.io/metadata.name".to_owned(),
                    namespace.to_owned(),
                )])),
                ..ObjectMeta::default()
            }),
        }
    }
}

impl Installation {
    /// Why the API server does not ask the operator about Pods of a namespace, as far as that can be seen.
    pub(crate) fn leaves_out(&self, namespace: &ObjectMeta) -> Option<String> {
        let selector = self.webhook.as_ref()?.namespace_selector.clone()?;
        let selector = Selector::try_from(selector).ok()?;
        let name = namespace.name.as_deref().unwrap_or_default();
        let labels = namespace.labels.clone().unwrap_or_default();
        (!selector.matches(&labels)).then(|| {
            format!(
                "the namespaceSelector of the webhook {WEBHOOK_NAME} leaves namespace {name} out, so the operator \
                 never sees its Pods"
            )
        })
    }
}

impl Listed {
    fn add(&mut self, kind: &ApiResource, items: Vec<DynamicObject>) -> Result<()> {
        for item in items {
            if item.metadata.deletion_timestamp.is_some() {
                self.warnings.push(format!(
                    "{}/{} is being deleted and offers nothing more",
                    kind.kind,
                    item.name_any()
                ));
                continue;
            }
            let mut object =
                serde_json::to_value(item).context("an object of the cluster cannot be written as JSON")?;
            // Lists leave out what all their items have in common.
            if let Some(fields) = object.as_object_mut() {
                fields.insert("apiVersion".to_owned(), json!(kind.api_version));
                fields.insert("kind".to_owned(), json!(kind.kind));
            }
            self.objects.push(object);
        }
        Ok(())
    }
}

fn without(kind: &ApiResource, where_: &str, error: &kube::Error) -> String {
    format!("objects of kind {}{where_} are left out of this explanation: {}", kind.kind, told(error))
}
