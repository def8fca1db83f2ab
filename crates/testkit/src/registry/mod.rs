//! Real registries: distribution 3 from the assets, and Debian's 2.8, which behaves differently where it matters (it
//! deletes by digest only).

mod access;
mod config;
mod endpoint;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

pub use access::Access;
pub use config::{RegistryConfig, Release};
pub use endpoint::Endpoint;

use crate::assets::{Assets, Group};
use crate::poll::eventually;
use crate::process::{Process, Program};
use crate::supervisor::{Signal, Supervisor};
use crate::{ports, unique};

const READY_DEADLINE: Duration = Duration::from_secs(30);
/// Debian's package `docker-registry`.
const RELEASE_2_PROGRAM: &str = "/usr/bin/docker-registry";

/// A running registry; dropping it kills it. What was pushed survives [`Registry::kill`] and [`Registry::start_again`].
#[derive(Debug)]
pub struct Registry {
    process: Process,
    endpoint: Endpoint,
    directory: PathBuf,
}

impl Registry {
    /// Starts one on a free port of loopback, tied to this process.
    pub async fn start(config: RegistryConfig) -> Result<Self> {
        let supervisor = tokio::task::spawn_blocking(Supervisor::of_this_process).await??;
        Self::start_under(supervisor, config, &unique("registry"), Ipv4Addr::LOCALHOST).await
    }

    pub(crate) async fn start_under(
        supervisor: Arc<Supervisor>,
        config: RegistryConfig,
        name: &str,
        address: Ipv4Addr,
    ) -> Result<Self> {
        let program = match config.release {
            Release::V3 => Assets::ensure(&[Group::Registry]).await?.program("registry")?,
            Release::V2 => release_2()?,
        };
        let directory = supervisor.directory().join(format!("{name}.d"));
        let port = ports::registry()?;
        let written = config.write(&directory, SocketAddrV4::new(address, port))?;
        let program = Program::new(program)
            .arg("serve")
            .arg(written.file.display().to_string())
            // Release 3 would otherwise send traces to a collector that is not there.
            .env("OTEL_TRACES_EXPORTER", "none");
        let process = program.start_under(supervisor, name).await?;
        let registry = Self { process, endpoint: written.endpoint, directory };
        registry.wait_ready().await?;
        Ok(registry)
    }

    /// Where it is and how to log in.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// `ADDRESS:PORT`, as in image references.
    pub fn host(&self) -> String {
        self.endpoint.host()
    }

    /// Its files; removed with the process that started it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Every request it has answered, in order.
    pub fn accesses(&self) -> Result<Vec<Access>> {
        Ok(access::parse(&self.process.logs()?))
    }

    pub fn logs(&self) -> Result<String> {
        self.process.logs()
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    pub async fn kill(&self) -> Result<()> {
        self.process.kill().await
    }

    /// Starts it again on the same port after [`Registry::kill`].
    pub async fn start_again(&self) -> Result<()> {
        self.process.start_again().await?;
        self.wait_ready().await
    }

    /// It accepts connections and never answers, until [`Registry::resume`].
    pub async fn pause(&self) -> Result<()> {
        self.process.signal(Signal::Stop).await
    }

    pub async fn resume(&self) -> Result<()> {
        self.process.signal(Signal::Continue).await
    }

    async fn wait_ready(&self) -> Result<()> {
        let client = self.endpoint.http()?;
        let answer = eventually(READY_DEADLINE, || async {
            if let Some(ending) = self.process.ending() {
                return Ok(Err(ending));
            }
            let status = self.endpoint.request(&client, reqwest::Method::GET, "/v2/").send().await?.status();
            // One that wants a token first is up, too.
            let up = status.is_success() || status == reqwest::StatusCode::UNAUTHORIZED;
            ensure!(up, "the registry answers {status}");
            Ok(Ok(()))
        });
        match answer
            .await
            .with_context(|| format!("last lines of the registry:\n{}", self.process.log_tail()))?
        {
            Ok(()) => Ok(()),
            Err(ending) => bail!("the registry ended with {ending:?}:\n{}", self.process.log_tail()),
        }
    }
}

fn release_2() -> Result<PathBuf> {
    let program = PathBuf::from(RELEASE_2_PROGRAM);
    ensure!(
        program.exists(),
        "{RELEASE_2_PROGRAM} is not installed: run cluster/prerequisites.sh as root on Debian"
    );
    Ok(program)
}
