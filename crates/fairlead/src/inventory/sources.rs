//! Where Pods come from: a cluster or files. Both are read by the decoder that the operator reads Pods with.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use fairlead_domain::platform::Platform;
use fairlead_operator::capabilities::account::observe::Platforms;
use fairlead_operator::cluster::state::{PodEntry, PodListing, Pods};
use fairlead_operator::cluster::watch::pod::LeanPod;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::api_server::{FORBIDDEN, code, patiently, pods, told};
use crate::explain::files::{Manifests, text_at, title, typed};

/// Pods per request: 10,000 take twenty.
pub(crate) const PAGE: u32 = 500;

const OS: &str = "kubernetes.io/os";
const ARCHITECTURE: &str = "kubernetes.io/arch";

pub(super) struct Found {
    /// By namespace and name.
    pub(super) pods: Vec<Arc<PodEntry>>,
    pub(super) platforms: Platforms,
    pub(super) warnings: Vec<String>,
}

impl Found {
    fn new(pods: impl IntoIterator<Item = LeanPod>, platforms: Platforms, warnings: Vec<String>) -> Self {
        Self { pods: entries(pods), platforms, warnings }
    }
}

/// What the operator keeps of Pods, by namespace and name.
pub(crate) fn entries(pods: impl IntoIterator<Item = LeanPod>) -> Vec<Arc<PodEntry>> {
    let known = Pods::default();
    let mut listing = PodListing::new(known.clone());
    listing.begin();
    pods.into_iter().for_each(|pod| listing.listed(&pod));
    listing.finish();
    let mut pods = known.all();
    pods.sort_by(|one, other| one.key.cmp(&other.key));
    pods
}

/// Asks the API server for no more than is shown.
pub(super) async fn cluster(
    client: &Client,
    namespace: Option<&str>,
    pod: Option<&str>,
    node: Option<&str>,
) -> Result<Found> {
    let fields = [("metadata.name", pod), ("spec.nodeName", node)];
    let fields: Vec<_> =
        fields.iter().filter_map(|(field, value)| Some(format!("{field}={}", (*value)?))).collect();
    let page = ListParams::default().limit(PAGE).fields(&fields.join(","));
    let pods = match pods(client, namespace, page).await {
        Ok(pods) => pods,
        Err(error) if code(&error) == FORBIDDEN && namespace.is_none() => {
            bail!("cannot list the Pods of all namespaces: {}; name one with -n", told(&error))
        }
        Err(error) => bail!("cannot list Pods: {}", told(&error)),
    };
    let nodes = Api::<Node>::all(client.clone());
    let (mut platforms, mut warnings) = (Platforms::new(), Vec::new());
    let all = ListParams::default();
    match patiently(|| nodes.list_metadata(&all)).await {
        Ok(nodes) => platforms.extend(nodes.items.iter().filter_map(platform)),
        Err(error) => warnings.push(format!(
            "the platforms of Nodes are not known, so some digests cannot be compared: {}",
            told(&error)
        )),
    }
    Ok(Found::new(pods, platforms, warnings))
}

fn platform(node: &PartialObjectMeta<Node>) -> Option<(Arc<str>, Platform)> {
    let label = |key: &str| node.labels().get(key).cloned().unwrap_or_default();
    let platform = Platform { os: label(OS), architecture: label(ARCHITECTURE), variant: String::new() };
    (!platform.architecture.is_empty()).then(|| (node.name_any().into(), platform))
}

pub(super) fn files(paths: &[PathBuf]) -> Result<Found> {
    let mut manifests = Manifests::default();
    for path in paths {
        manifests.read(path)?;
    }
    let (mut pods, mut platforms) = (Vec::new(), Platforms::new());
    let mut warnings: Vec<String> = manifests
        .broken
        .iter()
        .map(|broken| format!("{}: {}", broken.place.as_deref().unwrap_or("a document"), broken.message))
        .collect();
    for manifest in &manifests.objects {
        let is = |kind: &str| {
            text_at(&manifest.object, &["kind"]) == Some(kind)
                && manifest.object.get("apiVersion").and_then(Value::as_str) == Some("v1")
        };
        let left_out = |field: &str, message: &str| {
            format!("{}: {} is left out: {field}: {message}", manifest.place, title(&manifest.object))
        };
        if is("Pod") {
            match typed::<LeanPod>(&manifest.object) {
                Ok(pod) => pods.push(pod),
                Err(mismatch) => warnings.push(left_out(&mismatch.field, &mismatch.message)),
            }
        } else if is("Node") {
            match typed::<PartialObjectMeta<Node>>(&manifest.object) {
                Ok(node) => platforms.extend(platform(&node)),
                Err(mismatch) => warnings.push(left_out(&mismatch.field, &mismatch.message)),
            }
        }
    }
    if pods.is_empty() {
        bail!("there is no Pod in these files; `kubectl get pods -o yaml` writes some");
    }
    Ok(Found::new(pods, platforms, warnings))
}
