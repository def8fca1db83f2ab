//! `fairlead operator`: runs the operator until a signal ends it.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use fairlead_domain::duration::Duration;
use fairlead_operator::platform::certificates;
use fairlead_operator::platform::config::Config;
use fairlead_operator::platform::settings::{CertificateSource, Settings};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::connect::{Connection, Server};
use crate::logging;

/// More threads than this would only cost memory: the work is waiting for answers.
const MOST_THREADS: usize = 4;

/// Run the operator: watches, admission and, in one of the replicas, everything that changes the cluster
#[derive(Debug, Args)]
pub(crate) struct Operator {
    /// Configuration file [default: /etc/fairlead/config.yaml, if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    server: Server,
    /// Namespace of the operator's own objects [default: the Pod's, else fairlead-system]
    #[arg(long, value_name = "NS", env = "POD_NAMESPACE")]
    namespace: Option<String>,
    /// Name that tells this replica from the others [default: made from the host's name]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    identity: Option<String>,
    /// Address to listen on [default: all]
    #[arg(long, value_name = "IP")]
    listen: Option<IpAddr>,
    /// Port of the admission webhook; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 9443)]
    webhook_port: u16,
    /// Port of /metrics; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    metrics_port: u16,
    /// Port of /healthz and /readyz; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8081)]
    health_port: u16,
    /// Directory with tls.crt and tls.key for the webhook, kept by cert-manager or a person [default: the operator
    /// makes certificates itself]
    #[arg(long, value_name = "DIR")]
    certificates_dir: Option<PathBuf>,
    /// Further name or address that the webhook's certificate is for; may be given several times
    #[arg(long = "certificate-name", value_name = "DNS", conflicts_with = "certificates_dir")]
    certificate_names: Vec<String>,
    /// How long a certificate that the operator makes is valid
    #[arg(long, value_name = "DURATION", default_value = "2160h", conflicts_with = "certificates_dir")]
    certificate_validity: Duration,
    /// Webhook configuration whose path and CA bundle are kept
    #[arg(long, value_name = "NAME", default_value = "fairlead")]
    webhook_configuration: String,
    /// File with authorities in PEM form: only clients with a certificate of one of them may connect to the webhook,
    /// for API servers that present one [default: the secret path alone decides who is answered]
    #[arg(long, value_name = "FILE")]
    webhook_client_ca: Option<PathBuf>,
    /// Form of log lines [default: text at a terminal, else json]
    #[arg(long, value_name = "FORMAT", value_enum)]
    log_format: Option<logging::Format>,
    /// Least level of log lines, also by module: `info,fairlead_operator=debug`
    #[arg(long, value_name = "LEVELS", env = "RUST_LOG", default_value = "info")]
    log_level: String,
}

impl Operator {
    pub(crate) fn run(self) -> Result<()> {
        use_small_pages();
        let loaded = Config::load(self.config.as_deref(), |name| std::env::var(name).ok())?;
        logging::start(self.log_format, &self.log_level)?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        runtime()?.block_on(self.serve(loaded.config))
    }

    async fn serve(self, config: Config) -> Result<()> {
        let shutdown = CancellationToken::new();
        tokio::spawn(shut_down_on_signal(signals()?, shutdown.clone()));
        let Connection { client, clock, namespace } = self.server.connect().await?;
        let settings = self.settings(namespace)?;
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            identity = settings.identity,
            namespace = settings.namespace,
            "starting"
        );
        fairlead_operator::run(settings, config, client, clock, shutdown).await?;
        Ok(())
    }

    fn settings(self, namespace: String) -> Result<Settings> {
        let namespace = self.namespace.unwrap_or(namespace);
        let (configuration, validity) = (&self.webhook_configuration, self.certificate_validity.as_std());
        let certificates = match self.certificates_dir {
            Some(directory) => CertificateSource::Files(
                directory,
                certificates::Settings::of_path(&namespace, configuration, validity)?,
            ),
            None => CertificateSource::Own(certificates::Settings::new(
                &namespace,
                configuration,
                &self.certificate_names,
                validity,
            )?),
        };
        Ok(Settings {
            identity: self.identity.unwrap_or_else(made_up_identity),
            namespace,
            listen: self.listen,
            webhook_port: self.webhook_port,
            metrics_port: self.metrics_port,
            health_port: self.health_port,
            certificates,
            webhook_client_ca: self.webhook_client_ca,
        })
    }
}

/// The allocator asks the kernel for pages of two megabytes where it can have them. That triples the memory of a
/// process whose heap is a few megabytes in small pieces, and gains it nothing.
pub(crate) fn use_small_pages() {
    // A kernel that cannot do this has no such pages, or the memory to spare.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// How long a thread for blocking work lives without any. The allocator returns the memory that a round of planning has
/// freed when its thread ends, not while it sleeps.
const IDLE_THREAD: std::time::Duration = std::time::Duration::from_millis(50);

fn runtime() -> Result<Runtime> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_keep_alive(IDLE_THREAD)
        .enable_all()
        .build()
        .context("cannot start the threads of the operator")
}

/// Replicas on one host, and one replica started twice, must not take each other for themselves.
fn made_up_identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => "fairlead",
        host => host,
    };
    format!("{host}_{:08x}", fastrand::u32(..))
}

pub(crate) fn signals() -> Result<[Signal; 2]> {
    let listen = |kind| signal(kind).context("cannot listen for signals");
    Ok([listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?])
}

/// The first signal asks politely, the second one does not wait.
pub(crate) async fn shut_down_on_signal(
    [mut terminate, mut interrupt]: [Signal; 2],
    shutdown: CancellationToken,
) {
    let mut next = async || {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    };
    let signal = next().await;
    tracing::info!(signal, "asked to stop");
    shutdown.cancel();
    let signal = next().await;
    tracing::warn!(signal, "asked to stop again; leaving at once");
    std::process::exit(1);
}
