//! The way to the API server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use fairlead_operator::platform::clock::Clock;
use fairlead_operator::platform::install::DEFAULT_NAMESPACE;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// An API server that does not take a connection within this time is down.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A connection on which nothing arrives for this long is dead. Watches are renewed every minute and so are never
/// silent for longer; everything else has shorter limits of its own.
const SILENCE_LIMIT: Duration = Duration::from_secs(75);

#[derive(Debug, Args)]
pub(crate) struct Server {
    /// Kubeconfig to connect with [default: the Pod's service account, else the user's kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// Where the program runs.
pub(crate) struct Connection {
    pub(crate) client: Client,
    /// The API server's clock, which the client keeps.
    pub(crate) clock: Clock,
    /// Namespace of the Pod this runs in, or the default one.
    pub(crate) namespace: String,
}

impl Server {
    /// By the named kubeconfig or context; else by the service account of the Pod this runs in; else by the user's
    /// kubeconfig.
    pub(crate) async fn connect(&self) -> Result<Connection> {
        // An error says that a provider was chosen before, which is what is wanted.
        drop(rustls::crypto::ring::default_provider().install_default());
        let (kubeconfig, context) = (self.kubeconfig.as_deref(), self.context.as_deref());
        let in_pod = kubeconfig.is_none()
            && context.is_none()
            && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let (mut config, namespace) = if in_pod {
            let config = Config::incluster().context("cannot use the ServiceAccount of this Pod")?;
            let namespace = config.default_namespace.clone();
            (config, namespace)
        } else {
            (by_kubeconfig(kubeconfig, context).await?, DEFAULT_NAMESPACE.to_owned())
        };
        config.connect_timeout = Some(CONNECT_LIMIT);
        config.read_timeout = Some(SILENCE_LIMIT);
        config.reset_reader_on_write = true;
        // Callers know how long an answer is worth waiting for; retries below would hide an outage from them.
        config.default_retry = false;
        let clock = Clock::default();
        let client =
            ClientBuilder::try_from(config).context("cannot set up the connection to the API server")?;
        let client = client.with_layer(&clock.layer()).build();
        Ok(Connection { client, clock, namespace })
    }
}

async fn by_kubeconfig(path: Option<&Path>, context: Option<&str>) -> Result<Config> {
    let kubeconfig = match path {
        Some(path) => Kubeconfig::read_from(path)
            .with_context(|| format!("cannot read kubeconfig {}", path.display()))?,
        None => Kubeconfig::read().context(
            "this does not run in a Pod and there is no kubeconfig to use; name one with --kubeconfig",
        )?,
    };
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(kubeconfig, &options).await.context("cannot use the kubeconfig")
}
