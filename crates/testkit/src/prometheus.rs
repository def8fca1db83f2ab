//! A real Prometheus, as Debian packages it, with values that were put into it before it starts.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tokio::process::Command;

use crate::pki::{Authority, Identity};
use crate::process::{Process, Program};
use crate::supervisor::Supervisor;
use crate::{ports, unique, workdir};

const READY_DEADLINE: Duration = Duration::from_mins(1);
/// The cheapest hash that it accepts.
const BCRYPT_COST: u32 = 4;

/// Choices for a Prometheus; the default is empty, without password and TLS, at the root of its address.
#[derive(Clone, Debug, Default)]
pub struct PrometheusConfig {
    samples: String,
    user: Option<(String, String)>,
    tls: bool,
    client_certificates: bool,
    prefix: String,
}

impl PrometheusConfig {
    pub fn new() -> Self {
        Self::default()
    }

    /// Values of a series, each with its time in seconds since 1970. `series` is a name with labels.
    #[must_use]
    pub fn series(mut self, series: &str, values: impl IntoIterator<Item = (i64, f64)>) -> Self {
        for (at, value) in values {
            // Writing to a text cannot fail.
            let _ = writeln!(self.samples, "{series} {value} {at}");
        }
        self
    }

    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        self
    }

    /// Speaks TLS with a certificate by an authority of its own.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Also wants certificates of its clients, by the same authority.
    #[must_use]
    pub fn client_certificates(mut self) -> Self {
        (self.tls, self.client_certificates) = (true, true);
        self
    }

    /// Serves below this path, as behind a gateway.
    #[must_use]
    pub fn prefix(mut self, path: &str) -> Self {
        path.clone_into(&mut self.prefix);
        self
    }
}

/// A running Prometheus; dropping it kills it.
#[derive(Debug)]
pub struct Prometheus {
    process: Process,
    url: String,
    authority: Option<String>,
    client: Option<Identity>,
}

impl Prometheus {
    pub async fn start(config: PrometheusConfig) -> Result<Self> {
        let supervisor = tokio::task::spawn_blocking(Supervisor::of_this_process).await??;
        let name = unique("prometheus");
        let directory = supervisor.directory().join(format!("{name}.d"));
        std::fs::create_dir_all(&directory)?;
        fill(&directory, &config.samples).await?;
        let mut web = serde_json::Map::new();
        let authority = if config.tls { Some(Authority::new("prometheus")?) } else { None };
        if let Some(authority) = &authority {
            let identity = authority.issue(&["127.0.0.1", "localhost"])?;
            workdir::write(&directory.join("tls.crt"), &identity.certificate)?;
            workdir::write(&directory.join("tls.key"), &identity.key)?;
            let mut files = vec![("cert_file", "tls.crt"), ("key_file", "tls.key")];
            if config.client_certificates {
                workdir::write(&directory.join("clients.crt"), authority.certificate())?;
                files.push(("client_ca_file", "clients.crt"));
                files.push(("client_auth_type", "RequireAndVerifyClientCert"));
            }
            let files: serde_json::Map<_, _> =
                files.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
            web.insert("tls_server_config".to_owned(), files.into());
        }
        if let Some((user, password)) = &config.user {
            let users = json!({user: bcrypt::hash(password, BCRYPT_COST)?});
            web.insert("basic_auth_users".to_owned(), users);
        }
        workdir::write(&directory.join("web.yml"), json!(web).to_string())?;
        workdir::write(&directory.join("prometheus.yml"), "global: {}\n")?;
        let address = format!("127.0.0.1:{}", ports::free()?);
        let scheme = if config.tls { "https" } else { "http" };
        let url = format!("{scheme}://{address}{}", config.prefix);
        let file = |name: &str| directory.join(name).display().to_string();
        let program = Program::new("/usr/bin/prometheus")
            .arg(format!("--config.file={}", file("prometheus.yml")))
            .arg(format!("--web.config.file={}", file("web.yml")))
            .arg(format!("--storage.tsdb.path={}", file("data")))
            .arg(format!("--web.listen-address={address}"))
            .arg(format!("--web.external-url={url}"));
        let process = program.start_under(supervisor, &name).await?;
        process.wait_for_log("Server is ready to receive web requests", READY_DEADLINE).await?;
        let wanted = authority.as_ref().filter(|_| config.client_certificates);
        let client = wanted.map(|authority| authority.issue_to_client("reader", "readers")).transpose()?;
        let authority = authority.map(|authority| authority.certificate().to_owned());
        Ok(Self { process, url, authority, client })
    }

    /// Its address, with the path below which it serves.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// PEM certificate of the authority, where it speaks TLS.
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// A certificate for clients, where it wants one.
    pub fn client(&self) -> Option<&Identity> {
        self.client.as_ref()
    }

    pub async fn kill(&self) -> Result<()> {
        self.process.kill().await
    }

    /// Starts it again on the same port after [`Prometheus::kill`].
    pub async fn start_again(&self) -> Result<()> {
        self.process.start_again().await
    }
}

/// Puts values into the place where it will look for them.
async fn fill(directory: &Path, samples: &str) -> Result<()> {
    let data = directory.join("data");
    std::fs::create_dir_all(&data)?;
    if samples.is_empty() {
        return Ok(());
    }
    let file = directory.join("samples");
    workdir::write(&file, format!("{samples}# EOF\n"))?;
    let filling = Command::new("/usr/bin/promtool")
        .args(["tsdb", "create-blocks-from", "openmetrics"])
        .args([&file, &data])
        .output()
        .await
        .context("promtool cannot be run; it is part of Debian's package prometheus")?;
    ensure!(filling.status.success(), "promtool: {}", String::from_utf8_lossy(&filling.stderr));
    if std::fs::read_dir(&data)?.next().is_none() {
        bail!("promtool made nothing of\n{samples}");
    }
    Ok(())
}
