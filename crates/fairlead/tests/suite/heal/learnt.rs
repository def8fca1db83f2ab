//! What nodes cannot pull although its registry has it, and for whom that counts.

use anyhow::{Result, ensure};
use fairlead_testkit::{RegistryConfig, eventually};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::reported::{bound, waits};
use crate::route::rig::{Rig, SOON, image, replicas, route, shared};

/// What containerd says if the manifest is there and a layer is not.
const NO_BLOB: &str = "failed to copy: httpReadSeeker: failed open: content at http://r/v2/team/app/blobs/sha256:1 \
                       not found: not found";

fn on(node: &str, image: &str) -> Value {
    let mut pod = bound(image, &json!({}));
    pod["spec"]["nodeName"] = json!(node);
    pod
}

/// Lets a Pod fail, and waits until the operator has learnt from it.
async fn fails(rig: &Rig, pod: &Pod) -> Result<()> {
    let namespace = pod.namespace().unwrap_or_default();
    waits(&Api::namespaced(rig.client().await?, &namespace), pod, "ErrImagePull", NO_BLOB).await?;
    let key = format!("{namespace}/{}", pod.name_any());
    eventually(SOON, || async {
        let said = rig.operator.0.said("a node cannot pull what its registry has")?;
        ensure!(
            said.iter().any(|line| line["pod"] == key.as_str()),
            "nothing is learnt from {key}: {said:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_fails_on_two_nodes_for_two_namespaces_fails_for_all() -> Result<()> {
    let rig = shared().await?;
    let first = rig.registry(RegistryConfig::new(), "learnt").await?;
    let second = rig.registry(RegistryConfig::new(), "learnt").await?;
    rig.apply(&replicas(&first, &second)).await?;
    let (asked, other) = (format!("{}/team/app:1", first.host()), format!("{}/team/app:1", second.host()));
    let (one, two, three) = (rig.namespace().await?, rig.namespace().await?, rig.namespace().await?);
    let mut pods = Vec::new();
    for (namespace, node) in [(&one, "n-1"), (&two, "n-1"), (&two, "n-2")] {
        let pod = rig.create(namespace, &on(node, &asked)).await?;
        ensure!(image(&pod) == asked, "{}", image(&pod));
        pods.push(pod);
    }
    let [in_one, in_two, on_two] = &pods[..] else { anyhow::bail!("three Pods") };
    let next = async |namespace: &str| rig.create(namespace, &on("n-3", &asked)).await;

    fails(rig, in_one).await?;
    ensure!(image(&next(&one).await?) == other, "its own namespace hears of it at once");
    ensure!(image(&next(&two).await?) == asked && image(&next(&three).await?) == asked, "and no other");
    fails(rig, in_two).await?;
    ensure!(image(&next(&two).await?) == other);
    ensure!(image(&next(&three).await?) == asked, "it may be the node");
    fails(rig, on_two).await?;
    let told = next(&three).await?;
    ensure!(image(&told) == other, "{}", image(&told));
    let why = route(&told, "app")["why"].as_str().unwrap_or_default().to_owned();
    ensure!(why.contains("fails-on-nodes") && !why.contains("n-1"), "nodes of others are not named: {why}");
    Ok(())
}

/// What one login cannot pull says nothing about another.
#[tokio::test]
async fn what_fails_with_one_credential_counts_for_that_one() -> Result<()> {
    let rig = shared().await?;
    let first = rig.registry(RegistryConfig::new(), "learnt with a login").await?;
    let second = rig.registry(RegistryConfig::new(), "learnt with a login").await?;
    rig.apply(&replicas(&first, &second)).await?;
    let (asked, other) = (format!("{}/team/app:1", first.host()), format!("{}/team/app:1", second.host()));
    let namespace = rig.namespace().await?;
    let (server, login) = (format!("--docker-server={}", first.host()), "--docker-username=robot");
    let create = ["create", "secret", "docker-registry", "robot", "--namespace", &namespace];
    rig.cluster.kubectl(create.into_iter().chain([&*server, login, "--docker-password=unused"])).await?;
    let mut with_login = on("n-1", &asked);
    with_login["spec"]["imagePullSecrets"] = json!([{"name": "robot"}]);
    let pod = rig.create(&namespace, &with_login).await?;
    ensure!(image(&pod) == asked, "{}", image(&pod));
    fails(rig, &pod).await?;
    ensure!(image(&rig.create(&namespace, &with_login).await?) == other, "with the same login");
    let anonymous = rig.create(&namespace, &on("n-1", &asked)).await?;
    ensure!(image(&anonymous) == asked, "without one: {}", image(&anonymous));
    Ok(())
}
