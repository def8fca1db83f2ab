//! From the kubelet's first word of a failure to a running container.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_testkit::measure::Bar;
use fairlead_testkit::{Cluster, RegistryConfig};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::stage::{Living, Stage};

const ROUNDS: usize = 5;
const LIMIT: f64 = 5.0;
const PATIENCE: Duration = Duration::from_mins(2);

pub(crate) async fn measure() -> Result<Vec<Bar>> {
    println!("\nFrom ErrImagePull to running on a real node, {ROUNDS} Pods");
    let cluster = Cluster::builder().node(true).start().await?;
    let second = Living::Real(Box::new(cluster.registry(RegistryConfig::new()).await?));
    let stage = Stage::set_up(cluster, second, ROUNDS, "registries:\n  default: {plainHttp: true}\n").await?;
    let namespace = stage.cluster.namespace("healed").await?;
    let pods: Api<Pod> = Api::namespaced(stage.cluster.client().await?, &namespace);
    // All are admitted before their registry dies, and put onto the node afterwards, one after another.
    let mut names = Vec::new();
    for number in 0..ROUNDS {
        let pod = json!({
            "metadata": {"name": format!("pod-{number}")},
            "spec": {
                "schedulingGates": [{"name": "example.com/wait"}],
                "containers": [{"name": "app", "image": Stage::image(&stage.first, number)}],
            },
        });
        let created = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        names.push(created.name_any());
    }
    stage.first.kill().await?;
    let mut times = Vec::new();
    for name in &names {
        let time = tokio::time::timeout(PATIENCE, heal(&pods, name)).await;
        let time =
            time.with_context(|| format!("{name} did not heal:\n{}", stage.operator.process.log_tail()))??;
        println!("  {name}: {time:.2} s");
        times.push(time);
    }
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied().context("no Pod was healed")?;
    Ok(vec![Bar::at_most("real node: median seconds from ErrImagePull to running", median, LIMIT)])
}

/// Lets a Pod onto the node, and returns the seconds from its first failure to its running.
async fn heal(pods: &Api<Pod>, name: &str) -> Result<f64> {
    let patch = json!({"spec": {"schedulingGates": null}});
    pods.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut changes = Box::pin(watcher(pods.clone(), config).applied_objects());
    let mut failed = None;
    while let Some(pod) = changes.try_next().await? {
        let status = pod.status.unwrap_or_default();
        let waits = status.container_statuses.iter().flatten().any(|container| {
            let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
            let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
            matches!(reason, Some("ErrImagePull" | "ImagePullBackOff"))
        });
        if waits && failed.is_none() {
            failed = Some(Instant::now());
        }
        if status.phase.as_deref() == Some("Running") {
            let failed = failed.context("the Pod never failed")?;
            return Ok(failed.elapsed().as_secs_f64());
        }
    }
    ensure!(false, "the watch of {name} ended");
    Ok(0.0)
}
