//! Credentials for mirrors, read again when their file changes.

use std::io::ErrorKind;
use std::path::PathBuf;

use fairlead_domain::keyring::{IdentityKey, Keyring, SecretKind};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

pub(super) struct Credentials {
    file: Option<PathBuf>,
    content: Vec<u8>,
    problem: Option<String>,
    unreadable: Gauge,
}

impl Credentials {
    pub(super) fn new(file: Option<PathBuf>, registry: &mut Registry) -> Self {
        let unreadable = Gauge::default();
        registry.register(
            "fairlead_agent_credentials_unreadable",
            "1 while the file with credentials for mirrors cannot be read",
            unreadable.clone(),
        );
        Self { file, content: Vec::new(), problem: None, unreadable }
    }

    /// `None` if nothing has changed. A file that is not there holds none: the Secret may be created later. One that
    /// cannot be read as credentials is logged once, and those known so far stay in use.
    pub(super) fn read(&mut self) -> Option<Keyring> {
        let file = self.file.as_ref()?;
        let content = match std::fs::read(file) {
            Ok(content) => content,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                self.failed(format!("cannot read {}: {error}", file.display()));
                return None;
            }
        };
        if content == self.content && self.problem.is_none() {
            return None;
        }
        let mut keyring = keyring();
        if !content.is_empty()
            && let Err(error) = keyring.add(SecretKind::DockerConfigJson, &content)
        {
            self.failed(format!("{} holds no credentials: {error}", file.display()));
            return None;
        }
        if self.problem.take().is_some() {
            tracing::info!("credentials for mirrors can be read again");
        }
        self.unreadable.set(0);
        self.content = content;
        Some(keyring)
    }

    fn failed(&mut self, problem: String) {
        if self.problem.as_ref() != Some(&problem) {
            tracing::warn!("{problem}; the credentials known so far stay in use");
        }
        self.unreadable.set(1);
        self.problem = Some(problem);
    }
}

pub(super) fn keyring() -> Keyring {
    Keyring::new(IdentityKey::new(std::array::from_fn(|_| fastrand::u8(..))))
}
