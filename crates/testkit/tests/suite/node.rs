//! A real node runs Pods from a local registry, and goes on running them when its daemons are killed.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::images::{self, ImageBuilder};
use fairlead_testkit::{Cluster, Part, Registry, RegistryConfig, eventually};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

const DEADLINE: Duration = Duration::from_mins(1);

async fn in_phase(pods: &Api<Pod>, name: &str, wanted: &str) -> Result<ContainerStatus> {
    eventually(DEADLINE, || async {
        let status = pods.get(name).await?.status.context("no status")?;
        ensure!(status.phase.as_deref() == Some(wanted), "{name}: {status:?}");
        status.container_statuses.and_then(|all| all.into_iter().next()).context("no container status")
    })
    .await
}

/// Its image is pushed only after the first pull failed, and it runs within the limits. Nothing of that ends the
/// kubelet.
async fn a_pod_with_limits_survives_a_failed_pull(
    cluster: &Cluster,
    registry: &Registry,
    pods: &Api<Pod>,
) -> Result<()> {
    let resources = json!({"limits": {"cpu": "100m", "memory": "64Mi"}, "requests": {"cpu": "50m"}});
    let image = format!("{}/late:1", registry.host());
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "late"},
        "spec": {"containers": [{"name": "main", "image": image, "resources": resources}]},
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    eventually(DEADLINE, || async {
        let status = pods.get("late").await?.status.context("no status")?;
        let waiting =
            status.container_statuses.iter().flatten().find_map(|it| it.state.as_ref()?.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.as_deref()).unwrap_or_default();
        ensure!(["ErrImagePull", "ImagePullBackOff"].contains(&reason), "{status:?}");
        Ok(())
    })
    .await?;
    let late = ImageBuilder::pause()?.label("for", "a late push").build()?;
    registry.endpoint().push("late", "1", &late).await?;
    in_phase(pods, "late", "Running").await?;
    ensure!(cluster.is_running(Part::Kubelet)?, "the kubelet died:\n{}", cluster.logs(Part::Kubelet)?);
    cluster.wait_node_ready().await
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn the_kubelet_runs_pods_from_a_local_registry() -> Result<()> {
    let cluster = Cluster::builder().node(true).start().await?;
    let registry = cluster.registry(RegistryConfig::new()).await?;
    registry.endpoint().push("succeed", "1", &images::succeed()?).await?;
    let run = ImageBuilder::pause()?.label("for", "this test").build()?;
    let platforms = vec![(images::native_architecture(), run), ("s390x", images::empty()?)];
    let digest = registry.endpoint().push("run", "1", &images::index(platforms)?).await?;
    let namespace = cluster.namespace("node").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, &namespace);
    for image in ["run", "succeed"] {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": image},
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": format!("{}/{image}:1", registry.host())}],
            },
        }))?;
        pods.create(&PostParams::default(), &pod).await?;
    }
    in_phase(&pods, "succeed", "Succeeded").await?;
    let before = in_phase(&pods, "run", "Running").await?;
    assert!(before.image_id.ends_with(&digest), "{} is not {digest}", before.image_id);
    cluster.kubectl(["logs", "--namespace", &namespace, "run"]).await?;

    a_pod_with_limits_survives_a_failed_pull(&cluster, &registry, &pods).await?;

    cluster.restart(Part::Containerd).await?;
    cluster.restart(Part::Kubelet).await?;
    cluster.wait_node_ready().await?;
    let after = in_phase(&pods, "run", "Running").await?;
    assert_eq!((after.restart_count, after.container_id), (0, before.container_id));
    Ok(())
}
