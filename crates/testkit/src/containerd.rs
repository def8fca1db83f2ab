//! Debian's containerd 1.6, which reads `hosts.toml` by older rules than the node's own.
//!
//! It only fetches content, for which it needs neither root nor a snapshotter.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tokio::process::Command;

use crate::process::{Process, Program};

const PROGRAM: &str = "/usr/bin/containerd";
const CLIENT: &str = "/usr/bin/ctr";
const READY_DEADLINE: Duration = Duration::from_secs(30);

/// A running containerd with a store of its own; dropping it ends it and removes what it fetched.
#[derive(Debug)]
pub struct OldContainerd {
    _process: Process,
    directory: TempDir,
    authorities: PathBuf,
}

impl OldContainerd {
    pub fn is_installed() -> bool {
        Path::new(PROGRAM).exists() && Path::new(CLIENT).exists()
    }

    /// Starts one that trusts these certificate authorities, in PEM, and no others.
    pub async fn start(authorities: &str) -> Result<Self> {
        let directory = TempDir::new()?;
        let at = |name: &str| directory.path().join(name);
        let file = at("authorities.pem");
        std::fs::write(&file, authorities)?;
        // Plugins that would probe the machine, or complain that they cannot work.
        let quoted = |name: &str| format!("\"{}\"", at(name).display());
        let config = format!(
            "version = 2\nroot = {}\nstate = {}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \
             \"io.containerd.internal.v1.opt\", \"io.containerd.snapshotter.v1.aufs\", \
             \"io.containerd.snapshotter.v1.btrfs\", \"io.containerd.snapshotter.v1.devmapper\", \
             \"io.containerd.snapshotter.v1.overlayfs\", \"io.containerd.snapshotter.v1.zfs\"]\n\
             [grpc]\naddress = {}\n[ttrpc]\naddress = {}\n",
            quoted("root"),
            quoted("state"),
            quoted("c.sock"),
            quoted("t.sock")
        );
        std::fs::write(at("config.toml"), config)?;
        let process = Program::new(PROGRAM)
            .args(["--config".to_owned(), at("config.toml").display().to_string()])
            .start()
            .await?;
        process.wait_for_log("containerd successfully booted", READY_DEADLINE).await?;
        Ok(Self { _process: process, directory, authorities: file })
    }

    /// Fetches everything of an image, by the files of a `certs.d`; without one, from its registry over plain HTTP.
    pub async fn fetch(&self, hosts: Option<&Path>, image: &str) -> Result<Output> {
        let mut command = Command::new(CLIENT);
        command.arg("--address").arg(self.directory.path().join("c.sock")).args(["content", "fetch"]);
        match hosts {
            Some(hosts) => command.arg("--hosts-dir").arg(hosts),
            None => command.arg("--plain-http"),
        };
        command.arg(image).env("SSL_CERT_FILE", &self.authorities);
        command.output().await.with_context(|| format!("cannot run {CLIENT}"))
    }
}
