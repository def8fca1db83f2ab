//! One real node: containerd, runc and the kubelet, with a registry that holds the sandbox image. Needs root.
//!
//! The parts live in PID and mount namespaces of their own, so containers, their shims and mounts go when the supervisor goes.

mod containerd;
mod kubelet;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::health::Health;
use super::{Cluster, Own, Part, READY_DEADLINE};
use crate::assets::{Assets, Group};
use crate::names::random;
use crate::poll::eventually;
use crate::process::Program;
use crate::registry::{Registry, RegistryConfig};
use crate::{images, ports};

/// Name of the node.
pub(super) const NAME: &str = "node";
/// The kubelet's user, by whose name the API server knows which node's objects it may touch.
pub(super) const USER: &str = "system:node:node";
/// Debian's directory of network plugins.
const NETWORK_PLUGINS: &str = "/usr/lib/cni";
const NODE_DEADLINE: Duration = Duration::from_mins(1);
/// On every new node until a cloud provider has described it.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
const SANDBOX: (&str, &str) = ("fairlead/pause", "1");

/// Why this process cannot run a node, if it cannot.
pub fn missing() -> Option<String> {
    let uid_line = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = uid_line.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1));
    if effective != Some("0") {
        return Some("a node needs root".to_owned());
    }
    let runc =
        std::env::split_paths(&containerd::search_path()).any(|directory| directory.join("runc").exists());
    let plugins = Path::new(NETWORK_PLUGINS).join("ptp").exists();
    let mut absent = Vec::new();
    if !runc {
        absent.push("runc");
    }
    if !plugins {
        absent.push("containernetworking-plugins");
    }
    (!absent.is_empty())
        .then(|| format!("a node needs {}: run cluster/prerequisites.sh as root", absent.join(" and ")))
}

/// What containerd and the kubelet agree on.
struct Layout<'a> {
    directory: &'a Path,
    assets: Assets,
    sandbox: String,
    /// Third and second byte of the Pods' network: clusters side by side must not share one.
    subnet: (u8, u8),
    kubelet_port: u16,
    health_port: u16,
}

impl Layout<'_> {
    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn socket(&self) -> PathBuf {
        self.file("containerd.sock")
    }
}

/// Where containerd keeps a directory for each container that runs.
pub(crate) fn containers_of(directory: &Path) -> PathBuf {
    directory.join(containerd::STATE).join("io.containerd.runtime.v2.task/k8s.io")
}

pub(super) async fn start(
    own: &Own,
    directory: &Path,
    kubeconfig: &Path,
    flags: Vec<String>,
) -> Result<Registry> {
    let sandboxes =
        Registry::start_under(own.supervisor(), RegistryConfig::new(), "sandbox-registry").await?;
    let (repository, tag) = SANDBOX;
    let pause = tokio::task::spawn_blocking(images::pause).await??;
    sandboxes.endpoint().push(repository, tag, &pause).await?;
    let [second, third, ..] = random().to_le_bytes();
    let layout = Layout {
        directory,
        assets: Assets::ensure(&[Group::ControlPlane, Group::Containerd]).await?,
        sandbox: format!("{}/{repository}:{tag}", sandboxes.host()),
        subnet: (second | 0x80, third),
        kubelet_port: ports::free()?,
        health_port: ports::free()?,
    };
    let containerd =
        own.start(Part::Containerd, containerd::prepare(&layout)?, Health::Socket(layout.socket())).await?;
    containerd.wait_ready(Part::Containerd, READY_DEADLINE).await?;
    let program: Program = kubelet::prepare(&layout, kubeconfig)?;
    let health = Health::Http {
        url: format!("http://127.0.0.1:{}/healthz", layout.health_port),
        authority: own.authority.clone(),
    };
    let kubelet = own.start(Part::Kubelet, program.args(flags), health).await?;
    kubelet.wait_ready(Part::Kubelet, READY_DEADLINE).await?;
    Ok(sandboxes)
}

impl Cluster {
    /// Waits until the node takes Pods.
    pub async fn wait_node_ready(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        let ready = eventually(NODE_DEADLINE, || async {
            let node = nodes.get(NAME).await?;
            introduce(&nodes, &node).await?;
            let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            let ready = conditions
                .iter()
                .find(|condition| condition.type_ == "Ready")
                .context("no condition Ready")?;
            ensure!(ready.status == "True", "the node is not ready: {:?}", ready.message);
            ensure!(taints.is_empty(), "the node still has taints: {taints:?}");
            Ok(())
        });
        let kubelet = self.part(Part::Kubelet)?;
        ready.await.with_context(|| format!("last lines of the kubelet:\n{}", kubelet.process.log_tail()))
    }

    /// Configuration directory of containerd's registry hosts (`certs.d`) on the node.
    pub fn registry_hosts_directory(&self) -> PathBuf {
        self.directory().join("certs.d")
    }
}

/// Does what a cloud provider would: tells the node its address. The kubelet itself refuses one on loopback, and without any the API
/// server could not reach it for logs.
async fn introduce(nodes: &Api<Node>, node: &Node) -> Result<()> {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let internal = addresses.is_some_and(|all| all.iter().any(|address| address.type_ == "InternalIP"));
    if !internal {
        let status = json!({"status": {"addresses": [
            {"type": "InternalIP", "address": "127.0.0.1"},
            {"type": "Hostname", "address": NAME},
        ]}});
        nodes.patch_status(NAME, &PatchParams::default(), &Patch::Merge(status)).await?;
    }
    let mut taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let before = taints.len();
    taints.retain(|taint| taint.key != UNINITIALIZED);
    if taints.len() < before {
        let version = node.metadata.resource_version.as_ref();
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
        nodes.patch(NAME, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    Ok(())
}
