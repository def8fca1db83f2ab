//! What a cluster is to be like, and its start.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use parking_lot::Mutex;

use super::controlplane::{ADMIN, ControlPlane, kubeconfig_of};
use super::{Cluster, Network, Own, Part, READY_DEADLINE, node};
use crate::assets::{Assets, Group};
use crate::audit::AuditLog;
use crate::supervisor::{Link, Options, Supervisor};
use crate::workdir;

/// As long as a kubelet's.
const LEASE_SECONDS: u32 = 40;
/// Longer than any measurement, and renewed four times as often.
const LONG_LEASE_SECONDS: u32 = 2 * 60 * 60;

pub(super) async fn control_plane_assets() -> Result<Assets> {
    Assets::ensure(&[Group::Programs, Group::ControlPlane]).await
}

/// Choices for a cluster of one's own; the default is a control plane without a node.
#[derive(Clone, Debug, Default)]
pub struct ClusterBuilder {
    feature_gates: BTreeMap<String, bool>,
    pub(super) audit: bool,
    node: bool,
    calm_nodes: bool,
    flags: BTreeMap<Part, Vec<String>>,
}

impl ClusterBuilder {
    /// Turns a Kubernetes feature gate on or off, in every part.
    #[must_use]
    pub fn feature_gate(mut self, name: impl Into<String>, on: bool) -> Self {
        self.feature_gates.insert(name.into(), on);
        self
    }

    /// Keeps an audit log of every request's metadata; see [`Cluster::audit_events`].
    #[must_use]
    pub fn audit(mut self, on: bool) -> Self {
        self.audit = on;
        self
    }

    /// Adds a real node (needs root; see [`node::missing`]).
    #[must_use]
    pub fn node(mut self, on: bool) -> Self {
        self.node = on;
        self
    }

    /// Simulated nodes hardly ever renew their leases. A thousand of them would otherwise keep the API server busy with
    /// a hundred writes per second.
    #[must_use]
    pub fn calm_nodes(mut self, on: bool) -> Self {
        self.calm_nodes = on;
        self
    }

    /// A further flag for one part, as `--name=value`; the last one wins.
    #[must_use]
    pub fn flag(mut self, part: Part, flag: impl Into<String>) -> Self {
        self.flags.entry(part).or_default().push(flag.into());
        self
    }

    pub(super) fn flags_of(&self, part: Part) -> Vec<String> {
        let grace = (self.calm_nodes && part == Part::ControllerManager)
            .then(|| format!("--node-monitor-grace-period={LONG_LEASE_SECONDS}s"));
        grace.into_iter().chain(self.flags.get(&part).into_iter().flatten().cloned()).collect()
    }

    pub(super) fn feature_gate_flag(&self) -> Option<String> {
        let gates: Vec<String> = self.feature_gates.iter().map(|(name, on)| format!("{name}={on}")).collect();
        (!gates.is_empty()).then(|| format!("--feature-gates={}", gates.join(",")))
    }

    /// Starts it and waits until it works.
    pub async fn start(self) -> Result<Cluster> {
        let assets = control_plane_assets().await?;
        let directory = workdir::create("cluster")?;
        self.start_in(directory, None, assets).await
    }

    /// Starts it in a directory of the caller's choice, findable by its supervisor's pid file.
    pub(crate) async fn start_standing(self, directory: PathBuf, pid_file: PathBuf) -> Result<Cluster> {
        let assets = control_plane_assets().await?;
        self.start_in(directory, Some(pid_file), assets).await
    }

    async fn start_in(
        self,
        directory: PathBuf,
        pid_file: Option<PathBuf>,
        assets: Assets,
    ) -> Result<Cluster> {
        if self.node
            && let Some(reason) = node::missing()
        {
            bail!(reason);
        }
        let network = if self.node { Network::link()? } else { Network::LOOPBACK };
        let link = Link { network, name: node::name_of(&directory) };
        let options = Options { namespaces: self.node.then_some(link), pid_file };
        let supervisor = Arc::new(Supervisor::start(directory.clone(), &options)?);
        let plane = ControlPlane::prepare(&self, &assets, &directory, network)?;
        let mut own = Own {
            supervisor,
            parts: Mutex::default(),
            audit_log: plane.audit_log().map(AuditLog::new),
            authority: plane.authority.clone(),
            network,
            api_server: (network.cluster, plane.api_port).into(),
            lease_seconds: if self.calm_nodes { LONG_LEASE_SECONDS } else { LEASE_SECONDS },
            kwok: tokio::sync::Mutex::default(),
            sandboxes: None,
        };
        start_control_plane(&own, &plane).await?;
        if self.node {
            own.sandboxes = Some(node::start(&self, &own, &directory).await?);
        }
        let cluster = Cluster { admin: kubeconfig_of(&directory, ADMIN), directory, assets, own: Some(own) };
        if self.node {
            cluster.wait_node_ready().await?;
        }
        Ok(cluster)
    }
}

async fn start_control_plane(own: &Own, plane: &ControlPlane<'_>) -> Result<()> {
    let (program, health) = plane.etcd()?;
    own.start(Part::Etcd, program, health).await?;
    let (program, health) = plane.api_server()?;
    let api_server = own.start(Part::ApiServer, program, health).await?;
    api_server.wait_ready(Part::ApiServer, READY_DEADLINE).await?;
    let (program, health) = plane.controller_manager()?;
    let controller_manager = own.start(Part::ControllerManager, program, health).await?;
    let (program, health) = plane.scheduler()?;
    let scheduler = own.start(Part::Scheduler, program, health).await?;
    controller_manager.wait_ready(Part::ControllerManager, READY_DEADLINE).await?;
    scheduler.wait_ready(Part::Scheduler, READY_DEADLINE).await
}
