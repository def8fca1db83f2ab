//! Our definitions in a cluster of a test.

use anyhow::{Context, Result};
use fairlead_api::crds;
use fairlead_testkit::definitions::install;
use fairlead_testkit::{Cluster, ClusterBuilder, install_crypto};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;

/// A cluster of a test's own that has all of them.
pub async fn cluster_with_definitions(cluster: ClusterBuilder) -> Result<(Cluster, Client)> {
    install_crypto();
    let cluster = cluster.start().await?;
    let client = cluster.client().await?;
    for crd in crds::all() {
        install(&client, &crd).await?;
    }
    Ok((cluster, client))
}

pub fn definition(kind: &str) -> Result<CustomResourceDefinition> {
    crds::all().into_iter().find(|crd| crd.spec.names.kind == kind).context("a kind of ours")
}
