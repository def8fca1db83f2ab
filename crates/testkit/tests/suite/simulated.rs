//! Simulated nodes run Pods that the real scheduler placed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{eventually, load, shared};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

const PODS: usize = 200;

#[tokio::test]
async fn pods_run_on_simulated_nodes() -> Result<()> {
    let cluster = shared().await;
    cluster.start_kwok(None).await?;
    cluster.simulated_nodes("simulated", 5).await?;
    let namespace = cluster.namespace("load").await?;
    let template: Pod = serde_json::from_value(json!({
        "metadata": {"generateName": "load-"},
        "spec": {"containers": [{"name": "main", "image": "registry.example.com/a:1"}]},
    }))?;
    let started = Instant::now();
    load::create_pods(cluster.client().await?, &namespace, PODS, 8, |_| template.clone()).await?;
    println!("{PODS} Pods created in {:?}", started.elapsed());
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, &namespace);
    eventually(Duration::from_secs(30), || async {
        let running = pods.list(&ListParams::default().fields("status.phase=Running")).await?.items;
        ensure!(running.len() == PODS, "{} of {PODS} Pods run", running.len());
        let node = running.first().and_then(|pod| pod.spec.as_ref()?.node_name.clone()).context("no node")?;
        ensure!(node.starts_with("simulated-"), "a Pod runs on {node}");
        Ok(())
    })
    .await
}
