//! One replica of the operator, as a process of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Cluster, Process, Program, Signal, eventually};

use crate::{NAMESPACE, SOON};

pub(crate) struct Replica {
    process: Process,
    identity: String,
}

impl Replica {
    pub(crate) async fn start(cluster: &Cluster, program: &Path, identity: &str) -> Result<Self> {
        let kubeconfig = cluster.kubeconfig_as(NAMESPACE, "fairlead").await?;
        let process = Program::new(program)
            .args(["operator", "--log-format=json", "--listen=127.0.0.1", "--certificate-name=127.0.0.1"])
            .args(["--webhook-port=0", "--metrics-port=0", "--health-port=0"])
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--namespace={NAMESPACE}"))
            .arg(format!("--identity={identity}"))
            .start()
            .await?;
        Ok(Self { process, identity: identity.to_owned() })
    }

    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    pub(crate) async fn webhook(&self) -> Result<SocketAddr> {
        self.address("webhook").await
    }

    async fn address(&self, endpoint: &str) -> Result<SocketAddr> {
        let line = self.process.wait_for_log(&format!("\"endpoint\":\"{endpoint}\""), SOON).await?;
        let line: serde_json::Value = serde_json::from_str(&line)?;
        let address = line.get("address").and_then(serde_json::Value::as_str);
        Ok(address.with_context(|| format!("no address in {line}"))?.parse()?)
    }

    pub(crate) async fn wait_until_ready(&self) -> Result<()> {
        let url = format!("http://{}/readyz", self.address("health").await?);
        eventually(SOON, || async {
            let answer = reqwest::get(&url).await?;
            ensure!(answer.status().is_success(), "{} is not ready: {}", self.identity, answer.text().await?);
            Ok(())
        })
        .await
        .with_context(|| self.process.log_tail())
    }

    pub(crate) async fn leads(&self) -> Result<bool> {
        let url = format!("http://{}/metrics", self.address("metrics").await?);
        Ok(reqwest::get(&url).await?.text().await?.lines().any(|line| line == "fairlead_leader 1"))
    }

    pub(crate) async fn stop(self) -> Result<()> {
        self.process.signal(Signal::Terminate).await?;
        let ending = self.process.wait(Duration::from_secs(15)).await?;
        ensure!(ending.code == Some(0), "{} ended with {ending:?}", self.identity);
        Ok(())
    }
}
