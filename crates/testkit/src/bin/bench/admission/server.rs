//! The server under test: the operator or the bare handler, each a process of its own, also under valgrind.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Process, Program, eventually};

/// The operator's own namespace.
pub(crate) const NAMESPACE: &str = "fairlead-system";

/// The path of the bare handler.
pub(crate) const BARE_PATH: &str = "/mutate/pods";

pub(crate) struct Server {
    process: Process,
    address: SocketAddr,
    /// The page of metrics of an operator.
    metrics: Option<String>,
    /// The path that it answers on.
    pub(crate) path: String,
}

/// How long a server may take to start; under valgrind everything takes longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience(pub(crate) Duration);

impl Server {
    /// Runs a command that logs the address of its webhook.
    pub(crate) async fn start(command: Vec<String>, patience: Patience) -> Result<Self> {
        let mut words = command.into_iter();
        let program = words.next().context("a command has a program")?;
        let process = Program::new(program).args(words).start().await?;
        let address = address_of(&process, "webhook", patience).await?;
        Ok(Self { process, address, metrics: None, path: BARE_PATH.to_owned() })
    }

    /// Runs the command of an operator, and waits until it is ready and follows so many policies.
    pub(crate) async fn start_operator(
        command: Vec<String>,
        policies: usize,
        patience: Patience,
    ) -> Result<Self> {
        let mut server = Self::start(command, patience).await?;
        let ready = format!("http://{}/readyz", address_of(&server.process, "health", patience).await?);
        let metrics = format!("http://{}/metrics", address_of(&server.process, "metrics", patience).await?);
        eventually(patience.0, || async {
            let answer = reqwest::get(&ready).await?;
            ensure!(answer.status().is_success(), "the operator is not ready: {}", answer.text().await?);
            let followed = followed(&reqwest::get(&metrics).await?.text().await?);
            ensure!(followed == policies, "the operator follows {followed} of {policies} policies");
            Ok(())
        })
        .await
        .with_context(|| server.process.log_tail())?;
        server.metrics = Some(metrics);
        Ok(server)
    }

    /// How often this operator has asked registries about images that admission waited for.
    pub(crate) async fn probes(&self) -> Result<usize> {
        let metrics = self.metrics.as_deref().context("only an operator has metrics")?;
        let page = reqwest::get(metrics).await?.text().await?;
        let of_probes = page.lines().filter(|line| line.starts_with("fairlead_probes_total{"));
        let of_admission = of_probes.filter(|line| line.contains("source=\"admission\""));
        Ok(of_admission.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }
}

/// How many policies work, of all kinds, according to a page of metrics.
fn followed(page: &str) -> usize {
    let of_kinds = page.lines().filter(|line| line.starts_with("fairlead_policies{"));
    let used = of_kinds.filter(|line| line.contains("state=\"used\""));
    used.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
}

async fn address_of(process: &Process, endpoint: &str, patience: Patience) -> Result<SocketAddr> {
    let line = process.wait_for_log(&format!("\"endpoint\":\"{endpoint}\""), patience.0).await?;
    let line: serde_json::Value = serde_json::from_str(&line)?;
    let address = line.get("address").and_then(serde_json::Value::as_str);
    Ok(address.with_context(|| format!("no address in {line}"))?.parse()?)
}

/// The command of the bare handler.
pub(crate) fn bare(certificates: &Path) -> Result<Vec<String>> {
    let program = std::env::current_exe()?.display().to_string();
    let certificates = format!("--certificates-dir={}", certificates.display());
    Ok(vec![program, "bare-admission".to_owned(), certificates])
}

/// The command of the operator, under the rights of `kubeconfig`.
pub(crate) fn operator(program: &Path, kubeconfig: &Path, certificates: &Path) -> Vec<String> {
    vec![
        program.display().to_string(),
        "operator".to_owned(),
        "--log-format=json".to_owned(),
        "--listen=127.0.0.1".to_owned(),
        "--webhook-port=0".to_owned(),
        "--metrics-port=0".to_owned(),
        "--health-port=0".to_owned(),
        format!("--namespace={NAMESPACE}"),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--certificates-dir={}", certificates.display()),
    ]
}
