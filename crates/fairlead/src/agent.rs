//! `fairlead agent`: makes the runtime of one node follow mirror policies, until a signal ends it.

pub(crate) mod cluster;
mod credentials;
mod directory;
mod every_node;
mod listen;
mod ready;
mod remove;
mod report;
mod work;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use fairlead_domain::reference::Reference;
use fairlead_node::agent::{AgentSettings, FollowedPolicy, NodeAgent};
use fairlead_node::detect::{DetectError, detect};
use fairlead_node::files::ConfigDir;
use fairlead_node::router::{Router, RouterSettings};
use fairlead_node::status;
use fairlead_node::{Runtime, RuntimeName, Version};
use fairlead_plan::node_config::Scope;
use fairlead_plan::node_config::report::Reporter;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::cluster::Seen;
use self::credentials::{Credentials, keyring};
use self::report::Reports;
use self::work::Work;
use crate::connect::Server;
use crate::logging;
use crate::operator::{shut_down_on_signal, signals, use_small_pages};

/// How often files and credentials are looked at, whether they are as they should be.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// For requests at hand when the agent is asked to stop.
const LAST_REQUESTS: Duration = Duration::from_secs(20);

/// Policies as they are now; `None` until all of them are known.
type Policies = watch::Receiver<Option<Arc<[FollowedPolicy]>>>;

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
    Remove(Box<remove::Remove>),
    Ready(ready::Ready),
}

#[derive(Debug, Args)]
struct Run {
    /// Directory with mirror policies to follow, in place of those of the cluster
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "context"])]
    policies: Option<PathBuf>,
    #[command(flatten)]
    server: Server,
    /// Name of this node, whose object names the runtime and its version; what is in force is reported under it
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,
    #[command(flatten)]
    place: RuntimePlace,
    /// Registry, or part of one, that is asked without a checked certificate or without TLS; may be given several times
    #[arg(long = "insecure-registry", value_name = "PLACE", value_parser = Scope::parse)]
    insecure: Vec<Scope>,
    /// Registry, or part of one, that is never asked; may be given several times
    #[arg(long = "blocked-registry", value_name = "PLACE", value_parser = Scope::parse)]
    blocked: Vec<Scope>,
    /// Loopback address on which containerd reaches the router
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7780")]
    router: SocketAddr,
    /// Write what the files of the runtime can express, and no more
    #[arg(long, conflicts_with_all = ["router", "redirect"])]
    without_router: bool,
    /// Send containerd to mirrors for layers, instead of passing them on. It then gives the credentials of an image to
    /// a mirror that asks for some
    #[arg(long)]
    redirect: bool,
    /// File of the form of ~/.docker/config.json with credentials for mirrors; it may come later
    #[arg(long, value_name = "FILE")]
    mirror_credentials: Option<PathBuf>,
    /// File with certificate authorities of mirrors, PEM; it may come later
    #[arg(long, value_name = "FILE")]
    mirror_ca: Option<PathBuf>,
    /// Token server of another domain that may have the passwords of mirrors; may be given several times
    #[arg(long = "mirror-token-host", value_name = "HOST[:PORT]")]
    mirror_token_hosts: Vec<String>,
    /// Image that the agent is started from; a warning says if policies close the registry that it is pulled from
    #[arg(long, value_name = "REF", value_parser = Reference::parse)]
    own_image: Option<Reference>,
    /// Address of /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7781")]
    status: SocketAddr,
    /// File that says whether the agent is ready, for `fairlead agent ready`
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Form of log lines [default: text at a terminal, else json]
    #[arg(long, value_name = "FORMAT", value_enum)]
    log_format: Option<logging::Format>,
    /// Least level of log lines, also by module: `info,fairlead_node=debug`
    #[arg(long, value_name = "LEVELS", env = "RUST_LOG", default_value = "info")]
    log_level: String,
}

/// Where the runtime is, and which one.
#[derive(Debug, Args)]
struct RuntimePlace {
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

impl RuntimePlace {
    /// The runtime and its directory; `seen` is what the Node object says of it.
    fn find(&self, seen: Option<&Seen>) -> Result<(ConfigDir, Runtime), DetectError> {
        if let (None, Some(distribution)) = (&self.config_dir, seen.and_then(|seen| seen.distribution)) {
            return Err(distribution.error(&self.host_root));
        }
        let seen = seen.and_then(|seen| seen.runtime);
        let name = self.runtime.map(RuntimeName::from).or(seen.map(|seen| seen.name));
        let version = self.runtime_version.or(seen.and_then(|seen| seen.version));
        let directory = match (&self.config_dir, name) {
            (Some(path), Some(runtime)) => ConfigDir::new(path.clone(), runtime),
            (Some(path), None) => {
                let runtime = if path.ends_with("registries.conf.d") {
                    RuntimeName::Crio
                } else {
                    RuntimeName::Containerd
                };
                ConfigDir::new(path.clone(), runtime)
            }
            (None, _) => detect(&self.host_root, name, version)?,
        };
        let runtime = Runtime { name: directory.runtime, version };
        Ok((directory, runtime))
    }
}

impl Agent {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.command {
            Some(AgentCommand::Remove(remove)) => remove.run()?,
            Some(AgentCommand::Ready(ready)) => return Ok(ready.run()),
            None => self.run.run()?,
        }
        Ok(ExitCode::SUCCESS)
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
        let client = match &self.policies {
            Some(_) => None,
            None => Some(self.server.connect().await?.client),
        };
        let (ready, readiness) = watch::channel(Some("policies are being read".to_owned()));
        if let Some(file) = &self.ready_file {
            tokio::spawn(ready::keep(file.clone(), readiness.clone()));
        }
        let (seen, mut reports) = match (&client, &self.node_name) {
            (Some(client), Some(name)) => {
                let seen = Seen::wait(client, name, |why| _ = ready.send_replace(Some(why)));
                let Some(seen) = stop.run_until_cancelled(seen).await else { return Ok(()) };
                let seen = seen?;
                tokio::spawn(cluster::end_after_upgrade(
                    client.clone(),
                    name.clone(),
                    seen.clone(),
                    stop.clone(),
                ));
                let reports = Reports::start(client, name, &seen.uid, &stop);
                (Some(seen), reports)
            }
            _ => (None, Reports::default()),
        };
        let Some((directory, runtime)) = self.find(seen.as_ref(), &mut reports, &ready, &stop).await? else {
            return Ok(());
        };
        let policies = match (&self.policies, &client) {
            (None, Some(client)) => {
                cluster::follow(client, directory.ours().is_ok_and(|ours| ours.is_empty()))
            }
            (path, _) => directory::follow(path.clone().unwrap_or_default()),
        };
        let version = runtime.version.map(|version| version.to_string()).unwrap_or_default();
        tracing::info!(runtime = %runtime.name, version, directory = %directory.path.display(), "starting");
        let shown = directory.path.strip_prefix(&self.place.host_root).unwrap_or(&directory.path);
        reports.about(Reporter {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime: format!("{} {version}", runtime.name).trim_end().to_owned(),
            directory: PathBuf::from("/").join(shown).display().to_string(),
        });
        let settings = RouterSettings {
            redirects: self.redirect,
            authorities: self.mirror_ca.clone(),
            token_hosts: self.mirror_token_hosts.clone(),
        };
        let mut registry = Registry::default();
        let mut credentials = Credentials::new(self.mirror_credentials.clone(), &mut registry);
        let router = Arc::new(Router::new(settings, credentials.read().unwrap_or_else(keyring)));
        router.register_metrics(&mut registry);
        let address = (!self.without_router).then_some(self.router);
        let settings = AgentSettings {
            directory,
            runtime,
            host_root: self.place.host_root.clone(),
            router: address,
            insecure: self.insecure.iter().cloned().collect(),
            blocked: self.blocked.iter().cloned().collect(),
            own_image: self.own_image.clone(),
        };
        let agent = NodeAgent::new(settings, Arc::clone(&router), &mut registry);
        let status = tokio::spawn(serve_status(self.status, registry, readiness, stop.clone()));
        let work = Work { agent, router, address, policies, credentials, ready, reports };
        let worked = work.run(stop.clone()).await;
        stop.cancel();
        // A page that is being read must not hold up the end.
        let _ = tokio::time::timeout(LAST_REQUESTS, status).await;
        worked
    }

    /// Finds the runtime. On a node of a cluster, the log says what to do, and an administrator may do it later.
    async fn find(
        &self,
        seen: Option<&Seen>,
        reports: &mut Reports,
        ready: &watch::Sender<Option<String>>,
        stop: &CancellationToken,
    ) -> Result<Option<(ConfigDir, Runtime)>> {
        let mut told = None;
        loop {
            let error = match self.place.find(seen) {
                Ok(found) => return Ok(Some(found)),
                Err(error) if seen.is_none() => return Err(error.into()),
                Err(error) => error.to_string(),
            };
            if told.as_ref() != Some(&error) {
                tracing::error!(error, "this node cannot be configured; looking again");
                reports.tell(Err(&error));
            }
            ready.send_replace(Some(error.clone()));
            told = Some(error);
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = stop.cancelled() => return Ok(None),
            }
        }
    }
}

/// Serves metrics and readiness as soon as the address is free: the agent before this one may have it.
async fn serve_status(
    address: SocketAddr,
    registry: Registry,
    readiness: status::Readiness,
    stop: CancellationToken,
) -> Result<()> {
    let served = match listen::bind(address, "--status", &stop).await {
        Ok(None) => return Ok(()),
        Ok(Some(listener)) => {
            tracing::info!(endpoint = "status", address = %listener.local_addr()?, "listening");
            status::serve(listener, registry, readiness, stop).await.context("cannot serve metrics")
        }
        Err(error) => Err(error),
    };
    if let Err(error) = &served {
        tracing::error!("{error:#}");
    }
    served
}
