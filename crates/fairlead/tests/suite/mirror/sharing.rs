//! Several clusters that use one mirror.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Registry, RegistryConfig, eventually};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use reqwest::Method;
use serde_json::{Value, json};

use super::rig::{
    Rig, SOON, delete_pod, digest_at, fresh, mirror_of, pod_of, push, shared, wait_for_copy,
    wait_for_removal, wait_for_status,
};

/// What identifies the cluster of a rig.
async fn identity(rig: &Rig) -> Result<String> {
    let namespaces: Api<Namespace> = Api::all(rig.client().await?);
    namespaces.get("kube-system").await?.metadata.uid.context("a UID")
}

/// How many names the list of a cluster has.
async fn listed(registry: &Registry, path: &str, cluster: &str) -> Result<usize> {
    let (client, base) = (registry.endpoint().http()?, format!("/v2/{path}/fairlead-usage"));
    let read = async |path: String| {
        let request = registry.endpoint().request(&client, Method::GET, &path);
        let accepted = request.header("accept", "application/vnd.oci.image.manifest.v1+json");
        anyhow::Ok(accepted.send().await?.error_for_status()?.json::<Value>().await?)
    };
    let manifest = read(format!("{base}/manifests/{cluster}")).await?;
    let layer = manifest["layers"][0]["digest"].as_str().context("a layer")?;
    let list = read(format!("{base}/blobs/{layer}")).await?;
    Ok(list["names"].as_array().context("names")?.len())
}

fn condition<'a>(status: &'a Value, type_: &str) -> &'a Value {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|condition| condition["type"] == type_).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn clean_up_leaves_what_another_cluster_uses() -> Result<()> {
    let (here, there) = (shared().await?, fresh().await?);
    let (namespace, elsewhere) = (here.namespace().await?, there.namespace().await?);
    let source = here.cluster.registry(RegistryConfig::new()).await?;
    let target = here.cluster.registry(RegistryConfig::new().delete()).await?;
    let (both, one) = (push(&source, "team/both", "1").await?, push(&source, "team/one", "1").await?);
    let places = json!([{"registry": target.host(), "path": "shared"}]);
    let cleaned = json!({"cleanup": {"enabled": true, "retention": "1s"}});
    let (mirror, other) = (mirror_of(&source, &places, &cleaned), mirror_of(&source, &places, &json!({})));
    here.apply(&mirror).await?;
    there.apply(&other).await?;
    let first = here.create(&namespace, &pod_of(&source, "team/both:1")).await?;
    let second = here.create(&namespace, &pod_of(&source, "team/one:1")).await?;
    wait_for_copy(&target, "shared/team/both", "1", &both).await?;
    wait_for_copy(&target, "shared/team/one", "1", &one).await?;
    let user = there.create(&elsewhere, &pod_of(&source, "team/both:1")).await?;
    wait_for_status(&there, &other, |status| status["mirroredCount"] == 1).await?;
    // A list is written at most once a minute.
    for (cluster, names) in [(identity(here).await?, 2), (identity(&there).await?, 1)] {
        eventually(SOON * 2, || async {
            let found = listed(&target, "shared", &cluster).await?;
            ensure!(found == names, "{found} names instead of {names}");
            Ok(())
        })
        .await?;
    }

    // What only this cluster used goes; what the other one uses stays, and the object says why.
    delete_pod(here, &first).await?;
    delete_pod(here, &second).await?;
    wait_for_removal(&target, "shared/team/one", "1").await?;
    let told = format!("1 unused copies are kept: cluster {} uses it", identity(&there).await?);
    let status = wait_for_status(here, &mirror, |status| status.to_string().contains(&told)).await?;
    ensure!(condition(&status, "UsageListed")["status"] == "True", "{status:#}");
    ensure!(status["sharedWith"][0]["cluster"] == *identity(&there).await?, "{status:#}");
    ensure!(digest_at(&target, "shared/team/both", "1").await?.as_deref() == Some(&*both));

    delete_pod(&there, &user).await?;
    eventually(SOON * 3, || async {
        let left = digest_at(&target, "shared/team/both", "1").await?;
        ensure!(
            left.is_none(),
            "it is still there, although no cluster uses it\n{}",
            here.operator.0.process.log_tail()
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn while_a_list_cannot_be_read_nothing_is_deleted() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = rig.cluster.registry(RegistryConfig::new().delete()).await?;
    let digest = push(&source, "team/app", "1").await?;
    push(&target, "fairlead-usage", "not-a-list").await?;
    let cleaned = json!({"cleanup": {"enabled": true, "retention": "1s"}});
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &cleaned);
    rig.apply(&mirror).await?;
    let user = rig.create(&namespace, &pod_of(&source, "team/app:1")).await?;
    wait_for_copy(&target, "team/app", "1", &digest).await?;
    delete_pod(rig, &user).await?;
    let told = "the usage list of cluster not-a-list cannot be read";
    wait_for_status(rig, &mirror, |status| status.to_string().contains(told)).await?;
    ensure!(digest_at(&target, "team/app", "1").await?.as_deref() == Some(&*digest));

    let client = target.endpoint().http()?;
    let path = "/v2/fairlead-usage/manifests/not-a-list";
    let answer = target.endpoint().request(&client, Method::DELETE, path).send().await?;
    ensure!(answer.status().is_success(), "{}", answer.status());
    eventually(SOON * 2, || async {
        let left = digest_at(&target, "team/app", "1").await?;
        ensure!(left.is_none(), "it is still there\n{}", rig.operator.0.process.log_tail());
        Ok(())
    })
    .await
}
