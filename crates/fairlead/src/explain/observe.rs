//! What admission would know of a cluster: from manifests, and from what a person may read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::keyring::Credential;
use fairlead_operator::cluster::state::PodListing;
use fairlead_operator::context::Context;
use fairlead_operator::registries::node_failures::failed_pulls;
use fairlead_operator::registries::secrets::PullKeys;
use fairlead_plan::node_failures::NodeFailure;
use fairlead_plan::pinning;
use fairlead_plan::routing::SecretName;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use tokio::time::Instant;

use super::cluster::Cluster;
use super::files::{self, Manifest, Mismatch, text_at};
use super::subject::Subject;

/// For the Secrets of a Pod whose pull failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Lets a context know.
pub(crate) struct Observer {
    pub(crate) context: Arc<Context>,
    accounts: BTreeMap<(String, String), ServiceAccount>,
}

impl Observer {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, accounts: BTreeMap::new() }
    }

    /// The Secrets and accounts among manifests. Those that do not say where they belong go to `namespace`.
    pub(crate) fn manifests(&mut self, manifests: &[Manifest], namespace: &str) {
        for Manifest { object, .. } in manifests {
            let text = |path: &[&str]| text_at(object, path);
            let (Some("v1"), Some(name)) = (text(&["apiVersion"]), text(&["metadata", "name"])) else {
                continue;
            };
            let home = text(&["metadata", "namespace"]).unwrap_or(namespace);
            match text(&["kind"]) {
                Some("Secret") => {
                    let secret = files::typed::<Secret>(object).map(stored);
                    let secret = secret.map_err(|Mismatch { field, message }| format!("{field}: {message}"));
                    let name = SecretName { namespace: home.into(), name: name.into() };
                    self.context.secrets.learn(&name, secret);
                }
                Some("ServiceAccount") => {
                    if let Ok(account) = files::typed(object) {
                        self.account((home.to_owned(), name.to_owned()), account);
                    }
                }
                _ => {}
            }
        }
    }

    fn account(&mut self, (namespace, name): (String, String), mut account: ServiceAccount) {
        account.metadata.namespace = Some(namespace.clone());
        self.context.accounts.learn(&account);
        self.accounts.insert((namespace, name), account);
    }

    /// The accounts of Pods. What could not be read is returned in words.
    pub(crate) async fn accounts(&mut self, subjects: &[Subject], cluster: &Cluster) -> Vec<String> {
        let wanted: BTreeSet<_> = subjects.iter().map(Subject::account).collect();
        let unknown = wanted.into_iter().filter(|account| !self.accounts.contains_key(account));
        let reading = unknown.map(|(namespace, name)| async {
            let account = cluster.account(&namespace, &name).await;
            ((namespace, name), account)
        });
        let mut warnings = Vec::new();
        for (key, account) in join_all(reading.collect::<Vec<_>>()).await {
            match account {
                Ok(account) => self.account(key, account.unwrap_or_default()),
                Err(warning) => warnings.push(warning),
            }
        }
        warnings
    }

    /// Gives Pods what the API server gives them before it asks the webhook.
    pub(crate) fn complete(&self, subjects: &mut [Subject]) {
        for subject in subjects {
            if let Some(account) = self.accounts.get(&subject.account()) {
                subject.complete(account);
            }
        }
    }

    /// Pods: which controllers are paused, and what nodes could not pull. `everywhere`: in all namespaces, where the
    /// person may see them; a failure in two of them on two nodes counts for all. What cannot be read says nothing.
    pub(crate) async fn pods(&self, subjects: &[Subject], cluster: &Cluster, everywhere: bool) {
        let own: BTreeSet<&str> = subjects.iter().map(|subject| subject.namespace.as_str()).collect();
        let is_wanted = everywhere || subjects.iter().any(|subject| subject.pod().controller().is_some());
        let listed = if is_wanted { cluster.pods(&own, everywhere).await } else { Vec::new() };
        let pods = &self.context.resources.pods;
        let mut listing = PodListing::new(pods.clone());
        listing.begin();
        let asked_about = subjects.iter().filter_map(Subject::listed);
        asked_about.chain(listed).for_each(|pod| listing.listed(&pod));
        listing.finish();

        let mut failing = pods.select(|pod| !failed_pulls(pod).is_empty());
        // Their own failures count at once, so they come first: of one image only some are remembered.
        failing.sort_by_key(|pod| (!own.contains(&*pod.key.namespace), pod.key.clone()));
        for pod in failing {
            let keys = if own.contains(&*pod.key.namespace) {
                self.context.secrets.of_pod(&pod, Instant::now() + PATIENCE).await
            } else {
                // They are compared within a namespace only.
                PullKeys::default()
            };
            for (image, failure, at) in failed_pulls(&pod) {
                let credentials = keys.credentials(&image).iter().map(Credential::id).collect();
                let (namespace, node) = (pod.key.namespace.clone(), pod.node.clone().unwrap_or_default());
                let failure = NodeFailure { namespace, credentials, node, failure, at };
                self.context.node_failures.learn(&image, failure);
            }
        }
    }

    /// The pins of the revisions that Pods belong to. What could not be read is returned in words.
    pub(crate) async fn pins(&self, subjects: &[Subject], cluster: &Cluster) -> Vec<String> {
        let has_revision = |subject: &&Subject| {
            let pod = subject.pod();
            pinning::revision(pod.controller(), &pod.labels()).is_some()
        };
        let namespaces: BTreeSet<_> =
            subjects.iter().filter(has_revision).map(|subject| &subject.namespace).collect();
        let (mut pins, mut warnings) = (Vec::new(), Vec::new());
        for namespace in namespaces {
            match cluster.pins(namespace).await {
                Ok(found) => pins.extend(found),
                Err(warning) => warnings.push(warning),
            }
        }
        self.context.pins.learn(pins);
        warnings
    }
}

/// Like the API server, which stores what is written in plain text with the rest.
fn stored(mut secret: Secret) -> Secret {
    let plain = secret.string_data.take().unwrap_or_default();
    let plain = plain.into_iter().map(|(key, text)| (key, k8s_openapi::ByteString(text.into_bytes())));
    secret.data.get_or_insert_default().extend(plain);
    secret
}
