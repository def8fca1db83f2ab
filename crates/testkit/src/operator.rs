//! The real operator as a process of its own, as tests, the demo and the bench see it: its addresses, its log, its
//! probes, its metrics.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::supervisor::Supervisor;
use crate::{Cluster, Process, Program, Signal, eventually};

/// Time for what should happen at once on a machine that has other things to do.
pub const SOON: Duration = Duration::from_mins(1);

const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The name of everything that is installed for the operator.
const NAME: &str = "fairlead";

/// What a person would write on the command line.
#[derive(Debug, Clone)]
pub struct OperatorBuilder {
    program: PathBuf,
    namespace: String,
    identity: String,
    listen: IpAddr,
    config: Option<PathBuf>,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
}

impl OperatorBuilder {
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    #[must_use]
    pub fn identity(mut self, identity: &str) -> Self {
        identity.clone_into(&mut self.identity);
        self
    }

    #[must_use]
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The configuration, as [`with_registries`] completes it.
    #[must_use]
    pub fn config(mut self, file: &Path) -> Self {
        self.config = Some(file.to_owned());
        self
    }

    /// Starts it with a kubeconfig, and waits until it listens.
    pub async fn start(self, kubeconfig: &Path) -> Result<Operator> {
        crate::install_crypto();
        let supervisor = tokio::task::spawn_blocking(Supervisor::of_this_process).await??;
        let config = supervisor.directory().join(format!("{}.yaml", crate::unique("config")));
        let written = match &self.config {
            Some(file) => std::fs::read_to_string(file).with_context(|| file.display().to_string())?,
            None => String::new(),
        };
        std::fs::write(&config, with_registries(&written))?;
        let program = Program::new(&self.program)
            .args(["operator", "--log-format=json"])
            .arg(format!("--listen={}", self.listen))
            .args(["--webhook-port=0", "--metrics-port=0", "--health-port=0"])
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--namespace={}", self.namespace))
            .arg(format!("--identity={}", self.identity))
            .arg(format!("--config={}", config.display()))
            .args(self.arguments);
        let program =
            self.variables.into_iter().fold(program, |program, (name, value)| program.env(name, value));
        let process = program.start().await?;
        // Plain HTTP: the certificates of the machine need not be read.
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([]).timeout(PROBE_TIMEOUT).build()?;
        let address = async |endpoint| listening(&process, endpoint).await;
        let (health, metrics, webhook) =
            (address("health").await?, address("metrics").await?, address("webhook").await?);
        let (namespace, identity) = (self.namespace, self.identity);
        Ok(Operator { process, namespace, identity, health, metrics, webhook, http })
    }

    /// Starts it under the rights that are installed in its namespace, where the API server of the cluster reaches
    /// it, with a certificate that this accepts.
    pub async fn start_installed(mut self, cluster: &Cluster) -> Result<Operator> {
        let kubeconfig = cluster.kubeconfig_as(&self.namespace, NAME).await?;
        self.listen = cluster.host_address();
        let name = format!("--certificate-name={}", self.listen);
        self.arg(name).start(&kubeconfig).await
    }
}

/// A running operator; dropping it kills it.
#[derive(Debug)]
pub struct Operator {
    pub process: Process,
    pub namespace: String,
    pub identity: String,
    pub health: SocketAddr,
    pub metrics: SocketAddr,
    pub webhook: SocketAddr,
    http: reqwest::Client,
}

impl Operator {
    pub fn of(program: impl Into<PathBuf>) -> OperatorBuilder {
        OperatorBuilder {
            program: program.into(),
            namespace: "fairlead-system".to_owned(),
            identity: crate::unique("operator"),
            listen: Ipv4Addr::LOCALHOST.into(),
            config: None,
            arguments: Vec::new(),
            variables: Vec::new(),
        }
    }

    /// Log lines with this message, in order.
    pub fn said(&self, message: &str) -> Result<Vec<Value>> {
        let logs = self.process.logs()?;
        // As it stands in a line: parsing them all takes longer than what is awaited by this.
        let quoted = serde_json::to_string(message)?;
        let lines = logs.lines().filter(|line| line.contains(&quoted));
        let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(lines.filter(|line| line.get("message").and_then(Value::as_str) == Some(message)).collect())
    }

    /// Waits for a log line with this message and returns the first.
    pub async fn wait_to_say(&self, message: &str, deadline: Duration) -> Result<Value> {
        let line = self.process.wait_for_log(&format!("\"message\":\"{message}\""), deadline).await?;
        Ok(serde_json::from_str(&line)?)
    }

    pub async fn leads(&self) -> Result<bool> {
        Ok(self.metric("fairlead_leader").await? == Some(1.0))
    }

    pub async fn wait_to_lead(&self, deadline: Duration) -> Result<()> {
        eventually(deadline, || async {
            ensure!(self.leads().await?, "does not lead:\n{}", self.process.log_tail());
            Ok(())
        })
        .await
    }

    /// The whole metrics page.
    pub async fn page(&self) -> Result<String> {
        Ok(self.get(self.metrics, "/metrics").await?.1)
    }

    /// Value of one line of the metrics page, named with its labels.
    pub async fn metric(&self, series: &str) -> Result<Option<f64>> {
        let page = self.page().await?;
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Ok(value.map(str::parse).transpose()?)
    }

    pub async fn wait_for_metric(&self, series: &str, wanted: Option<f64>, deadline: Duration) -> Result<()> {
        eventually(deadline, || async {
            let found = self.metric(series).await?;
            ensure!(found == wanted, "{series} is {found:?}, not {wanted:?}; {}", self.process.log_tail());
            Ok(())
        })
        .await
    }

    /// Answer of the readiness probe, with every check in words.
    pub async fn readiness(&self) -> Result<(u16, String)> {
        self.get(self.health, "/readyz?verbose").await
    }

    pub async fn liveness(&self) -> Result<(u16, String)> {
        self.get(self.health, "/healthz").await
    }

    pub async fn wait_until_ready(&self, deadline: Duration) -> Result<()> {
        eventually(deadline, || async {
            let (status, page) = self.readiness().await?;
            ensure!(status == 200, "{} is not ready:\n{page}\n{}", self.identity, self.process.log_tail());
            Ok(())
        })
        .await
    }

    /// Ends it politely.
    pub async fn stop(&self) -> Result<()> {
        self.process.signal(Signal::Terminate).await?;
        let ending = self.process.wait(Duration::from_secs(15)).await?;
        ensure!(
            ending.code == Some(0),
            "{} ended with {ending:?}: {}",
            self.identity,
            self.process.log_tail()
        );
        Ok(())
    }

    async fn get(&self, address: SocketAddr, path: &str) -> Result<(u16, String)> {
        let answer = self.http.get(format!("http://{address}{path}")).send().await?;
        let status = answer.status().as_u16();
        Ok((status, answer.text().await?))
    }
}

async fn listening(process: &Process, endpoint: &str) -> Result<SocketAddr> {
    let line = process.wait_for_log(&format!("\"endpoint\":\"{endpoint}\""), SOON).await?;
    let line: Value = serde_json::from_str(&line)?;
    let address = line.get("address").and_then(Value::as_str);
    Ok(address.with_context(|| format!("no address in {line}"))?.parse()?)
}

/// A configuration that names all registries of this process. They are on loopback, and without that the operator would
/// not contact them on behalf of Pods and namespaced policies.
pub fn with_registries(config: &str) -> String {
    const KEY: &str = "registries:\n";
    let hosts = crate::ports::of_registries().into_iter().map(|port| format!("127.0.0.1:{port}"));
    // What a test says of a registry itself stays as it is.
    let is_entry =
        |line: &str, host: &str| line.starts_with("  ") && !line.starts_with("   ") && line.contains(host);
    let hosts = hosts.filter(|host| !config.lines().any(|line| is_entry(line, host)));
    let hosts = hosts.map(|host| format!("  \"{host}\": {{}}\n")).collect::<Vec<_>>().concat();
    let config = format!("\n{config}");
    let (before, after) = match config.split_once(&format!("\n{KEY}")) {
        Some((before, after)) => (before.to_owned(), after),
        None => (format!("{}\n", config.trim_end()), ""),
    };
    format!("{before}\n{KEY}{hosts}{after}")
}

/// The path that API servers call, once the operator has written it.
pub async fn webhook_path(cluster: &Cluster) -> Result<Option<String>> {
    let config = client_config(cluster).await?;
    let text = |pointer| config.pointer(pointer).and_then(Value::as_str);
    let path = match text("/url") {
        Some(url) => url.splitn(4, '/').nth(3).map(|rest| format!("/{rest}")),
        None => text("/service/path").map(str::to_owned),
    };
    Ok(path.filter(|path| path.starts_with("/mutate/")))
}

async fn client_config(cluster: &Cluster) -> Result<Value> {
    let arguments = ["get", "mutatingwebhookconfiguration", NAME, "--output=json"];
    let found: Value = serde_json::from_str(&cluster.kubectl(arguments).await?)?;
    found.pointer("/webhooks/0/clientConfig").cloned().context("no webhook is configured")
}

/// An operator beside the cluster is behind no Service, so the webhook configuration names its address. The path
/// stays as it is: the operator writes it.
pub async fn point_webhook_at(cluster: &Cluster, address: SocketAddr) -> Result<()> {
    let known = client_config(cluster).await?;
    let url = format!("https://{address}{}", webhook_path(cluster).await?.unwrap_or_default());
    let mut patch =
        vec![serde_json::json!({"op": "add", "path": "/webhooks/0/clientConfig/url", "value": url})];
    if known.get("url").is_none() {
        patch.push(serde_json::json!({"op": "remove", "path": "/webhooks/0/clientConfig/service"}));
    }
    let patch = format!("--patch={}", serde_json::Value::from(patch));
    cluster.kubectl(["patch", "mutatingwebhookconfiguration", NAME, "--type=json", &patch]).await.map(drop)
}
