//! One real node: containerd, runc, the kubelet and kube-proxy, with a registry that holds the sandbox image. Needs
//! root.
//!
//! The parts live in PID, mount and network namespaces of their own, so containers, their shims, mounts, network
//! devices and rules of the packet filter go when the supervisor goes.

mod containerd;
mod kubelet;
mod proxy;

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use sha2::{Digest, Sha256};

use super::controlplane::kubeconfig_of;
use super::health::Health;
use super::{Cluster, ClusterBuilder, Own, Part, READY_DEADLINE};
use crate::assets::{Assets, Group};
use crate::poll::eventually;
use crate::registry::{Endpoint, Registry, RegistryConfig};
use crate::{images, ports, workdir};

/// Name of the node.
pub(super) const NAME: &str = "node";
/// The kubelet's user, by whose name the API server knows which node's objects it may touch.
pub(super) const USER: &str = "system:node:node";
/// kube-proxy's user, to which RBAC gives its rights.
pub(super) const PROXY_USER: &str = "system:kube-proxy";
/// Debian's directory of network plugins.
const NETWORK_PLUGINS: &str = "/usr/lib/cni";
const NODE_DEADLINE: Duration = Duration::from_mins(1);
const SANDBOX: (&str, &str) = ("fairlead/pause", "1");

/// Where system programs are looked for: Debian has them in directories that only root's login shell searches.
fn search_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/sbin:/sbin")
}

/// Why this process cannot run a node, if it cannot.
pub fn missing() -> Option<String> {
    let uid_line = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = uid_line.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1));
    if effective != Some("0") {
        return Some("a node needs root".to_owned());
    }
    let programs = [("runc", "runc"), ("ip", "iproute2"), ("iptables", "iptables")];
    let found = |program: &str| {
        std::env::split_paths(&search_path()).any(|directory| directory.join(program).exists())
    };
    let mut absent: Vec<_> =
        programs.iter().filter(|(program, _)| !found(program)).map(|(_, package)| *package).collect();
    if !Path::new(NETWORK_PLUGINS).join("ptp").exists() {
        absent.push("containernetworking-plugins");
    }
    (!absent.is_empty())
        .then(|| format!("a node needs {}: run cluster/prerequisites.sh as root", absent.join(" and ")))
}

/// What the parts of the node agree on.
struct Layout<'a> {
    directory: &'a Path,
    assets: Assets,
    sandbox: String,
    address: Ipv4Addr,
    kubelet_port: u16,
    kubelet_health_port: u16,
    proxy_health_port: u16,
}

impl Layout<'_> {
    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn socket(&self) -> PathBuf {
        self.file("containerd.sock")
    }

    fn health(&self, own: &Own, port: u16) -> Health {
        Health::Http {
            url: format!("http://{}:{port}/healthz", self.address),
            authority: own.authority.clone(),
        }
    }
}

/// Name of what a cluster has in places that all clusters of the machine share: the network device of its link, and
/// the control group below which the kubelet keeps those of its Pods. A device can have 15 characters.
pub(crate) fn name_of(directory: &Path) -> String {
    let hash = Sha256::digest(directory.as_os_str().as_encoded_bytes());
    let digits = hash.iter().take(3).fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    format!("fairlead-{digits}")
}

pub(super) async fn start(builder: &ClusterBuilder, own: &Own, directory: &Path) -> Result<Registry> {
    let address = own.network.cluster;
    let sandboxes =
        Registry::start_under(own.supervisor(), RegistryConfig::new(), "sandbox-registry", address).await?;
    pulls_from(directory, &sandboxes.host(), sandboxes.endpoint())?;
    let (repository, tag) = SANDBOX;
    let pause = tokio::task::spawn_blocking(images::pause).await??;
    sandboxes.endpoint().push(repository, tag, &pause).await?;
    let layout = Layout {
        directory,
        assets: Assets::ensure(&[Group::ControlPlane, Group::Containerd]).await?,
        sandbox: format!("{}/{repository}:{tag}", sandboxes.host()),
        address,
        kubelet_port: ports::free()?,
        kubelet_health_port: ports::free()?,
        proxy_health_port: ports::free()?,
    };
    let containerd =
        own.start(Part::Containerd, containerd::prepare(&layout)?, Health::Socket(layout.socket())).await?;
    containerd.wait_ready(Part::Containerd, READY_DEADLINE).await?;
    let flags = |part| builder.feature_gate_flag().into_iter().chain(builder.flags_of(part));
    let program = kubelet::prepare(&layout, &kubeconfig_of(directory, USER))?.args(flags(Part::Kubelet));
    let kubelet = own.start(Part::Kubelet, program, layout.health(own, layout.kubelet_health_port)).await?;
    let program = proxy::prepare(&layout, &kubeconfig_of(directory, PROXY_USER))?.args(flags(Part::Proxy));
    let proxy = own.start(Part::Proxy, program, layout.health(own, layout.proxy_health_port)).await?;
    kubelet.wait_ready(Part::Kubelet, READY_DEADLINE).await?;
    proxy.wait_ready(Part::Proxy, READY_DEADLINE).await?;
    Ok(sandboxes)
}

/// Lets the node pull images of `host` from a registry.
pub(super) fn pulls_from(directory: &Path, host: &str, registry: &Endpoint) -> Result<()> {
    let hosts = containerd::hosts_directory(directory).join(host);
    let mut text = format!("server = \"{}\"\n", registry.url());
    if let Some(authority) = &registry.authority {
        let file = hosts.join("ca.crt");
        workdir::write(&file, authority)?;
        writeln!(text, "ca = \"{}\"", file.display())?;
    }
    workdir::write(&hosts.join("hosts.toml"), text)
}

impl Cluster {
    /// Waits until the node takes Pods.
    pub async fn wait_node_ready(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        let ready = eventually(NODE_DEADLINE, || async {
            let node = nodes.get(NAME).await?;
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

    /// Lets the node pull images of `host` from a registry, as administrators do where a host cannot be reached.
    pub fn pull_from(&self, host: &str, registry: &Endpoint) -> Result<()> {
        pulls_from(self.directory(), host, registry)
    }
}
