//! A Kubernetes cluster for tests: started in seconds, its parts killed and restarted on request.
//!
//! Most tests want [`shared`] and a namespace of their own. A test that needs other feature gates, an audit log, a
//! node, or that kills parts takes a cluster of its own from [`Cluster::builder`].

mod access;
mod builder;
mod controlplane;
mod health;
mod kwok;
mod network;
pub mod node;
mod part;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::OnceCell;

pub use builder::ClusterBuilder;
pub use controlplane::KWOK as KWOK_USER;
pub use kwok::{pull_stages, simulated_node};
pub(crate) use network::Network;
pub use part::Part;

use crate::assets::Assets;
use crate::audit::{AuditEvent, AuditLog};
use crate::process::Process;
use crate::proxy::ApiProxy;
use crate::registry::{Endpoint, Registry, RegistryConfig};
use crate::supervisor::{Signal, Supervisor};
use health::Health;

/// A cluster made for tests, used by [`shared`] instead of starting one. `KUBECONFIG` is never looked at: it may be
/// production.
const EXISTING: &str = "FAIRLEAD_TEST_KUBECONFIG";

/// How long a part may take to come up; generous, since tests run side by side on small machines.
const READY_DEADLINE: Duration = Duration::from_mins(1);

/// One part of a running cluster.
#[derive(Debug)]
pub(crate) struct RunningPart {
    process: Process,
    health: Health,
}

/// What there is of a cluster that we run ourselves.
#[derive(Debug)]
struct Own {
    supervisor: Arc<Supervisor>,
    parts: Mutex<BTreeMap<Part, Arc<RunningPart>>>,
    audit_log: Option<AuditLog>,
    authority: String,
    network: Network,
    api_server: SocketAddr,
    /// Of simulated nodes.
    lease_seconds: u32,
    /// The stages kwok was started with, once it was.
    kwok: tokio::sync::Mutex<Option<String>>,
    /// Serves the sandbox image to the node.
    sandboxes: Option<Registry>,
}

/// A running cluster. Dropping it ends it.
#[derive(Debug)]
pub struct Cluster {
    admin: PathBuf,
    directory: PathBuf,
    assets: Assets,
    own: Option<Own>,
}

/// The cluster that all tests of this process share: a control plane without a node, started by the first caller.
///
/// # Panics
/// When it does not start; no test that asked for it could go on.
pub async fn shared() -> &'static Cluster {
    static SHARED: OnceCell<Cluster> = OnceCell::const_new();
    let start = async || match std::env::var_os(EXISTING) {
        Some(kubeconfig) => Cluster::existing(Path::new(&kubeconfig)).await,
        None => Cluster::builder().start().await,
    };
    match SHARED.get_or_try_init(start).await {
        Ok(cluster) => cluster,
        #[expect(
            clippy::panic,
            reason = "the shared cluster is a precondition of the test, and the panic tells why it is missing"
        )]
        Err(error) => panic!("the shared cluster did not start: {error:#}"),
    }
}

impl Cluster {
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// Uses a cluster that runs already.
    async fn existing(kubeconfig: &Path) -> Result<Self> {
        let admin =
            kubeconfig.canonicalize().with_context(|| format!("{EXISTING}={}", kubeconfig.display()))?;
        let assets = builder::control_plane_assets().await?;
        let processes = tokio::task::spawn_blocking(Supervisor::of_this_process).await??;
        let directory = processes.directory().join("existing-cluster");
        Ok(Self { admin, directory, assets, own: None })
    }

    fn own(&self) -> Result<&Own> {
        self.own.as_ref().with_context(|| format!("the cluster of {EXISTING} is not run by this test"))
    }

    fn part(&self, part: Part) -> Result<Arc<RunningPart>> {
        let part_or_none = self.own()?.parts().get(&part).map(Arc::clone);
        part_or_none.ok_or_else(|| anyhow!("this cluster has no {part}"))
    }

    /// Where it keeps its files; gone when it ends, unless `FAIRLEAD_TEST_KEEP` is set.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// PEM certificate of the authority behind the API server's certificate.
    pub fn authority(&self) -> Result<&str> {
        Ok(&self.own()?.authority)
    }

    /// Where the API server listens.
    pub fn api_server(&self) -> Result<SocketAddr> {
        Ok(self.own()?.api_server)
    }

    /// The machine as the cluster sees it: where a program beside it has to listen to be reached from it.
    pub fn host_address(&self) -> IpAddr {
        self.own.as_ref().map_or(Network::LOOPBACK, |own| own.network).host.into()
    }

    /// SIGKILL to one part.
    pub async fn kill(&self, part: Part) -> Result<()> {
        self.part(part)?.process.kill().await
    }

    /// Kills a part if it runs, starts it again, and waits until it works.
    pub async fn restart(&self, part: Part) -> Result<()> {
        self.restart_with(part, &[]).await
    }

    /// The same with further flags, as `--name=value`, until the next restart. The last of several wins, also of
    /// feature gates.
    pub async fn restart_with(&self, part: Part, flags: &[&str]) -> Result<()> {
        let running = self.part(part)?;
        running.process.kill().await?;
        running.process.start_again_with(flags).await?;
        running.wait_ready(part, READY_DEADLINE).await
    }

    /// SIGSTOP: the part stays, holds its connections, and does nothing.
    pub async fn pause(&self, part: Part) -> Result<()> {
        self.part(part)?.process.signal(Signal::Stop).await
    }

    /// Ends a [`Cluster::pause`].
    pub async fn resume(&self, part: Part) -> Result<()> {
        self.part(part)?.process.signal(Signal::Continue).await
    }

    pub fn is_running(&self, part: Part) -> Result<bool> {
        Ok(self.part(part)?.process.is_running())
    }

    /// What the part has written, over all its lives.
    pub fn logs(&self, part: Part) -> Result<String> {
        self.part(part)?.process.logs()
    }

    /// Waits until a part does its work.
    pub async fn wait_ready(&self, part: Part) -> Result<()> {
        self.part(part)?.wait_ready(part, READY_DEADLINE).await
    }

    /// Starts a program beside the parts of the cluster; where there is a node, in the namespaces of the node.
    pub async fn start_beside(&self, program: crate::Program, name: &str) -> Result<Process> {
        program.start_under(self.own()?.supervisor(), name).await
    }

    /// A registry that lives as long as the cluster.
    pub async fn registry(&self, config: RegistryConfig) -> Result<Registry> {
        self.named_registry(config, &crate::unique("registry")).await
    }

    pub(crate) async fn named_registry(&self, config: RegistryConfig, name: &str) -> Result<Registry> {
        let own = self.own()?;
        let registry = Registry::start_under(own.supervisor(), config, name, own.network.cluster).await?;
        if own.sandboxes.is_some() {
            node::pulls_from(self.directory(), &registry.host(), registry.endpoint())?;
        }
        Ok(registry)
    }

    /// A wire to a registry of this cluster, and the registry as the node reaches it through the wire.
    pub async fn wire_to(&self, registry: &Registry) -> Result<(ApiProxy, Endpoint)> {
        let wire = ApiProxy::start_at(self.host_address(), registry.endpoint().address().into()).await?;
        let SocketAddr::V4(address) = wire.address() else { bail!("{} is not IPv4", wire.address()) };
        let endpoint = Endpoint::at(address);
        node::pulls_from(self.directory(), &endpoint.host(), &endpoint)?;
        Ok((wire, endpoint))
    }

    /// Lets the cluster and all that runs under it outlive this process.
    pub async fn detach(&self) -> Result<()> {
        self.own()?.supervisor.detach().await
    }

    /// What the API server was asked, and by whom; needs [`ClusterBuilder::audit`].
    pub fn audit_events(&self) -> Result<Vec<AuditEvent>> {
        self.audit_log()?.events()
    }

    /// The same from a position of the log on, and the position to go on from.
    pub fn audit_events_from(&self, position: u64) -> Result<(Vec<AuditEvent>, u64)> {
        self.audit_log()?.events_from(position)
    }

    fn audit_log(&self) -> Result<&AuditLog> {
        let log = self.own()?.audit_log.as_ref();
        log.context("this cluster was started without an audit log: builder().audit(true)")
    }
}

impl Own {
    fn parts(&self) -> MutexGuard<'_, BTreeMap<Part, Arc<RunningPart>>> {
        self.parts.lock()
    }

    fn supervisor(&self) -> Arc<Supervisor> {
        Arc::clone(&self.supervisor)
    }

    async fn start(&self, part: Part, program: crate::Program, health: Health) -> Result<Arc<RunningPart>> {
        let process = program.start_under(self.supervisor(), part.name()).await?;
        let running = Arc::new(RunningPart { process, health });
        self.parts().insert(part, Arc::clone(&running));
        Ok(running)
    }
}
