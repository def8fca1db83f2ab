//! Pinning as people meet it: a real API server with its controllers, the installed operator, real registries.

mod command;
pub mod node;
mod replicas;
mod stories;

use anyhow::{Context, Result, ensure};
use fairlead_api::fairlead::ImagePin;
use fairlead_testkit::{Cluster, Registry, eventually, images::ImageBuilder, unique};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use crate::route::rig::{self, SOON, image};

/// Moves the tag `team/app:1` to another image, and returns its digest.
async fn retag(registry: &Registry, label: &str) -> Result<String> {
    let image = ImageBuilder::pause()?.label("test", label).build()?;
    registry.endpoint().push("team/app", "1", &image).await
}

fn asked(registry: &Registry) -> String {
    format!("{}/team/app:1", registry.host())
}

/// A Pod that asks to be pinned.
fn pinned(image: &str) -> Value {
    let mut pod = rig::pod(image);
    pod["metadata"]["annotations"] = json!({"fairlead.dev/pin": "true"});
    pod
}

fn owned(mut pod: Value, owner: &Value, labels: &Value) -> Value {
    pod["metadata"]["ownerReferences"] = json!([owner]);
    pod["metadata"]["labels"] = labels.clone();
    pod
}

/// An object that can own Pods, as they name it. It has no controller, so nothing else happens to it.
pub async fn owner(cluster: &Cluster, namespace: &str) -> Result<Value> {
    let name = unique("owner");
    let arguments = ["create", "configmap", &name, "--namespace", namespace, "--output=json"];
    let object: Value = serde_json::from_str(&cluster.kubectl(arguments).await?)?;
    Ok(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": object["metadata"]["uid"], "controller": true,
    }))
}

async fn pins(cluster: &Cluster, namespace: &str) -> Result<Vec<ImagePin>> {
    let pins: Api<ImagePin> = Api::namespaced(cluster.client().await?, namespace);
    Ok(pins.list(&ListParams::default()).await?.items)
}

/// The Pods of a workload, once there are as many as it wants.
async fn pods_of(cluster: &Cluster, namespace: &str, selector: &str, count: usize) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, namespace);
    eventually(SOON, || async {
        let found = pods.list(&ListParams::default().labels(selector)).await?.items;
        let found: Vec<_> =
            found.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
        ensure!(found.len() == count, "{} of {count} Pods", found.len());
        Ok(found)
    })
    .await
}

fn images(pods: &[Pod]) -> Vec<&str> {
    pods.iter().map(image).collect()
}

/// Creates a Pod with kubectl, and returns it with what kubectl said besides.
async fn create_with_warnings(
    cluster: &Cluster,
    namespace: &str,
    pod: &Value,
    options: &[&str],
) -> Result<(Pod, String)> {
    let mut pod = pod.clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    let file = tempfile::Builder::new().suffix(".json").tempfile()?;
    std::fs::write(file.path(), pod.to_string())?;
    let output = tokio::process::Command::new(cluster.kubectl_path()?)
        .args(["--kubeconfig", &cluster.kubeconfig().display().to_string(), "--namespace", namespace])
        .args(["create", "--output=json", "--filename", &file.path().display().to_string()])
        .args(options)
        .output()
        .await?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let pod = serde_json::from_slice(&output.stdout).with_context(|| told.clone())?;
    Ok((pod, told))
}

/// The digests that a pin holds, by reference.
fn held(pin: &ImagePin) -> Vec<(&str, &str)> {
    pin.spec.images.iter().map(|image| (image.asked.as_str(), image.digest.as_str())).collect()
}

/// Waits until the only pin of the namespace says that all its Pods run what is pinned.
async fn is_ready(cluster: &Cluster, namespace: &str) -> Result<()> {
    eventually(SOON, || async {
        let all = pins(cluster, namespace).await?;
        ensure!(all.len() == 1, "{:?}", all.iter().map(ResourceExt::name_any).collect::<Vec<_>>());
        let status = all[0].status.clone().unwrap_or_default();
        let ready = status.conditions.iter().find(|one| one.type_ == "Ready");
        ensure!(ready.is_some_and(|one| one.message.ends_with("what is pinned")), "{status:?}");
        ensure!(status.image_count == Some(1), "{status:?}");
        Ok(())
    })
    .await
}
