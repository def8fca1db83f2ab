//! The inventory of a full cluster: the memory that it takes of the replica that leads, beside one that only watches;
//! the series that it shows; and how long a person waits for `fairlead inventory`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use fairlead_testkit::images::Content;
use fairlead_testkit::measure::{Bar, Bars, median};
use fairlead_testkit::{Cluster, Operator, Part, eventually, installation};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::process::Command;

const KIB_OF_MIB: f64 = 1024.0;
const FILLED: Duration = Duration::from_mins(3);
const RUNS: usize = 5;

const MOST_MIB: f64 = 10.0;
const MOST_SECONDS: f64 = 2.0;
const MOST_SERIES: f64 = 5000.0;

#[derive(Args)]
pub(crate) struct Inventory {
    /// Pods in the cluster
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// Workloads that the Pods are replicas of: as many as Pods are what takes most
    #[arg(long, default_value_t = 10_000)]
    workloads: usize,
}

impl Inventory {
    /// Whether every bar is held.
    pub(crate) async fn run(self) -> Result<bool> {
        let program = installation::program()?;
        let cluster = Cluster::builder().start().await?;
        let namespace = cluster.namespace("inventory").await?;
        cluster.kill(Part::ControllerManager).await?;
        self.fill(&cluster, &namespace).await?;
        let start = async |identity: &str| -> Result<Operator> {
            let operator = Operator::of(&program).namespace(&namespace).identity(identity);
            let operator = operator.start(&cluster.kubeconfig()).await?;
            operator.wait_until_ready(FILLED).await?;
            Ok(operator)
        };
        let leader = start("leads").await?;
        leader.wait_to_lead(FILLED).await?;
        let other = start("watches").await?;
        let images = "fairlead_inventory_images{state=\"matching\"}";
        eventually(FILLED, || async {
            let counted = leader.metric(images).await?.unwrap_or_default();
            let wanted = number(self.pods as u64);
            ensure!(counted >= wanted, "{counted} images of {wanted} Pods are counted");
            Ok(())
        })
        .await?;
        let page = leader.page().await?;
        let series = page.lines().filter(|line| line.starts_with("fairlead_image_info{")).count();
        let [leading, watching] = [&leader, &other].map(|replica| replica.process.peak_memory());
        let added = (number(leading? / 1024) - number(watching? / 1024)) / KIB_OF_MIB;

        let mut times = Vec::with_capacity(RUNS);
        for _ in 0..RUNS {
            let begun = Instant::now();
            let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig().display());
            let output =
                Command::new(&program).args(["inventory", "-o", "json", &kubeconfig]).output().await?;
            times.push(begun.elapsed().as_secs_f64());
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let report: Value = serde_json::from_slice(&output.stdout)?;
            let shown = report.pointer("/images").and_then(Value::as_array).context("no images")?.len();
            ensure!(shown >= self.pods, "{shown} images of {} Pods are shown", self.pods);
        }
        let mut bars = Bars::default();
        let what = |text: &str| format!("{} Pods of {} workloads: {text}", self.pods, self.workloads);
        let held = vec![
            Bar::at_most(what("MiB that the leader takes more than another replica"), added, MOST_MIB),
            Bar::at_most(what("seconds for fairlead inventory, median"), median(times), MOST_SECONDS),
            Bar::at_most(what("series of fairlead_image_info"), number(series as u64), MOST_SERIES),
        ];
        print!("{}", bars.add(held));
        print!("\nInventory: {bars}");
        Ok(bars.all_held())
    }

    async fn fill(&self, cluster: &Cluster, namespace: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(cluster.client().await?, namespace);
        let workloads = self.workloads.max(1);
        stream::iter(0..self.pods)
            .map(|number| {
                let pods = &pods;
                async move {
                    let (pod, status) = replica(number, workloads);
                    let name = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
                    let name = name.metadata.name.context("a name")?;
                    pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(8)
            .try_collect()
            .await
    }
}

/// Far below where a number loses precision.
fn number(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

/// A running replica with a record of its admission, a sidecar, and one in ten with an image volume.
fn replica(number: usize, workloads: usize) -> (Value, Value) {
    let workload = number % workloads;
    let sha256 = |text: String| Content::new("text/plain", text.into_bytes()).digest();
    let digest = |of: &str| sha256(format!("{of}{workload}"));
    let image = format!("registry.example.com/team/workload-{workload}:1.{workload}.0");
    let model = format!("registry.example.com/models/{workload}:1");
    let mut images =
        json!({"main": {"asked": image, "used": image, "by": "original", "digest": digest("main")}});
    let (mut volumes, mut mounts) = (json!([]), json!([]));
    if number.is_multiple_of(10) {
        volumes = json!([{"name": "model", "image": {"reference": model}}]);
        mounts = json!([{"name": "model", "mountPath": "/models"}]);
        if let Some(images) = images.as_object_mut() {
            let route = json!({"asked": model, "used": model, "by": "original", "digest": digest("model")});
            images.insert("volume:model".to_owned(), route);
        }
    }
    let pod = json!({
        "metadata": {
            "name": format!("workload-{workload}-{number:05}"),
            "labels": {"pod-template-hash": format!("{workload:08x}")},
            "annotations": {"fairlead.dev/routes": json!({"v": 1, "images": images}).to_string()},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("workload-{workload}-{workload:08x}"),
                "controller": true, "uid": format!("00000000-0000-4000-8000-{workload:012}"),
            }],
        },
        "spec": {
            "schedulerName": "nobody", "automountServiceAccountToken": false, "volumes": volumes,
            "containers": [
                {"name": "main", "image": image, "volumeMounts": mounts},
                {"name": "proxy", "image": "registry.example.com/mesh/proxy:2.0"},
            ],
        },
    });
    let status = |name: &str, image: &str, image_id: String| {
        json!({
            "name": name, "image": image, "imageID": image_id, "containerID": format!("containerd://{number}"),
            "ready": true, "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        })
    };
    let main = format!("registry.example.com/team/workload-{workload}@{}", digest("main"));
    let proxy = format!("registry.example.com/mesh/proxy@{}", sha256("proxy".to_owned()));
    let statuses =
        json!([status("main", &image, main), status("proxy", "registry.example.com/mesh/proxy:2.0", proxy)]);
    (pod, json!({"status": {"phase": "Running", "containerStatuses": statuses}}))
}
