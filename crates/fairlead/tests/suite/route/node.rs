//! The whole way to a running container, on a real node.

use anyhow::{Result, ensure};
use fairlead_testkit::{Cluster, RegistryConfig, eventually};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};

use super::rig::{Rig, SOON, image, pod, replicas};

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn a_pod_runs_although_its_registry_is_dead() -> Result<()> {
    let rig = Rig::install(Cluster::builder().node(true).start().await?).await?;
    let namespace = rig.namespace().await?;
    let first = rig.registry(RegistryConfig::new(), "node").await?;
    let second = rig.registry(RegistryConfig::new(), "node").await?;
    rig.apply(&replicas(&first, &second)).await?;
    let (asked, other) = (format!("{}/team/app:1", first.host()), format!("{}/team/app:1", second.host()));
    first.kill().await?;
    let created = rig.create_until(&namespace, &pod(&asked), |pod| image(pod) == other).await?;
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, &namespace);
    eventually(SOON * 2, || async {
        let pod = pods.get(&created.name_any()).await?;
        let status = pod.status.unwrap_or_default();
        let running = status.container_statuses.iter().flatten().find(|status| status.name == "app");
        ensure!(status.phase.as_deref() == Some("Running"), "{status:?}");
        ensure!(running.is_some_and(|status| status.image_id.contains(&second.host())), "{running:?}");
        Ok(())
    })
    .await
}
