//! How often, and how, images in use are looked at upstream: one rule for all registries, with exceptions by host.

use std::collections::BTreeMap;

use fairlead_domain::duration::Duration;
use fairlead_domain::reference::HostKey;
use fairlead_plan::routing;

use super::types::seconds;
use super::values::choice;

#[derive(Debug, Clone, PartialEq)]
pub struct Monitoring {
    pub default: RegistryWatch,
    /// By host (`docker.io`, `quay.io`, `registry.example.com:5000`).
    pub items: BTreeMap<HostKey, WatchOverride>,
}

/// The rule for one registry.
#[derive(Debug, Clone, PartialEq)]
pub struct RegistryWatch {
    pub method: CheckMethod,
    pub interval: Duration,
    /// At least 1.
    pub max_per_interval: u32,
    /// None: no limit.
    pub timeout: Option<Duration>,
    pub resolve_digest: bool,
    pub fallback_credential_secret: Option<SecretName>,
}

/// What one registry does differently; what is none here is as in the default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WatchOverride {
    pub method: Option<CheckMethod>,
    pub interval: Option<Duration>,
    pub max_per_interval: Option<u32>,
    pub timeout: Option<Duration>,
    pub resolve_digest: Option<bool>,
    pub fallback_credential_secret: Option<SecretName>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckMethod {
    Head,
    Get,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecretName {
    pub name: String,
    pub namespace: String,
}

impl RegistryWatch {
    /// The Secret to use where no other opens the registry.
    pub fn fallback(&self) -> Option<routing::SecretName> {
        let SecretName { name, namespace } = self.fallback_credential_secret.as_ref()?;
        Some(routing::SecretName { namespace: namespace.as_str().into(), name: name.as_str().into() })
    }
}

impl Monitoring {
    /// The rule for a registry, whatever spelling of its host is given.
    pub fn for_registry(&self, host: &str) -> RegistryWatch {
        let mut rule = self.default.clone();
        let Some(own) = self.items.get(&HostKey::of(host)) else {
            return rule;
        };
        let WatchOverride {
            method,
            interval,
            max_per_interval,
            timeout,
            resolve_digest,
            fallback_credential_secret,
        } = own.clone();
        rule.method = method.unwrap_or(rule.method);
        rule.interval = interval.unwrap_or(rule.interval);
        rule.max_per_interval = max_per_interval.unwrap_or(rule.max_per_interval);
        rule.timeout = timeout.or(rule.timeout);
        rule.resolve_digest = resolve_digest.unwrap_or(rule.resolve_digest);
        rule.fallback_credential_secret = fallback_credential_secret.or(rule.fallback_credential_secret);
        rule
    }
}

impl Default for Monitoring {
    fn default() -> Self {
        // Docker Hub counts what anonymous users ask for; six looks an hour leave nearly all of it to the nodes.
        let docker_hub = WatchOverride {
            interval: Some(seconds(3600)),
            max_per_interval: Some(6),
            ..WatchOverride::default()
        };
        Self {
            default: RegistryWatch::default(),
            items: BTreeMap::from([(HostKey::of("docker.io"), docker_hub)]),
        }
    }
}

impl Default for RegistryWatch {
    fn default() -> Self {
        Self {
            method: CheckMethod::Head,
            interval: seconds(3 * 3600),
            max_per_interval: 25,
            timeout: None,
            resolve_digest: false,
            fallback_credential_secret: None,
        }
    }
}

choice!(CheckMethod: "HEAD" is Head, "GET" is Get);
