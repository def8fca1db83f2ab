//! Whether a part does its work, asked of the part itself.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use reqwest::Certificate;
use tokio::net::UnixStream;

use super::{Part, RunningPart};
use crate::poll::eventually;

const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) enum Health {
    /// Answers 200 here; the authority vouches for `https`.
    Http { url: String, authority: String },
    /// Accepts connections here.
    Socket(PathBuf),
}

impl RunningPart {
    /// Waits until the part is healthy; fails at once, with its last words, when it ends instead.
    pub(crate) async fn wait_ready(&self, part: Part, deadline: Duration) -> Result<()> {
        let probe = Probe::new(&self.health)?;
        let outcome = eventually(deadline, || async {
            if let Some(ending) = self.process.ending() {
                return Ok(Err(ending));
            }
            probe.ask().await.with_context(|| format!("{part} is not ready"))?;
            Ok(Ok(()))
        });
        match outcome.await.with_context(|| format!("last lines of {part}:\n{}", self.process.log_tail()))? {
            Ok(()) => Ok(()),
            Err(ending) => bail!("{part} ended with {ending:?}:\n{}", self.process.log_tail()),
        }
    }
}

enum Probe<'a> {
    Http { client: reqwest::Client, url: &'a str },
    Socket(&'a PathBuf),
}

impl<'a> Probe<'a> {
    fn new(health: &'a Health) -> Result<Self> {
        match health {
            Health::Http { url, authority } => {
                crate::install_crypto();
                let authority = Certificate::from_pem(authority.as_bytes())?;
                let client = reqwest::Client::builder()
                    .no_proxy()
                    .timeout(PROBE_TIMEOUT)
                    .tls_certs_only([authority])
                    .build()?;
                Ok(Self::Http { client, url })
            }
            Health::Socket(path) => Ok(Self::Socket(path)),
        }
    }

    async fn ask(&self) -> Result<()> {
        match self {
            Self::Http { client, url } => {
                let response = client.get(*url).send().await?;
                let status = response.status();
                ensure!(
                    status.is_success(),
                    "{url} answers {status}: {}",
                    response.text().await.unwrap_or_default()
                );
            }
            Self::Socket(path) => {
                UnixStream::connect(path)
                    .await
                    .with_context(|| format!("cannot connect to {}", path.display()))?;
            }
        }
        Ok(())
    }
}
