//! Installing from plain manifests on the real API server with its rights enforced: fresh, twice, and away again.

use anyhow::{Context, Result, ensure};
use fairlead_operator::platform::install::{DEFAULT_NAMESPACE, NAME};
use fairlead_testkit::Cluster;
use fairlead_testkit::operator::webhook_path;
use fairlead_testkit::pki::Authority;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::Value;

use crate::installed::{Operator, pod};
use crate::webhook::path_survives;
use crate::yaml::{assert_generated, documents, fairlead};
use crate::{kubectl, rights};

/// What `fairlead manifests ARGS` prints, as objects.
pub fn manifests(args: &[&str]) -> Result<Vec<Value>> {
    let mut all = vec!["manifests"];
    all.extend(args);
    documents(&fairlead(&all)?)
}

/// What the documentation tells to delete.
pub fn to_uninstall() -> Result<Vec<Value>> {
    manifests(&["--without-crds", "--without-namespace"])
}

#[test]
fn generated_manifests_are_up_to_date() {
    assert_generated("deploy/manifests.yaml", &fairlead(&["manifests", "--without-crds"]).unwrap());
}

#[test]
fn manifests_refuse_what_could_not_work_and_say_why() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "rooting: {}\n").unwrap();
    let config = format!("--config={}", file.path().display());
    for (argument, said) in [
        ("--namespace=Fairlead", "63 lower-case letters"),
        ("--replicas=0", "0 is not in"),
        ("--image=", "name the image"),
        (config.as_str(), "rooting"),
    ] {
        let error = fairlead(&["manifests", argument]).expect_err(argument).to_string();
        assert!(error.contains(said), "{argument}: {error}");
    }
}

#[tokio::test]
async fn plain_manifests_install_an_operator_with_exactly_the_rights_it_uses() {
    let cluster = Cluster::builder().audit(true).start().await.unwrap();
    let installed = manifests(&[]).unwrap();
    kubectl::apply(&cluster, &installed, &[]).await.unwrap();
    kubectl::definitions_are_served(&cluster).await.unwrap();
    let before = kubectl::versions(&cluster, &installed).await.unwrap();
    kubectl::apply(&cluster, &installed, &[]).await.unwrap();
    assert_eq!(
        kubectl::versions(&cluster, &installed).await.unwrap(),
        before,
        "applying again changed something"
    );

    let operator = Operator::start(&cluster, DEFAULT_NAMESPACE).await.unwrap();
    operator.works(&cluster).await.unwrap();
    operator.fills_in_the_path_of_its_service(&cluster).await.unwrap();
    operator.rotates_its_certificate(&cluster).await.unwrap();
    operator.leaves_alone_what_it_should(&cluster).await.unwrap();
    operator.stop(&cluster).await.unwrap();
    rights::check(&cluster, DEFAULT_NAMESPACE).await.unwrap();

    // Upgrading is applying over what the operator has written meanwhile, which stays.
    let bundle = kubectl::ca_bundle(&cluster).await.unwrap();
    assert!(!bundle.is_empty());
    let path = webhook_path(&cluster).await.unwrap().unwrap();
    let upgraded = async || kubectl::apply(&cluster, &manifests(&["--replicas=3"])?, &[]).await;
    path_survives(&cluster, &path, upgraded).await.unwrap();
    assert_eq!(kubectl::replicas(&cluster).await.unwrap(), "3");
    assert_eq!(kubectl::ca_bundle(&cluster).await.unwrap(), bundle);

    kubectl::delete(&cluster, &to_uninstall().unwrap()).await.unwrap();
    is_uninstalled(&cluster).await.unwrap();
}

/// With cert-manager the operator writes its path and no certificate, and has no right to. Here the test does what
/// cert-manager would.
#[tokio::test]
async fn with_cert_manager_the_operator_writes_its_path_alone() {
    let cluster = Cluster::builder().audit(true).start().await.unwrap();
    let mut installed = manifests(&["--certificates=cert-manager"]).unwrap();
    installed.retain(|object| object["apiVersion"] != "cert-manager.io/v1");
    kubectl::apply(&cluster, &installed, &[]).await.unwrap();
    kubectl::definitions_are_served(&cluster).await.unwrap();
    let authority = Authority::new("cert-manager").unwrap();
    let issued = authority.issue(&["127.0.0.1"]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("tls.crt"), issued.certificate).unwrap();
    std::fs::write(directory.path().join("tls.key"), issued.key).unwrap();
    trust(&cluster, authority.certificate()).await.unwrap();

    let operator =
        Operator::start_with_certificate_in(&cluster, DEFAULT_NAMESPACE, directory.path()).await.unwrap();
    operator.serves(&cluster).await.unwrap();
    operator.replaces_a_lost_token(&cluster).await.unwrap();
    operator.stop(&cluster).await.unwrap();
    rights::check(&cluster, DEFAULT_NAMESPACE).await.unwrap();
    let secrets =
        cluster.kubectl(["get", "secrets", "--namespace", DEFAULT_NAMESPACE, "--output=name"]).await.unwrap();
    assert_eq!(secrets.trim(), "secret/fairlead-webhook-path");
    let path = webhook_path(&cluster).await.unwrap().unwrap();
    let again = async || kubectl::apply(&cluster, &installed, &[]).await;
    path_survives(&cluster, &path, again).await.unwrap();
}

async fn trust(cluster: &Cluster, authority: &str) -> Result<()> {
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(cluster.client().await?);
    let mut configuration = webhooks.get(NAME).await?;
    for webhook in configuration.webhooks.iter_mut().flatten() {
        webhook.client_config.ca_bundle = Some(ByteString(authority.as_bytes().to_vec()));
    }
    webhooks.replace(NAME, &PostParams::default(), &configuration).await?;
    Ok(())
}

/// Nothing of the operator is left but the definitions and the namespace; Pods are created without a webhook.
pub async fn is_uninstalled(cluster: &Cluster) -> Result<()> {
    let kinds = "mutatingwebhookconfiguration,clusterrole,clusterrolebinding,validatingadmissionpolicy,\
                 validatingadmissionpolicybinding";
    let ours = "--selector=app.kubernetes.io/part-of=fairlead";
    let left = cluster.kubectl(["get", kinds, ours, "--output=name"]).await?;
    ensure!(left.is_empty(), "left in the cluster: {left}");
    let kinds =
        "deployment,service,serviceaccount,role,rolebinding,networkpolicy,poddisruptionbudget,configmap";
    let selector = "--selector=app.kubernetes.io/part-of=fairlead";
    let left =
        cluster.kubectl(["get", kinds, "--namespace", DEFAULT_NAMESPACE, selector, "--output=name"]).await?;
    ensure!(left.is_empty(), "left in the namespace: {left}");
    let definitions = cluster.kubectl(["get", "crd", selector, "--output=name"]).await?;
    ensure!(
        definitions.lines().count() == fairlead_api::crds::all().len(),
        "definitions left: {definitions}"
    );

    let namespace = cluster.namespace("afterwards").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, &namespace);
    pods.create(&PostParams::default(), &pod("free")).await.context("a Pod was refused")?;
    Ok(())
}
