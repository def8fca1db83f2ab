//! Memory of the operator in a cluster full of Pods and Nodes: what is not used must not be kept, nor pile up while
//! listing.
//!
//! With 10,000 Pods and 1,000 Nodes, as a measurement of a release build:
//! `FAIRLEAD_TEST_PODS=10000 cargo test --release -p fairlead --test program memory -- --nocapture`

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Cluster, Part, cluster};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::kubectl;
use crate::replica::{self, Replica, SOON};
use crate::yaml::{documents, fairlead};

const IMAGES: usize = 500;
const MIB: u64 = 1024 * 1024;

const IMAGES_OF_A_NODE: usize = 50;

/// What Pods and Nodes may add to the memory of a process that knows none: some for reading, and little for each that
/// is kept. A Pod made here is 32 KiB of JSON, and a Node 12.
const FOR_READING: u64 = 16 * MIB;
const FOR_EACH_POD: u64 = 3 * 1024;
const FOR_EACH_NODE: u64 = 4 * 1024;

/// A release stays below this with 10,000 Pods and 1,000 Nodes. Other builds are larger by themselves.
const RELEASE_LIMIT: u64 = 60 * MIB;

/// Filling a cluster takes its time.
const FILLED: Duration = Duration::from_mins(2);

#[tokio::test]
async fn pods_and_nodes_are_kept_in_little_memory_also_while_they_are_listed_again() -> Result<()> {
    let pods: usize = match std::env::var("FAIRLEAD_TEST_PODS") {
        Ok(count) => count.parse().context("FAIRLEAD_TEST_PODS is a number of Pods")?,
        Err(_) => 1000,
    };
    let nodes = pods / 10;
    let cluster = Cluster::builder().start().await?;
    let namespace = cluster.namespace("memory").await?;
    // It would collect Pods whose owners do not exist.
    cluster.kill(Part::ControllerManager).await?;
    // Nodes are watched for warming, where its kinds are served.
    kubectl::apply(&cluster, &documents(&fairlead(&["crds"])?)?, &[]).await?;
    kubectl::definitions_are_served(&cluster).await?;

    let empty = replica::start(&cluster.kubeconfig(), &namespace, "empty").await?;
    empty.wait_until_ready(SOON).await?;
    empty.wait_for_metric(&listed("Node"), Some(1.0), SOON).await?;
    let without_any = empty.process.peak_memory()?;
    empty.process.kill().await?;

    fill(&cluster, &namespace, 0..pods).await?;
    add_nodes(&cluster, nodes).await?;
    let wire = cluster.proxy().await?;
    let kubeconfig = cluster.kubeconfig_through(&wire, &cluster.kubeconfig())?;
    let replica = replica::start(&kubeconfig, &namespace, "only").await?;
    replica.wait_until_ready(FILLED).await?;
    replica.wait_for_metric(&listed("Node"), Some(1.0), FILLED).await?;
    let after_list = replica.process.peak_memory()?;
    ensure!(known(&replica, "Pod").await? >= pods && known(&replica, "Node").await? == nodes);
    ensure!(replica.metric("fairlead_images_in_use").await?.unwrap_or_default() >= 500.0);

    // An API server knows the changes since its start only, so a client that missed earlier ones has to list again.
    wire.cut();
    fill(&cluster, &namespace, pods..pods + 2).await?;
    cluster.restart(Part::ApiServer).await?;
    wire.heal();
    for kind in ["Pod", "Node"] {
        replica.wait_for_metric(&listed(kind), Some(2.0), FILLED).await?;
    }
    ensure!(known(&replica, "Pod").await? >= pods + 2, "the new list brought nothing new");
    let after_relist = replica.process.peak_memory()?;

    let added = after_relist.saturating_sub(without_any);
    println!(
        "peak memory: {} KiB without Pods and Nodes; {pods} Pods and {nodes} Nodes: {} KiB after the first list, {} KiB \
         after a second one",
        without_any / 1024,
        after_list / 1024,
        after_relist / 1024,
    );
    let limit = FOR_READING + FOR_EACH_POD * u64::try_from(pods)? + FOR_EACH_NODE * u64::try_from(nodes)?;
    ensure!(added < limit, "{pods} Pods and {nodes} Nodes added {added} bytes, more than {limit}");
    if !cfg!(debug_assertions) && pods <= 10_000 {
        ensure!(after_relist < RELEASE_LIMIT, "{after_relist} bytes in all");
    }
    Ok(())
}

fn listed(kind: &str) -> String {
    format!("fairlead_watch_lists_total{{kind=\"{kind}\"}}")
}

/// How many objects of a kind the replica knows.
async fn known(replica: &Replica, kind: &str) -> Result<usize> {
    let count = replica.metric(&format!("fairlead_watched_objects{{kind=\"{kind}\"}}")).await?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of objects")]
    Ok(count.unwrap_or_default() as usize)
}

/// Nodes that list as many images as a kubelet does, each by tag and by digest.
async fn add_nodes(cluster: &Cluster, count: usize) -> Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client().await?);
    futures::stream::iter(0..count)
        .map(|number| {
            let nodes = &nodes;
            async move {
                let name = format!("worker-{number:04}");
                nodes.create(&PostParams::default(), &cluster::simulated_node(&name)?).await?;
                let images: Vec<_> = (number..number + IMAGES_OF_A_NODE).map(node_image).collect();
                let ready = json!({
                    "type": "Ready", "status": "True", "reason": "KubeletReady",
                    "lastHeartbeatTime": "2026-01-02T00:00:00Z",
                });
                let status = Patch::Merge(json!({"status": {"images": images, "conditions": [ready]}}));
                nodes.patch_status(&name, &PatchParams::default(), &status).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(8)
        .try_collect()
        .await
}

fn node_image(number: usize) -> serde_json::Value {
    let name = format!("registry.example.com/team/workload-{number}");
    json!({"names": [format!("{name}@sha256:{number:064x}"), format!("{name}:1.{number}.0")], "sizeBytes": 52_428_800})
}

/// Pods as workloads have them: environment, probes, volumes, owner, annotations, and a status that says why they wait.
async fn fill(cluster: &Cluster, namespace: &str, numbers: Range<usize>) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, namespace);
    futures::stream::iter(numbers)
        .map(|number| {
            let pods = &pods;
            async move {
                let name = format!("workload-{}-{number:05}", number % IMAGES);
                let pod = serde_json::from_value(pod(&name, number % IMAGES))?;
                pods.create(&PostParams::default(), &pod).await?;
                let status = Patch::Merge(status(number % IMAGES));
                pods.patch_status(&name, &PatchParams::default(), &status).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(8)
        .try_collect()
        .await
}

fn pod(name: &str, workload: usize) -> serde_json::Value {
    let environment: Vec<_> =
        (0..20).map(|number| json!({"name": format!("SETTING_{number}"), "value": "v".repeat(60)})).collect();
    let probe = json!({"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 7});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/name": format!("workload-{workload}"), "pod-template-hash": format!("{workload:08x}"),
            },
            "annotations": {
                "prometheus.io/scrape": "true", "example.com/address": format!("10.0.0.{name}"),
                "example.com/large": "x".repeat(2000),
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("workload-{workload}"), "controller": true,
                "uid": format!("00000000-0000-4000-8000-{workload:012}"),
            }],
        },
        "spec": {
            // No scheduler of this name exists: the Pods stay as they are.
            "schedulerName": "nobody",
            "automountServiceAccountToken": false,
            "initContainers": [{"name": "prepare", "image": "registry.example.com/base/prepare:1.2.3", "env": environment}],
            "containers": [
                {
                    "name": "main", "image": format!("registry.example.com/team/workload-{workload}:1.{workload}.0"),
                    "env": environment, "readinessProbe": probe, "livenessProbe": probe,
                },
                {"name": "proxy", "image": "registry.example.com/mesh/proxy:2.0", "env": environment},
            ],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    })
}

fn status(workload: usize) -> serde_json::Value {
    let container = |name: &str, image: String| {
        json!({
            "name": name, "image": image, "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "m".repeat(200)}},
        })
    };
    json!({"status": {"containerStatuses": [
        container("main", format!("registry.example.com/team/workload-{workload}:1.{workload}.0")),
        container("proxy", "registry.example.com/mesh/proxy:2.0".to_owned()),
    ]}})
}
