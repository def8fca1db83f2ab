//! Registry credentials from Kubernetes Secrets, found for an image by the kubelet's own rules.
//!
//! What the kubelet would try, in the order it would try it, is what must be tried here: a copy that our credentials
//! can read and the node's cannot is of no use to a Pod. A test runs the kubelet's code beside this.

mod config;
mod credential;
mod glob;
mod joined;
mod scope;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use self::config::ConfigError;
use self::config::Login;
pub use self::credential::{Credential, CredentialId, IdentityKey};
pub use self::glob::matches as glob_matches;
use self::scope::CredentialScope;
pub use self::scope::shown as shown_place;
use crate::reference::Repository;

/// The kinds of Secret that hold registry credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SecretKind {
    /// The configuration file of current docker clients.
    DockerConfigJson,
    /// The same entries without the object around them, as old clients wrote them.
    DockerCfg,
}

impl SecretKind {
    /// By the Secret's `type`; other types hold no registry credentials.
    pub fn of_type(kind: &str) -> Option<Self> {
        match kind {
            "kubernetes.io/dockerconfigjson" => Some(Self::DockerConfigJson),
            "kubernetes.io/dockercfg" => Some(Self::DockerCfg),
            _ => None,
        }
    }

    /// The key of the Secret's data that holds the configuration.
    pub const fn data_key(self) -> &'static str {
        match self {
            Self::DockerConfigJson => ".dockerconfigjson",
            Self::DockerCfg => ".dockercfg",
        }
    }
}

/// Key of Docker Hub's credentials in docker configurations.
const DOCKER_HUB_KEY: &[u8] = b"index.docker.io";

/// Credentials by scope, in the order in which they were added.
#[derive(Debug)]
pub struct Keyring {
    identity: IdentityKey,
    entries: BTreeMap<Vec<u8>, ScopedCredentials>,
}

#[derive(Debug)]
struct ScopedCredentials {
    /// `None` when the key, read again, is no address: it then matches nothing but is still found by name.
    scope: Option<CredentialScope>,
    credentials: Vec<Credential>,
}

impl Keyring {
    /// The key makes the identities of credentials meaningless outside this process.
    pub fn new(identity: IdentityKey) -> Self {
        Self { identity, entries: BTreeMap::new() }
    }

    /// Adds what a Secret holds. A broken configuration changes nothing. Empty data is no configuration at all.
    pub fn add(&mut self, kind: SecretKind, data: &[u8]) -> Result<(), ConfigError> {
        if data.is_empty() {
            return Ok(());
        }
        for (location, login) in config::read(kind, data)? {
            self.add_entry(&location, login);
        }
        Ok(())
    }

    /// Adds one user and password for a registry or repository, written as in a docker configuration:
    /// `host[:port][/path]`, with or without a scheme. `false` if it cannot be read.
    pub fn add_login(&mut self, location: &str, username: &[u8], password: &[u8]) -> bool {
        self.add_entry(location, Login::new(username, password))
    }

    fn add_entry(&mut self, location: &str, login: Login) -> bool {
        let Some(key) = scope::key(location) else {
            return false;
        };
        let credential = Credential::new(&self.identity, login);
        let entry = self.entries.entry(key);
        let scope = CredentialScope::parse(entry.key());
        entry
            .or_insert_with(|| ScopedCredentials { scope, credentials: Vec::new() })
            .credentials
            .push(credential);
        true
    }

    /// Every credential for the image, in the order of trial: more specific scopes first, and for one scope in the
    /// order added. Without any, and only then, access is anonymous.
    pub fn lookup(&self, image: &Repository) -> Vec<Credential> {
        let target = CredentialScope::parse(image.as_str().as_bytes());
        let mut found: Vec<Credential> = Vec::new();
        if let Some(target) = target {
            // Backwards, a longer path of a host comes before a shorter one.
            for entry in self.entries.values().rev() {
                if entry.scope.as_ref().is_some_and(|scope| scope.covers(&target)) {
                    found.extend(entry.credentials.iter().cloned());
                }
            }
        }
        if found.is_empty() && is_default_registry(image.host_text()) {
            found.extend(
                self.entries.get(DOCKER_HUB_KEY).into_iter().flat_map(|entry| entry.credentials.clone()),
            );
        }
        found
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Docker Hub, and any host that only looks like a namespace: the kubelet does not distinguish them.
fn is_default_registry(host: &str) -> bool {
    matches!(host, "docker.io" | "index.docker.io") || !host.contains(['.', ':'])
}
