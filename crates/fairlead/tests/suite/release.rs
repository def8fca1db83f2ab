//! The chart as a release, by the real helm on the real API server: installed, upgraded, uninstalled, and taking over
//! an installation of plain manifests.

use anyhow::{Context, Result};
use fairlead_operator::platform::install::{DEFAULT_NAMESPACE, NAME};
use fairlead_testkit::Cluster;
use fairlead_testkit::operator::webhook_path;
use serde_json::json;

use crate::install::{is_uninstalled, manifests};
use crate::installed::Operator;
use crate::webhook::path_survives;
use crate::yaml::{documents, repository};
use crate::{kubectl, rights};

/// `helm install` or `helm upgrade` of the chart.
pub async fn helm(cluster: &Cluster, command: &str, options: &[&str]) -> Result<String> {
    let chart = repository().join("charts/fairlead");
    let chart = chart.to_str().context("the repository has an odd path")?;
    let mut arguments = vec![command, NAME, chart, "--namespace", DEFAULT_NAMESPACE];
    if command == "install" {
        arguments.push("--create-namespace");
    }
    arguments.extend(options);
    cluster.helm(arguments).await
}

pub async fn uninstall(cluster: &Cluster) -> Result<()> {
    cluster.helm(["uninstall", NAME, "--namespace", DEFAULT_NAMESPACE]).await.map(drop)
}

/// On an API server that behaves like those before 1.34, which do not send a list as part of a watch.
#[tokio::test]
async fn the_chart_installs_an_operator_with_exactly_the_rights_it_uses() {
    let cluster = Cluster::builder().audit(true).feature_gate("WatchList", false).start().await.unwrap();
    let notes = helm(&cluster, "install", &[]).await.unwrap();
    assert!(notes.contains("rollout status deployment/fairlead"), "{notes}");
    kubectl::definitions_are_served(&cluster).await.unwrap();

    let operator = Operator::start(&cluster, DEFAULT_NAMESPACE).await.unwrap();
    operator.works(&cluster).await.unwrap();
    operator.rotates_its_certificate(&cluster).await.unwrap();
    operator.stop(&cluster).await.unwrap();
    rights::check_on_old_server(&cluster, DEFAULT_NAMESPACE).await.unwrap();

    // What the operator wrote meanwhile outlives an upgrade, and a definition that a user damaged does not.
    let bundle = kubectl::ca_bundle(&cluster).await.unwrap();
    assert!(!bundle.is_empty());
    let registered = webhook_path(&cluster).await.unwrap().unwrap();
    let upgraded = async || helm(&cluster, "upgrade", &["--set", "manager.replicas=3"]).await.map(drop);
    path_survives(&cluster, &registered, upgraded).await.unwrap();
    assert_eq!(kubectl::replicas(&cluster).await.unwrap(), "3");
    assert_eq!(kubectl::ca_bundle(&cluster).await.unwrap(), bundle);
    let short_names = "--output=jsonpath={.spec.names.shortNames}";
    let mirrors = ["crd", "imagesetmirrors.kuik.enix.io"];
    let patch = r#"--patch={"spec":{"names":{"shortNames":["damaged"]}}}"#;
    cluster.kubectl(["patch", mirrors[0], mirrors[1], "--type=merge", patch]).await.unwrap();
    helm(&cluster, "upgrade", &["--force-conflicts"]).await.unwrap();
    let short_names = cluster.kubectl(["get", mirrors[0], mirrors[1], short_names]).await.unwrap();
    assert_eq!(short_names, r#"["ism"]"#);

    // No switch takes a definition away once it is there, since that would take all objects of the kind along.
    helm(&cluster, "upgrade", &["--set", "crds.create=false"]).await.unwrap();
    uninstall(&cluster).await.unwrap();
    is_uninstalled(&cluster).await.unwrap();
}

const CONFIGURATION: &str = "# ours\nskipLabels:\n- app=ours\n";

async fn configuration(cluster: &Cluster) -> Result<String> {
    let path = r"--output=jsonpath={.data.config\.yaml}";
    cluster.kubectl(["get", "configmap", "fairlead-config", "--namespace", DEFAULT_NAMESPACE, path]).await
}

/// A `ConfigMap` that was there first is used and left alone, until the chart is given a configuration to put there.
#[tokio::test]
async fn the_chart_leaves_a_config_map_alone_that_was_made_by_hand() {
    let cluster = Cluster::builder().start().await.unwrap();
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "fairlead-config", "namespace": DEFAULT_NAMESPACE },
        "data": { "config.yaml": CONFIGURATION },
    });
    cluster.kubectl(["create", "namespace", DEFAULT_NAMESPACE]).await.unwrap();
    kubectl::create(&cluster, &[object], &[]).await.unwrap();
    helm(&cluster, "install", &[]).await.unwrap();
    helm(&cluster, "upgrade", &["--set", "manager.replicas=3"]).await.unwrap();
    assert_eq!(configuration(&cluster).await.unwrap(), CONFIGURATION);
    let other = r#"--set-json=configuration={"skipLabels":["other"]}"#;
    let refused = helm(&cluster, "upgrade", &[other]).await.unwrap_err().to_string();
    assert!(refused.contains("fairlead-config"), "{refused}");
    helm(&cluster, "upgrade", &[other, "--take-ownership", "--force-conflicts"]).await.unwrap();
    assert!(configuration(&cluster).await.unwrap().contains("other"));
}

#[tokio::test]
async fn the_chart_takes_over_an_installation_of_plain_manifests() {
    let cluster = Cluster::builder().start().await.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), CONFIGURATION).unwrap();
    let installed = manifests(&["--config", file.path().to_str().unwrap()]).unwrap();
    kubectl::apply(&cluster, &installed, &[]).await.unwrap();
    let refused = helm(&cluster, "install", &[]).await.unwrap_err().to_string();
    assert!(refused.contains("ownership"), "{refused}");

    let deployment = installed.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let before = kubectl::get(&cluster, deployment).await.unwrap();
    helm(&cluster, "install", &["--take-ownership", "--server-side=false"]).await.unwrap();
    let after = kubectl::get(&cluster, deployment).await.unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"], "the Deployment was replaced");
    assert_eq!(after["spec"], before["spec"], "Pods were replaced");
    assert_eq!(after["metadata"]["annotations"]["meta.helm.sh/release-name"], NAME);
    assert_eq!(configuration(&cluster).await.unwrap(), CONFIGURATION, "the configuration is lost");

    // From here on it is a release like any other: nothing has to be forced, and Pods are replaced only where
    // something changes.
    helm(&cluster, "upgrade", &[]).await.unwrap();
    let same = format!("--set-json=configuration={}", documents(CONFIGURATION).unwrap()[0]);
    helm(&cluster, "upgrade", &[&same]).await.unwrap();
    let upgraded = kubectl::get(&cluster, deployment).await.unwrap();
    assert_eq!(upgraded["spec"], before["spec"], "Pods were replaced");
    helm(&cluster, "upgrade", &[&same, "--set", "manager.replicas=3", "--set", "image.tag=next"])
        .await
        .unwrap();
    assert_eq!(kubectl::replicas(&cluster).await.unwrap(), "3");
    let other = r#"--set-json=configuration={"skipLabels":["other"]}"#;
    helm(&cluster, "upgrade", &[other]).await.unwrap();
    assert!(configuration(&cluster).await.unwrap().contains("other"));

    uninstall(&cluster).await.unwrap();
    is_uninstalled(&cluster).await.unwrap();
}
