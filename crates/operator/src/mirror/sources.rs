//! With which credentials registries are asked on behalf of mirrors.
//!
//! An image is read with the pull secrets of the Pods that use it, since those are what it can be pulled with; a copy is
//! written, looked at and removed with the Secret that its mirror names.

use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Reference;
use fairlead_plan::routing::SecretName;
use fairlead_plan::usage::Holder;
use fairlead_registry::copy::Place;
use tokio::time::Instant;

use crate::config::Monitoring;
use crate::secrets::{Keys, Read, Secrets};

/// Reading a Secret holds a copy up for no longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Finds credentials.
#[derive(Debug, Clone)]
pub(super) struct Credentials {
    secrets: Secrets,
    monitoring: Arc<Monitoring>,
}

/// The credentials for one place, and the Secrets that they come from.
#[derive(Debug, Clone)]
pub(super) struct Access {
    pub(super) place: Place,
    names: Vec<SecretName>,
}

impl Credentials {
    pub(super) fn new(secrets: Secrets, monitoring: Monitoring) -> Self {
        Self { secrets, monitoring: Arc::new(monitoring) }
    }

    /// To read an image as the Pods would that use it; else with what the configuration names for its registry.
    pub(super) async fn to_read(
        &self,
        image: &Reference,
        holders: &[Holder],
        named: &[SecretName],
    ) -> Access {
        let mut secrets: Vec<SecretName> = Vec::new();
        for holder in holders {
            secrets.extend(
                holder.pull_secrets.iter().map(|name| SecretName {
                    namespace: Arc::clone(&holder.namespace),
                    name: Arc::clone(name),
                }),
            );
        }
        secrets.extend_from_slice(named);
        secrets.dedup();
        let mut access = self.access(image, secrets).await;
        if access.place.credentials.is_empty() {
            let rule = self.monitoring.for_registry(image.host().as_str());
            if let Some(fallback) = rule.fallback_credential_secret {
                let name = SecretName {
                    namespace: fallback.namespace.as_str().into(),
                    name: fallback.name.as_str().into(),
                };
                access = self.access(image, vec![name]).await;
            }
        }
        access
    }

    /// To write, look at or remove a copy. An error names the Secret that cannot be used.
    pub(super) async fn to_write(&self, copy: &Reference, secrets: &[SecretName]) -> Result<Access, String> {
        let mut keys = Vec::with_capacity(secrets.len());
        for name in secrets {
            let read = self.secrets.read(name, Instant::now() + PATIENCE).await;
            if let Some(problem) = read.problem() {
                return Err(format!("Secret {name} {problem}; the mirror names it in credentialSecret"));
            }
            keys.extend(read.keys().cloned());
        }
        let credentials = Keys::lookup(keys.iter().map(Arc::as_ref), &copy.repository());
        Ok(Access { place: place(copy, credentials), names: secrets.to_vec() })
    }

    /// A registry refused what the Secrets hold: they are read again at their next use.
    pub(super) fn distrust(&self, access: &Access) {
        for name in &access.names {
            self.secrets.distrust(name);
        }
    }

    /// Secrets that cannot be read are left out: another Pod's may do, or none may be needed.
    async fn access(&self, image: &Reference, names: Vec<SecretName>) -> Access {
        let mut keys = Vec::with_capacity(names.len());
        for name in &names {
            if let Read::Keys(found) = self.secrets.read(name, Instant::now() + PATIENCE).await {
                keys.push(found);
            }
        }
        let credentials = Keys::lookup(keys.iter().map(Arc::as_ref), &image.repository());
        Access { place: place(image, credentials), names }
    }
}

fn place(image: &Reference, credentials: Vec<Credential>) -> Place {
    Place { reference: image.clone(), credentials: credentials.into() }
}
