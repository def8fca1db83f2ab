//! Fairlead as users run it, on a real node: the plain manifests as they are, the image of the Containerfile, Pods on
//! the Pod network behind the Service, and the API server that reaches them through it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_operator::platform::install::{DEFAULT_NAMESPACE, LEASE, NAME};
use fairlead_testkit::{Cluster, Part, RegistryConfig, eventually, installation};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};

use crate::image;
use crate::route::rig::{image as image_of, pod, push, replicas};

const DEADLINE: Duration = Duration::from_mins(2);
const REPLICAS: usize = 2;

#[tokio::test]
#[ignore = "needs root, runc, CNI plugins, iptables and musl-tools: run as root with --include-ignored"]
async fn the_deployment_is_asked_through_its_service_and_a_pod_runs_although_its_registry_is_dead() {
    let image = tokio::task::spawn_blocking(image::image).await.unwrap().unwrap();
    let cluster = Cluster::builder().node(true).start().await.unwrap();
    let mut registries = Vec::new();
    for _ in 0..3 {
        registries.push(cluster.registry(RegistryConfig::new()).await.unwrap());
    }
    let [own, first, second] = &registries[..] else { panic!("three registries") };
    let config = installation::plain_http(&registries).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_fairlead"));
    installation::install(&cluster, program, (&image, own), &config).await.unwrap();

    let names = pods_of_the_deployment_are_ready(&cluster, &image.digest()).await.unwrap();
    one_leads(&cluster, &names).await.unwrap();
    webhook_names_the_service(&cluster).await.unwrap();

    for registry in [first, second] {
        push(registry, "team/app", "deployment").await.unwrap();
    }
    let policy = replicas(first, second);
    crate::kubectl::apply(&cluster, std::slice::from_ref(&policy), &[]).await.unwrap();
    let name = format!("clusterreplicatedimagesets/{}", policy["metadata"]["name"].as_str().unwrap());
    cluster.kubectl(["wait", "--for=condition=Ready", &name, "--timeout=60s"]).await.unwrap();
    first.kill().await.unwrap();
    let (asked, other) = (format!("{}/team/app:1", first.host()), format!("{}/team/app:1", second.host()));
    a_pod_runs(&cluster, &asked, &other).await.unwrap();
    assert!(cluster.is_running(Part::Kubelet).unwrap());
}

/// As many as the manifests say, of this image, each with an address of the Pod network. Returns their names.
async fn pods_of_the_deployment_are_ready(cluster: &Cluster, digest: &str) -> Result<Vec<String>> {
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, DEFAULT_NAMESPACE);
    let pods = pods.list(&ListParams::default()).await?.items;
    ensure!(pods.len() == REPLICAS, "there are {} Pods", pods.len());
    for pod in &pods {
        let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default();
        let status = pod.status.as_ref().context("no status")?;
        ensure!(!host_network && status.pod_ip != status.host_ip, "{status:?} is not on the Pod network");
        let container = status.container_statuses.iter().flatten().next().context("no container")?;
        ensure!(container.ready && container.restart_count == 0, "{container:?}");
        ensure!(container.image_id.ends_with(digest), "{} runs, not {digest}", container.image_id);
    }
    Ok(pods.iter().map(ResourceExt::name_any).collect())
}

async fn one_leads(cluster: &Cluster, pods: &[String]) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(cluster.client().await?, DEFAULT_NAMESPACE);
    eventually(DEADLINE, || async {
        let holder = leases.get(LEASE).await?.spec.and_then(|spec| spec.holder_identity);
        ensure!(
            holder.as_ref().is_some_and(|holder| pods.contains(holder)),
            "the Lease is held by {holder:?}"
        );
        Ok(())
    })
    .await
}

async fn webhook_names_the_service(cluster: &Cluster) -> Result<()> {
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(cluster.client().await?);
    let webhook = webhooks.get(NAME).await?.webhooks.and_then(|all| all.into_iter().next());
    let config = webhook.context("no webhook")?.client_config;
    ensure!(config.url.is_none() && config.service.is_some(), "{config:?}");
    Ok(())
}

/// Creates Pods until one is routed, and waits until that one runs.
async fn a_pod_runs(cluster: &Cluster, asked: &str, used: &str) -> Result<()> {
    let namespace = cluster.namespace("routed").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, &namespace);
    let created = eventually(DEADLINE, || async {
        let created = pods.create(&PostParams::default(), &serde_json::from_value(pod(asked))?).await?;
        ensure!(image_of(&created) == used, "{}: {:?}", image_of(&created), created.annotations());
        Ok(created)
    })
    .await?;
    eventually(DEADLINE, || async {
        let status = pods.get(&created.name_any()).await?.status.unwrap_or_default();
        let container = status.container_statuses.iter().flatten().next();
        ensure!(status.phase.as_deref() == Some("Running"), "{status:?}");
        ensure!(container.is_some_and(|status| used.starts_with(status.image.as_str())), "{container:?}");
        Ok(())
    })
    .await
}
