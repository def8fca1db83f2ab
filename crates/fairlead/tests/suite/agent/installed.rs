//! Agents as users run them: Pods of the `DaemonSet` on a real node, upgraded, and removed again.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Cluster, Registry, RegistryConfig, eventually, installation};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::route::rig::push;
use crate::yaml::{documents, repository};
use crate::{image, kubectl};

const SOON: Duration = Duration::from_mins(3);
const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlead");
const NAMESPACE: &str = "fairlead-nodes";

/// Installs everything, with the directories of the bench for those of the node.
async fn install(cluster: &Cluster, own: &Registry, insecure: &[&Registry]) -> Result<()> {
    let image = tokio::task::spawn_blocking(image::image).await??;
    let directory = cluster.directory();
    let etc = directory.join("agent-etc");
    for path in ["containerd/certs.d", "containers/registries.conf.d"] {
        std::fs::create_dir_all(etc.join(path))?;
    }
    let containerd = "version = 3\n[plugins.'io.containerd.cri.v1.images'.registry]\n\
                      config_path = '/etc/containerd/certs.d'\n";
    std::fs::write(etc.join("containerd/config.toml"), containerd)?;
    let config = directory.join("fairlead-config.yaml");
    let hosts: Vec<String> = insecure.iter().map(|registry| registry.host().clone()).collect();
    let text = installation::plain_http(insecure.iter().copied())?;
    std::fs::write(&config, format!("{text}nodes:\n  insecureRegistries: {}\n", json!(hosts)))?;
    let config = config.display().to_string();
    let manifests = installation::manifests(Path::new(PROGRAM), &["--agents", "--config", &config]).await?;
    let reference = manifests.lines().find_map(|line| line.trim().strip_prefix("image: "));
    let (host, name) = reference.and_then(|text| text.split_once('/')).context("no image")?;
    let (repository, tag) = name.rsplit_once(':').context("no tag")?;
    own.endpoint().push(repository, tag, &image).await?;
    cluster.pull_from(host, own.endpoint())?;
    let moved = manifests
        .replace("path: /etc/containerd/certs.d\n", &format!("path: {}/certs.d\n", directory.display()))
        .replace("path: /etc/docker", &format!("path: {}/docker", etc.display()))
        .replace("path: /etc/c", &format!("path: {}/c", etc.display()));
    ensure!(!moved.contains("path: /etc/"), "a directory of this machine is left");
    let file = directory.join("fairlead.yaml");
    std::fs::write(&file, moved)?;
    cluster.kubectl(["apply", "--server-side", "--filename", &file.display().to_string()]).await?;
    rolled_out(cluster, "deployment/fairlead", "fairlead-system").await?;
    rolled_out(cluster, "daemonset/fairlead-agent", NAMESPACE).await
}

async fn rolled_out(cluster: &Cluster, what: &str, namespace: &str) -> Result<()> {
    let status = ["rollout", "status", what, "--namespace", namespace, "--timeout=180s"];
    if let Err(error) = cluster.kubectl(status).await {
        let events = cluster.kubectl(["events", "--namespace", namespace]).await.unwrap_or_default();
        let logs =
            ["logs", "--namespace", namespace, "--selector=app.kubernetes.io/name=fairlead", "--prefix"];
        let logs = cluster.kubectl(logs).await.unwrap_or_default();
        return Err(error.context(format!("{events}\n{logs}")));
    }
    Ok(())
}

async fn runs(cluster: &Cluster, image: &str) -> Result<()> {
    let namespace = cluster.namespace("pull").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, &namespace);
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "pull"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "app", "image": image, "imagePullPolicy": "Always"}],
        },
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    eventually(SOON, || async {
        let status = pods.get("pull").await?.status.unwrap_or_default();
        ensure!(status.phase.as_deref() == Some("Running"), "{image}: {:?}", status.container_statuses);
        Ok(())
    })
    .await
}

/// Has helm run the chart's hook before it uninstalls a release: with the account, the rights and the Job of the chart.
/// The release holds nothing else, since the directories of the chart's agents are those of this machine.
async fn uninstall_by_helm(cluster: &Cluster) -> Result<()> {
    let chart = repository().join("charts/fairlead").display().to_string();
    let shown =
        ["--namespace=fairlead-system", "--set=agent.enabled=true", "--show-only=templates/agent.yaml"];
    let rendered = cluster.helm(["template", "fairlead", &chart].iter().chain(&shown)).await?;
    let mut objects = documents(&rendered)?;
    objects.retain(|object| object["metadata"]["name"] == "fairlead-agent-removal");
    ensure!(objects.iter().any(|object| object["kind"] == "Job"), "there is no hook: {rendered}");
    let own = cluster.directory().join("removal");
    std::fs::create_dir_all(own.join("templates"))?;
    std::fs::write(own.join("Chart.yaml"), "apiVersion: v2\nname: removal\nversion: 0.0.1\n")?;
    let objects: Vec<String> = objects.iter().map(ToString::to_string).collect();
    std::fs::write(own.join("templates/removal.yaml"), objects.join("\n---\n"))?;
    cluster.helm(["install", "removal", &own.display().to_string()]).await?;
    let removed = cluster.helm(["uninstall", "removal", "--timeout=4m"]).await;
    let pods = cluster.kubectl(["get", "pods,events", "--namespace", NAMESPACE]).await.unwrap_or_default();
    removed.with_context(|| pods).map(drop)
}

#[tokio::test]
#[ignore = "needs root, runc, CNI plugins, iptables and musl-tools: run as root with --include-ignored"]
async fn agents_follow_policies_are_replaced_and_take_their_files_along() -> Result<()> {
    let cluster = Cluster::builder().node(true).start().await?;
    let own = cluster.registry(RegistryConfig::new()).await?;
    let (source, mirror) =
        (cluster.registry(RegistryConfig::new()).await?, cluster.registry(RegistryConfig::new()).await?);
    for registry in [&source, &mirror] {
        // Files of the bench stand for those of an administrator, and would be left alone.
        std::fs::remove_dir_all(cluster.directory().join("certs.d").join(registry.host()))?;
    }
    push(&mirror, "copies/app", "agents").await?;
    install(&cluster, &own, &[&source, &mirror]).await?;

    let from = format!("{}/team", source.host());
    let policy = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "ImageTagMirrorSet", "metadata": {"name": "team"},
        "spec": {"imageTagMirrors": [{
            "source": from, "mirrors": [format!("{}/copies", mirror.host())],
            "mirrorSourcePolicy": "NeverContactSource",
        }]},
    });
    kubectl::apply(&cluster, std::slice::from_ref(&policy), &[]).await?;
    cluster.kubectl(["wait", "--for=condition=Applied", "imagetagmirrorset/team", "--timeout=60s"]).await?;
    runs(&cluster, &format!("{from}/app:1")).await?;

    // The new agent is ready before the old one ends.
    cluster.kubectl(["rollout", "restart", "daemonset/fairlead-agent", "--namespace", NAMESPACE]).await?;
    rolled_out(&cluster, "daemonset/fairlead-agent", NAMESPACE).await?;
    runs(&cluster, &format!("{from}/app:1")).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, NAMESPACE);
    for pod in pods.list(&ListParams::default()).await? {
        let statuses = pod.status.unwrap_or_default().container_statuses.unwrap_or_default();
        ensure!(statuses.iter().all(|status| status.restart_count == 0), "{statuses:?}");
    }

    let hosts = source.host().replace(':', "_") + "_";
    let hosts = cluster.directory().join("certs.d").join(hosts).join("hosts.toml");
    ensure!(hosts.exists(), "{} is not there", hosts.display());
    uninstall_by_helm(&cluster).await?;
    ensure!(!hosts.exists(), "{} is still there", hosts.display());
    Ok(())
}
