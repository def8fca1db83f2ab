//! What a cluster is asked, with the rights of the person who asks. Whatever they may not see is named, so that nobody
//! takes half an explanation for a whole one.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow};
use fairlead_api::fairlead::ImageLedger;
use fairlead_api::kuik::{
    ClusterImageSetMirror, ClusterReplicatedImageSet, ImageSetMirror, ReplicatedImageSet,
};
use fairlead_api::names::fairlead::{HEALED, ROUTES};
use fairlead_api::reef::ProxyCache;
use fairlead_domain::reference::Reference;
use fairlead_operator::cluster::ledgers::Claims;
use fairlead_operator::platform::config::Config;
use fairlead_operator::platform::install::{CONFIG_KEY, CONFIG_MAP, WEBHOOK_NAME};
use fairlead_plan::heal::Written;
use fairlead_plan::node_failures::{NodeFailure, NodeFailures};
use fairlead_plan::owners::{exemption, recorded_pause};
use fairlead_plan::pull_failure::{PullFailure, is_about};
use fairlead_plan::routing::SecretName;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhook;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, ServiceAccount};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::{Selector, SelectorExt};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::subject::Subject;
use crate::api_server::{FORBIDDEN, NOT_FOUND, code, patiently, told, unknown_kind, webhook};

/// Ledgers per request. One may have half a megabyte.
const LEDGERS: u32 = 16;
/// Metadata of Pods per request.
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
    pub(crate) async fn ledgers(&self, operator_namespace: &str) -> Result<Claims, String> {
        let kind = ApiResource::erase::<ImageLedger>(&());
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &kind);
        let ledgers = Claims::default();
        let mut page = ListParams::default().limit(LEDGERS);
        loop {
            let list = match patiently(|| api.list(&page)).await {
                // Nothing was ever copied.
                Err(error) if code(&error) == NOT_FOUND => return Ok(ledgers),
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
                None => return Ok(ledgers),
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

    pub(crate) async fn secret(&self, name: &SecretName) -> Result<Option<Secret>, String> {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &name.namespace);
        secrets.get_opt(&name.name).await.map_err(|error| match code(&error) {
            FORBIDDEN => "you may not read it".to_owned(),
            _ => format!("it cannot be read: {}", told(&error)),
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

    /// Why the Pods of its controller are not rewritten at present: the record of some Pod of that controller says so.
    /// What cannot be read says nothing.
    pub(crate) async fn paused(&self, subject: &Subject, now: Timestamp) -> Option<String> {
        let controller = subject.controller().filter(|controller| !controller.uid.is_empty())?;
        let pause = |annotations: &BTreeMap<String, String>| {
            recorded_pause(annotations.get(ROUTES)?).filter(|until| *until > now)
        };
        let mut until = pause(&subject.annotations);
        let pods = Api::<Pod>::namespaced(self.client.clone(), &subject.namespace);
        let mut page = ListParams::default().limit(PODS);
        while until.is_none() {
            let list = pods.list_metadata(&page).await.ok()?;
            let siblings = list.items.into_iter().filter(|pod| {
                pod.owner_references()
                    .iter()
                    .any(|owner| owner.controller == Some(true) && owner.uid == controller.uid)
            });
            until = siblings.filter_map(|pod| pause(pod.annotations())).max();
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
        Some(exemption(&controller, &[], Some(until?))?.why)
    }

    /// What nodes could not pull for Pods of a namespace, by the statuses of Pods and by what healing wrote on them.
    /// The credentials of those Pods are not compared. What cannot be read says nothing.
    pub(crate) async fn failures_on_nodes(&self, namespace: &str, failures: &mut NodeFailures) {
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        let mut page = ListParams::default().limit(PODS);
        while let Ok(list) = pods.list(&page).await {
            for pod in &list.items {
                for (image, failure, at) in failed_pulls(pod) {
                    if let Ok(image) = Reference::parse(&image)
                        && failure.is_of_location()
                    {
                        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                        let failure = NodeFailure {
                            namespace: namespace.into(),
                            credentials: [].into(),
                            node: node.unwrap_or_default().into(),
                            failure,
                            at,
                        };
                        failures.learn(&image, failure);
                    }
                }
            }
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
    }

    /// Why the API server does not ask the operator about Pods of a namespace, as far as that can be seen.
    pub(crate) async fn exempt(&self, installation: &Installation, namespace: &str) -> Option<String> {
        let selector = installation.webhook.as_ref()?.namespace_selector.clone()?;
        let selector = Selector::try_from(selector).ok()?;
        let labels = match Api::<Namespace>::all(self.client.clone()).get_opt(namespace).await {
            Ok(found) => found?.metadata.labels.unwrap_or_default(),
            // Every namespace has this one.
            Err(_) => BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), namespace.to_owned())]),
        };
        (!selector.matches(&labels)).then(|| {
            format!(
                "the namespaceSelector of the webhook {WEBHOOK_NAME} leaves namespace {namespace} out, so the operator \
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

/// The images that could not be pulled for a Pod: now, or before it was given others.
fn failed_pulls(pod: &Pod) -> Vec<(String, PullFailure, Timestamp)> {
    let written = Written { healed: pod.annotations().get(HEALED).map(String::as_str), ..Written::default() };
    let tried = written.tried();
    let mut failed: Vec<_> =
        tried.failures().map(|(image, failure, at)| (image.to_owned(), failure, at)).collect();
    let (spec, status) = (pod.spec.clone().unwrap_or_default(), pod.status.clone().unwrap_or_default());
    let statuses = status.container_statuses.into_iter().chain(status.init_container_statuses).flatten();
    for status in statuses {
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let image = containers.filter(|one| one.name == status.name).find_map(|one| one.image.clone());
        let waiting = status.state.and_then(|state| state.waiting);
        let (Some(image), Some(waiting)) = (image, waiting) else { continue };
        let message = waiting.message.unwrap_or_default();
        if let Some(failure) = PullFailure::classify(&waiting.reason.unwrap_or_default(), &message)
            && is_about([&*image].into_iter(), &status.image, &message)
        {
            failed.push((image, failure, Timestamp::now()));
        }
    }
    failed
}
