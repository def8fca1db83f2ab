//! `fairlead agent`: makes the runtime of one node follow mirror policies, until a signal ends it.

mod cluster;
mod directory;
mod listen;
mod remove;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use fairlead_domain::keyring::{IdentityKey, Keyring, SecretKind};
use fairlead_node::agent::{AgentError, AgentSettings, NodeAgent};
use fairlead_node::detect::detect;
use fairlead_node::files::ConfigDir;
use fairlead_node::router::{Router, RouterSettings};
use fairlead_node::status;
use fairlead_node::{Runtime, RuntimeName, Version};
use fairlead_operator::controller::backoff::Retry;
use fairlead_plan::node_config::{MirrorPolicy, Scope};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::connect::Server;
use crate::logging;
use crate::operator::{shut_down_on_signal, signals, use_small_pages};

/// How often files and credentials are looked at, whether they are as they should be.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Changes that come together are written together.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// For requests at hand when the agent is asked to stop.
const LAST_REQUESTS: Duration = Duration::from_secs(20);

/// Policies as they are now; `None` until all of them are known.
type Policies = watch::Receiver<Option<Arc<[MirrorPolicy]>>>;

/// Make the container runtime of this node follow mirror policies
///
/// Writes the runtime's files, and answers containerd where its files cannot express a policy. When it ends, the files
/// stay: `fairlead agent remove` removes them.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Agent {
    #[command(subcommand)]
    command: Option<AgentCommand>,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    Remove(remove::Remove),
}

#[derive(Debug, Args)]
struct Run {
    /// Directory with mirror policies to follow, in place of those of the cluster
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "context"])]
    policies: Option<PathBuf>,
    #[command(flatten)]
    server: Server,
    /// Name of this node, whose object names the runtime and its version
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,
    #[command(flatten)]
    place: Place,
    /// Registry, or part of one, that is asked without a checked certificate or without TLS; may be given several times
    #[arg(long = "insecure-registry", value_name = "PLACE", value_parser = Scope::parse)]
    insecure: Vec<Scope>,
    /// Registry, or part of one, that is never asked; may be given several times
    #[arg(long = "blocked-registry", value_name = "PLACE", value_parser = Scope::parse)]
    blocked: Vec<Scope>,
    /// Loopback address on which containerd reaches the router
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7780")]
    router: SocketAddr,
    /// Send containerd to mirrors for layers, instead of passing them on. It then gives the credentials of an image to
    /// a mirror that asks for some
    #[arg(long)]
    redirect: bool,
    /// File of the form of ~/.docker/config.json with credentials for mirrors
    #[arg(long, value_name = "FILE")]
    mirror_credentials: Option<PathBuf>,
    /// File with certificate authorities of mirrors, PEM
    #[arg(long, value_name = "FILE")]
    mirror_ca: Option<PathBuf>,
    /// Address of /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7781")]
    status: SocketAddr,
    /// Form of log lines [default: text at a terminal, else json]
    #[arg(long, value_name = "FORMAT", value_enum)]
    log_format: Option<logging::Format>,
    /// Least level of log lines, also by module: `info,fairlead_node=debug`
    #[arg(long, value_name = "LEVELS", env = "RUST_LOG", default_value = "info")]
    log_level: String,
}

/// Where the runtime is, and which one.
#[derive(Debug, Args)]
struct Place {
    /// Where the file system of the node is mounted
    #[arg(long, value_name = "DIR", default_value = "/")]
    host_root: PathBuf,
    /// Runtime of the node [default: by the Node object or by what is found]
    #[arg(long, value_name = "RUNTIME", value_enum)]
    runtime: Option<NodeRuntime>,
    /// Version of the runtime [default: by the Node object, else one of today]
    #[arg(long, value_name = "VERSION")]
    runtime_version: Option<Version>,
    /// Directory that the runtime reads: certs.d or registries.conf.d [default: found]
    #[arg(long, value_name = "DIR")]
    config_dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum NodeRuntime {
    Containerd,
    Crio,
}

impl From<NodeRuntime> for RuntimeName {
    fn from(runtime: NodeRuntime) -> Self {
        match runtime {
            NodeRuntime::Containerd => Self::Containerd,
            NodeRuntime::Crio => Self::Crio,
        }
    }
}

impl Place {
    /// The runtime and its directory; `seen` is what the Node object says of it.
    fn find(&self, seen: Option<Runtime>) -> Result<(ConfigDir, Runtime)> {
        let name = self.runtime.map(RuntimeName::from).or(seen.map(|seen| seen.name));
        let version = self.runtime_version.or(seen.and_then(|seen| seen.version));
        let directory = match (&self.config_dir, name) {
            (Some(path), Some(runtime)) => ConfigDir { path: path.clone(), runtime },
            (Some(path), None) => {
                let runtime = if path.ends_with("registries.conf.d") {
                    RuntimeName::Crio
                } else {
                    RuntimeName::Containerd
                };
                ConfigDir { path: path.clone(), runtime }
            }
            (None, _) => detect(&self.host_root, name, version)?,
        };
        let runtime = Runtime { name: directory.runtime, version };
        Ok((directory, runtime))
    }
}

impl Agent {
    pub(crate) fn run(self) -> Result<()> {
        match self.command {
            Some(AgentCommand::Remove(remove)) => remove.run(),
            None => self.run.run(),
        }
    }
}

impl Run {
    fn run(self) -> Result<()> {
        use_small_pages();
        ensure!(
            self.router.ip().is_loopback(),
            "--router {} is not a loopback address: other machines could read from mirrors with the agent's credentials",
            self.router
        );
        logging::start(self.log_format, &self.log_level)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.context("cannot start the threads of the agent")?.block_on(self.serve())
    }

    async fn serve(self) -> Result<()> {
        // An error says that a provider was chosen before, which is what is wanted.
        drop(rustls::crypto::ring::default_provider().install_default());
        let stop = CancellationToken::new();
        tokio::spawn(shut_down_on_signal(signals()?, stop.clone()));
        let (policies, seen) = if let Some(path) = &self.policies {
            (directory::follow(path.clone()), None)
        } else {
            let client = self.server.connect().await?.client;
            let seen = match &self.node_name {
                Some(name) => cluster::runtime_of(&client, name).await?,
                None => None,
            };
            (cluster::follow(&client), seen)
        };
        let (directory, runtime) = self.place.find(seen)?;
        let version = runtime.version.map(|version| version.to_string()).unwrap_or_default();
        tracing::info!(runtime = %runtime.name, version, directory = %directory.path.display(), "starting");
        let settings = RouterSettings { redirects: self.redirect, authorities: self.mirror_ca.clone() };
        let mut credentials = Credentials { file: self.mirror_credentials.clone(), content: Vec::new() };
        let router = Arc::new(Router::new(settings, credentials.read()?.unwrap_or_else(keyring)));
        let mut registry = Registry::default();
        router.register_metrics(&mut registry);
        let settings = AgentSettings {
            directory,
            runtime,
            host_root: self.place.host_root.clone(),
            router: self.router,
            insecure: self.insecure.iter().cloned().collect(),
            blocked: self.blocked.iter().cloned().collect(),
        };
        let agent = NodeAgent::new(settings, Arc::clone(&router), &mut registry);
        let (ready, readiness) = watch::channel(Some("policies are being read".to_owned()));
        let listener = TcpListener::bind(self.status).await;
        let listener =
            listener.with_context(|| format!("cannot listen on {}; choose another --status", self.status))?;
        tracing::info!(endpoint = "status", address = %listener.local_addr()?, "listening");
        let status = tokio::spawn(status::serve(listener, registry, readiness, stop.clone()));
        let work = Work { agent, router, address: self.router, policies, credentials, ready };
        let worked = work.run(stop.clone()).await;
        stop.cancel();
        // A page that is being read must not hold up the end.
        let _ = tokio::time::timeout(LAST_REQUESTS, status).await;
        worked
    }
}

/// Credentials for mirrors, read again when the file changes.
struct Credentials {
    file: Option<PathBuf>,
    content: Vec<u8>,
}

impl Credentials {
    /// `None` if nothing has changed.
    fn read(&mut self) -> Result<Option<Keyring>> {
        let Some(file) = &self.file else { return Ok(None) };
        let content = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        if content == self.content {
            return Ok(None);
        }
        let mut keyring = keyring();
        let added = keyring.add(SecretKind::DockerConfigJson, &content);
        added.with_context(|| format!("{} holds no credentials", file.display()))?;
        self.content = content;
        Ok(Some(keyring))
    }
}

fn keyring() -> Keyring {
    Keyring::new(IdentityKey::new(std::array::from_fn(|_| fastrand::u8(..))))
}

struct Work {
    agent: NodeAgent,
    router: Arc<Router>,
    address: SocketAddr,
    policies: Policies,
    credentials: Credentials,
    ready: watch::Sender<Option<String>>,
}

impl Work {
    async fn run(mut self, stop: CancellationToken) -> Result<()> {
        // Before all policies are known the router would leave closed sources to the runtime, so it does not listen.
        let known = tokio::select! {
            known = self.policies.wait_for(Option::is_some) => known.is_ok(),
            () = stop.cancelled() => return Ok(()),
        };
        ensure!(known, "policies can no longer be followed");
        let mut serving = None;
        let mut retry = Retry::default();
        let mut has_changed = true;
        loop {
            // Writing files waits for the disk.
            let outcome = tokio::task::block_in_place(|| self.apply(has_changed));
            if serving.is_none() {
                let (router, address) = (Arc::clone(&self.router), self.address);
                serving = Some(tokio::spawn(listen::serve(router, address, stop.clone())));
            }
            let pause = match outcome {
                Ok(()) => {
                    retry.reset();
                    self.ready.send_if_modified(|reason| reason.take().is_some());
                    None
                }
                Err(error) => {
                    tracing::error!(%error, "the files of the runtime are not current");
                    self.ready.send_replace(Some(error.to_string()));
                    Some(retry.failed())
                }
            };
            has_changed = tokio::select! {
                changed = self.policies.changed() => {
                    changed.context("policies can no longer be followed")?;
                    tokio::time::sleep(DEBOUNCE).await;
                    true
                }
                () = tokio::time::sleep(pause.unwrap_or(LOOK_EVERY)) => false,
                () = stop.cancelled() => break,
                ended = async { match &mut serving { Some(task) => task.await, None => std::future::pending().await } } => {
                    ended.context("the router has crashed")??;
                    bail!("the router has ended");
                }
            };
            match self.credentials.read() {
                Ok(Some(keyring)) => self.router.use_credentials(keyring),
                Ok(None) => {}
                Err(error) => tracing::warn!("{error:#}; the credentials known so far stay in use"),
            }
        }
        if let Some(serving) = serving {
            if let Ok(ended) = tokio::time::timeout(LAST_REQUESTS, serving).await {
                ended.context("the router has crashed")??;
            } else {
                tracing::warn!("pulls are still under way; the runtime asks for their rest again");
            }
        }
        Ok(())
    }

    fn apply(&mut self, has_changed: bool) -> Result<(), AgentError> {
        if !has_changed {
            return self.agent.repair();
        }
        let policies = self.policies.borrow_and_update().clone().unwrap_or_default();
        self.agent.follow(policies.to_vec())
    }
}
