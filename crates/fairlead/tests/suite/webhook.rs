//! The webhook of an installed operator as others see it: those who reach its port, and those who read what it writes.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use fairlead_operator::platform::install::{CERTIFICATE_SECRET, DEFAULT_NAMESPACE, NAME};
use fairlead_testkit::operator::{SOON, point_webhook_at, webhook_path};
use fairlead_testkit::{Cluster, Operator, eventually};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::install::manifests;
use crate::installed::pod;
use crate::kubectl;

/// Everything is logged, down to the libraries; a rotation happens; and the token is nowhere but where it belongs.
#[tokio::test]
async fn only_the_secret_and_the_webhook_configuration_show_the_token() -> Result<()> {
    let cluster = Cluster::builder().start().await?;
    let mut installed = manifests(&[])?;
    installed.retain(|object| object["kind"] != "Deployment");
    kubectl::apply(&cluster, &installed, &[]).await?;
    kubectl::definitions_are_served(&cluster).await?;
    // Short lives, so that a whole rotation fits into a test.
    let operator = Operator::of(env!("CARGO_BIN_EXE_fairlead")).arg("--certificate-validity=1m");
    let operator = operator.arg("--log-level=trace").start_installed(&cluster).await?;
    point_webhook_at(&cluster, operator.webhook).await?;
    let first = eventually(SOON, || async { webhook_path(&cluster).await?.context("no path yet") }).await?;
    let mut paths = BTreeSet::from([first.clone()]);

    without_the_token_the_port_tells_nothing(&operator, &first).await?;

    let client = cluster.client().await?;
    let namespace = cluster.namespace("team").await?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), DEFAULT_NAMESPACE);
    let rotate = ["secret", CERTIFICATE_SECRET, "--namespace", DEFAULT_NAMESPACE, "fairlead.dev/rotate=now"];
    cluster.kubectl(["annotate"].iter().chain(&rotate)).await?;
    eventually(SOON * 2, || async {
        Api::<Pod>::namespaced(client.clone(), &namespace)
            .create(&PostParams::default(), &pod("asked"))
            .await?;
        let path = webhook_path(&cluster).await?.context("no path")?;
        ensure!(path != first, "still the first path");
        Ok(path)
    })
    .await
    .map(|path| paths.insert(path))?;
    for (_, value) in secrets
        .get(CERTIFICATE_SECRET)
        .await?
        .data
        .unwrap_or_default()
        .iter()
        .filter(|(key, _)| key.ends_with("path-token"))
    {
        paths.insert(format!("/mutate/{}", std::str::from_utf8(&value.0)?));
    }
    ensure!(paths.len() >= 2, "{} tokens", paths.len());

    let everything = "events,pods,configmaps,leases,services,deployments,serviceaccounts,roles";
    let shown = [
        ("the log", operator.process.logs()?),
        ("the metrics", operator.page().await?),
        ("the readiness page", operator.readiness().await?.1),
        ("other objects", cluster.kubectl(["get", everything, "--all-namespaces", "--output=yaml"]).await?),
    ];
    for token in paths.iter().filter_map(|path| path.strip_prefix("/mutate/")) {
        ensure!(token.len() == 64, "{} characters", token.len());
        for (where_, text) in &shown {
            ensure!(!text.is_empty() && !text.contains(token), "a token is in {where_}");
        }
    }
    operator.stop().await
}

async fn without_the_token_the_port_tells_nothing(operator: &Operator, path: &str) -> Result<()> {
    let client = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).no_proxy().build()?;
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "namespace": "kube-system",
        "operation": "CREATE", "object": pod("probe"),
    }});
    for (path, status) in [("/mutate/pods", 404), ("/", 404), (&path[..path.len() - 1], 404), (path, 200)] {
        let answer = client.post(format!("https://{}{path}", operator.webhook)).json(&review).send().await?;
        ensure!(answer.status().as_u16() == status, "{}", answer.status());
    }
    Ok(())
}

/// What an administrator does in the life of an installation leaves the path as it is, whichever tool they use.
pub async fn path_survives(
    cluster: &Cluster,
    path: &str,
    change: impl AsyncFnOnce() -> Result<()>,
) -> Result<()> {
    change().await?;
    let found = webhook_path(cluster).await?;
    ensure!(found.as_deref() == Some(path), "the path is another one now");
    let owners = ["get", "mutatingwebhookconfiguration", NAME, "--show-managed-fields", "--output=json"];
    let found: Value = serde_json::from_str(&cluster.kubectl(owners).await?)?;
    let managers = found["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let owner = managers.iter().filter(|one| one["fieldsV1"].to_string().contains("f:path"));
    let owners: Vec<_> = owner.map(|one| one["manager"].as_str().unwrap_or_default().to_owned()).collect();
    ensure!(!owners.iter().any(|owner| owner == "kubectl" || owner == "helm"), "{owners:?} own the path");
    Ok(())
}
