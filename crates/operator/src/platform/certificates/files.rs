//! A leaf from a directory that cert-manager keeps through a mounted Secret, or a person.
//!
//! The kubelet replaces such files by swapping a symbolic link to their directory, which watchers of single files do
//! not see, so the files are read again every few seconds. A certificate and a key that do not belong together, because
//! only one has been replaced yet, or because of a mistake, leave what is served as it is. Nothing is written to the
//! cluster: the issuer of these certificates also puts their authority into the webhook configuration.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::keeper::text;
use super::resolver::{ServableLeaf, ServeError, wall_time};
use super::{Clock, Metrics, Resolver};
use crate::platform::telemetry::Heartbeat;

/// Time between two reads. Certificates are replaced days before they end; this only has to be soon to a person.
const EVERY: Duration = Duration::from_secs(2);

/// Serves the leaf in a directory (`tls.crt`, `tls.key`), and follows its replacement.
pub struct Files {
    directory: PathBuf,
    clock: Clock,
    resolver: Arc<Resolver>,
    metrics: Metrics,
    heartbeat: Heartbeat,
    /// What was read last, good or not.
    seen: Option<Pair>,
    complained: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
struct Pair {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the certificate in {}: {source}", directory.display())]
    Serve { directory: PathBuf, source: ServeError },
}

impl Files {
    pub fn new(directory: &Path, clock: Clock, metrics: Metrics, heartbeat: Heartbeat) -> Self {
        Self {
            directory: directory.to_owned(),
            clock,
            resolver: Resolver::new(),
            metrics,
            heartbeat,
            seen: None,
            complained: None,
        }
    }

    /// Where the admission server gets its leaf.
    pub fn resolver(&self) -> Arc<Resolver> {
        Arc::clone(&self.resolver)
    }

    /// Whether there is a leaf to serve.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.resolver.ready()
    }

    /// Keeps going until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            self.heartbeat.beat();
            if let Err(error) = self.look() {
                self.metrics.failed();
                let problem = error.to_string();
                if self.complained.as_ref() != Some(&problem) {
                    tracing::warn!(
                        problem,
                        "the certificate files cannot be used; what was served before goes on being served"
                    );
                    self.complained = Some(problem);
                }
            }
            self.resolver.refresh(wall_time((self.clock)()));
            if shutdown.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none() {
                return;
            }
        }
    }

    /// Reads the files and serves them when they are new and usable.
    fn look(&mut self) -> Result<(), FileError> {
        let pair = Pair { certificate: self.read("tls.crt")?, key: self.read("tls.key")? };
        if self.seen.as_ref() == Some(&pair) && self.complained.is_none() {
            return Ok(());
        }
        let leaf = ServableLeaf::from_pem(&pair.certificate, &pair.key)
            .map_err(|source| FileError::Serve { directory: self.directory.clone(), source })?;
        self.seen = Some(pair);
        self.complained = None;
        self.metrics.serves(leaf.window.not_after);
        if self.resolver.install(&leaf) {
            tracing::info!(valid_until = %text(leaf.window.not_after), "serving a new certificate from files");
        }
        Ok(())
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, FileError> {
        let path = self.directory.join(name);
        std::fs::read(&path).map_err(|source| FileError::Read { path, source })
    }
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("directory", &self.directory).finish_non_exhaustive()
    }
}
