//! The chart as a release, by the real helm on the real API server: installed, upgraded, uninstalled, and taking over an
//! installation of plain manifests.

use anyhow::{Context, Result};
use fairlead_operator::install::{DEFAULT_NAMESPACE, NAME};
use fairlead_testkit::Cluster;

use crate::{
    install::{is_uninstalled, manifests},
    installed::Operator,
    kubectl, rights,
    yaml::repository,
};

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

    // What the operator wrote meanwhile outlives an upgrade, and a definition that somebody damaged does not.
    let bundle = kubectl::ca_bundle(&cluster).await.unwrap();
    assert!(!bundle.is_empty());
    helm(&cluster, "upgrade", &["--set", "manager.replicas=3"]).await.unwrap();
    assert_eq!(kubectl::replicas(&cluster).await.unwrap(), "3");
    assert_eq!(kubectl::ca_bundle(&cluster).await.unwrap(), bundle);
    let short_names = "--output=jsonpath={.spec.names.shortNames}";
    let mirrors = ["crd", "imagesetmirrors.kuik.enix.io"];
    let patch = r#"--patch={"spec":{"names":{"shortNames":["damaged"]}}}"#;
    cluster.kubectl(["patch", mirrors[0], mirrors[1], "--type=merge", patch]).await.unwrap();
    helm(&cluster, "upgrade", &["--force-conflicts"]).await.unwrap();
    let short_names = cluster.kubectl(["get", mirrors[0], mirrors[1], short_names]).await.unwrap();
    assert_eq!(short_names, r#"["ism"]"#);

    // No switch takes a definition away once it is there, since that would take everybody's objects along.
    helm(&cluster, "upgrade", &["--set", "crds.create=false"]).await.unwrap();
    uninstall(&cluster).await.unwrap();
    is_uninstalled(&cluster).await.unwrap();
}

#[tokio::test]
async fn the_chart_takes_over_an_installation_of_plain_manifests() {
    let cluster = Cluster::builder().start().await.unwrap();
    let installed = manifests(&[]).unwrap();
    kubectl::apply(&cluster, &installed, &[]).await.unwrap();
    let refused = helm(&cluster, "install", &[]).await.unwrap_err().to_string();
    assert!(refused.contains("ownership"), "{refused}");

    let deployment = installed.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let before = kubectl::get(&cluster, deployment).await.unwrap();
    helm(&cluster, "install", &["--take-ownership", "--force-conflicts"]).await.unwrap();
    let after = kubectl::get(&cluster, deployment).await.unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"], "the Deployment was replaced");
    assert_eq!(after["spec"], before["spec"], "Pods were replaced");
    assert_eq!(after["metadata"]["annotations"]["meta.helm.sh/release-name"], NAME);

    uninstall(&cluster).await.unwrap();
    is_uninstalled(&cluster).await.unwrap();
}
