//! Accounts that let their Pods use listed secrets only.

use anyhow::{Context, Result, ensure};
use fairlead_operator::cluster::watch::{self, Resources, Watches};
use fairlead_testkit::{eventually, install_crypto, shared};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::bench::SOON;

#[tokio::test]
async fn restrictions_of_accounts_are_known() -> Result<()> {
    install_crypto();
    let cluster = shared().await;
    let (client, namespace) = (cluster.client().await?, cluster.namespace("accounts").await?);
    let resources = Resources::default();
    let watches = Watches::new(client.clone(), &namespace, &resources, None, watch::Metrics::default());
    let mut tasks = tokio::task::JoinSet::new();
    for (_, watch) in watches.all.into_iter().filter(|(kind, _)| *kind == "ServiceAccount") {
        tasks.spawn(watch);
    }
    ensure!(tasks.len() == 1);
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), &namespace);
    let strict: ServiceAccount = serde_json::from_value(json!({
        "metadata": {"name": "strict", "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}},
        "imagePullSecrets": [{"name": "allowed"}],
    }))?;
    accounts.create(&PostParams::default(), &strict).await?;
    let permitted = |name: &str| {
        let found = resources.accounts.permitted(&namespace, name)?;
        Some(found.iter().cloned().collect::<Vec<_>>())
    };
    let becomes = async |expected: Option<Vec<String>>| {
        eventually(SOON, || async {
            ensure!(permitted("strict") == expected, "{:?}", permitted("strict"));
            Ok(())
        })
        .await
    };
    becomes(Some(vec!["allowed".to_owned()])).await?;
    ensure!(permitted("default").is_none() && permitted("").is_none());

    // This is why it matters.
    let pod = |secret: &str| -> Result<Pod> {
        Ok(serde_json::from_value(json!({
            "metadata": {"generateName": "pod-"},
            "spec": {
                "serviceAccountName": "strict", "imagePullSecrets": [{"name": secret}],
                "containers": [{"name": "web", "image": "nginx:1"}],
            },
        }))?)
    };
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let refused = pods.create(&PostParams::default(), &pod("other")?).await.err().context("it is created")?;
    ensure!(refused.to_string().contains("imagePullSecret"), "{refused}");
    pods.create(&PostParams::default(), &pod("allowed")?).await?;

    let patch = Patch::Merge(json!({"imagePullSecrets": [{"name": "allowed"}, {"name": "added"}]}));
    accounts.patch("strict", &PatchParams::default(), &patch).await?;
    becomes(Some(vec!["added".to_owned(), "allowed".to_owned()])).await?;
    accounts.delete("strict", &DeleteParams::default()).await?;
    becomes(None).await
}
