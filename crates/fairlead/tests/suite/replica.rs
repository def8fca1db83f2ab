//! One running operator process, as a test sees it: its log, its probes, its metrics.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Process, Program, eventually};
use serde_json::Value;

/// Time for what should happen at once on a machine that has other things to do.
pub const SOON: Duration = Duration::from_secs(30);

pub struct Replica {
    pub process: Process,
    health: SocketAddr,
    metrics: SocketAddr,
    http: reqwest::Client,
}

impl Replica {
    /// Starts an operator and waits until it listens.
    pub async fn start(kubeconfig: &Path, namespace: &str, identity: &str) -> Result<Self> {
        let program = Program::new(env!("CARGO_BIN_EXE_fairlead")).arg("operator").args([
            "--kubeconfig",
            kubeconfig.to_str().context("a path in plain text")?,
            "--namespace",
            namespace,
            "--identity",
            identity,
            "--listen=127.0.0.1",
            "--webhook-port=0",
            "--metrics-port=0",
            "--health-port=0",
        ]);
        fairlead_testkit::install_crypto();
        let process = program.start().await?;
        let health = listening(&process, "health").await?;
        let metrics = listening(&process, "metrics").await?;
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(2)).build()?;
        Ok(Self { process, health, metrics, http })
    }

    /// Log lines with this message, in order.
    pub fn said(&self, message: &str) -> Result<Vec<Value>> {
        let logs = self.process.logs()?;
        let lines = logs.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(lines.filter(|line| line["message"] == message).collect())
    }

    /// Waits for a log line with this message and returns the first.
    pub async fn wait_to_say(&self, message: &str, deadline: Duration) -> Result<Value> {
        let line = self.process.wait_for_log(&format!("\"message\":\"{message}\""), deadline).await?;
        Ok(serde_json::from_str(&line)?)
    }

    pub async fn wait_to_lead(&self, deadline: Duration) -> Result<()> {
        eventually(deadline, || async {
            ensure!(
                self.metric("fairlead_leader").await? == Some(1.0),
                "does not lead:\n{}",
                self.process.log_tail()
            );
            Ok(())
        })
        .await
    }

    /// Value of one line of the metrics page, named with its labels.
    pub async fn metric(&self, series: &str) -> Result<Option<f64>> {
        let page = self.get(self.metrics, "/metrics").await?.1;
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
            ensure!(status == 200, "not ready:\n{page}");
            Ok(())
        })
        .await
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
    ensure!(line["message"] == "listening", "unexpected line {line}");
    Ok(line["address"].as_str().context("an address")?.parse()?)
}
