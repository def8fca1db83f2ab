//! With which credentials registries are asked on behalf of mirrors.
//!
//! `fairlead_plan::credentials` decides which Secrets may be tried to read an image; a copy is written, looked at and
//! removed with the Secret that its mirror names.

use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::cause::Cause;
use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Reference;
use fairlead_plan::credentials::{self, Offered, Principal};
use fairlead_plan::routing::{SecretName, SecretUse};
use fairlead_plan::usage::Holder;
use fairlead_registry::copy::CopyEndpoint;
use tokio::time::Instant;

use crate::platform::config::Monitoring;
use crate::registries::secrets::{PullKeys, Secrets};

/// Reading a Secret holds a copy up for no longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Finds credentials.
#[derive(Debug, Clone)]
pub(super) struct Credentials {
    secrets: Secrets,
    monitoring: Arc<Monitoring>,
}

/// On whose behalf images are read, and with which attempt.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    pub(super) principal: Principal,
    /// Who uses the source.
    pub(super) holders: Arc<[Holder]>,
    /// How often this task has failed before: with many holders, all have their turn in successive rounds.
    pub(super) round: u32,
}

/// The credentials for one place, and the Secrets that they come from.
#[derive(Debug, Clone)]
pub(super) struct Access {
    pub(super) place: CopyEndpoint,
    names: Vec<SecretName>,
}

impl Credentials {
    pub(super) fn new(secrets: Secrets, monitoring: Monitoring) -> Self {
        Self { secrets, monitoring: Arc::new(monitoring) }
    }

    /// To read an image. `mirror` and `upstreams` are the Secrets that are named for the place.
    pub(super) async fn to_read(
        &self,
        image: &Reference,
        cause: Cause,
        reader: &Reader,
        mirror: Option<&SecretName>,
        upstreams: &[SecretUse],
    ) -> Access {
        let configuration = self.monitoring.for_registry(image.host().as_str()).fallback();
        let offered =
            Offered { mirror, holders: &reader.holders, upstreams, configuration: configuration.as_ref() };
        let attempts = credentials::attempts(&reader.principal, &offered, reader.round);
        let logins = self.secrets.logins(attempts, &image.repository()).await;
        let (mut names, mut found) = (Vec::new(), Vec::<Credential>::new());
        for (attempt, credentials) in logins.matching {
            names.extend(attempt.secrets);
            // The client tries one after the other until one works.
            for credential in credentials {
                if found.iter().all(|known| known.id() != credential.id()) {
                    found.push(credential);
                }
            }
        }
        Access { place: place(image, found, cause), names }
    }

    /// To write, look at or remove a copy. An error names the Secret that cannot be used.
    pub(super) async fn to_write(
        &self,
        copy: &Reference,
        cause: Cause,
        secret: Option<&SecretName>,
    ) -> Result<Access, String> {
        let mut keys = PullKeys::default();
        if let Some(name) = secret {
            let read = self.secrets.read(name, Instant::now() + PATIENCE).await;
            if let Some(problem) = read.problem() {
                return Err(format!("Secret {name} {problem}; the mirror names it in credentialSecret"));
            }
            keys.push(&read);
        }
        Ok(Access {
            place: place(copy, keys.credentials(copy), cause),
            names: secret.into_iter().cloned().collect(),
        })
    }

    /// A registry refused what the Secrets hold: they are read again at their next use.
    pub(super) fn distrust(&self, access: &Access) {
        for name in &access.names {
            self.secrets.distrust(name);
        }
    }
}

fn place(image: &Reference, credentials: Vec<Credential>, cause: Cause) -> CopyEndpoint {
    CopyEndpoint { reference: image.clone(), credentials: credentials.into(), cause }
}
