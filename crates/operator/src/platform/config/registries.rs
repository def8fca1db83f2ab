//! How registries are talked to: one set of options for all, with exceptions by host.

use std::collections::BTreeMap;

use fairlead_domain::reference::{Host, HostKey};

/// Options of all registries.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Registries {
    /// What is none here is as built in.
    pub default: RegistryOptions,
    /// By host; what is none here is as in `default`.
    pub hosts: BTreeMap<HostKey, RegistryOptions>,
}

/// Options as written: none means not written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RegistryOptions {
    pub plain_http: Option<bool>,
    pub ca_file: Option<String>,
    pub insecure_skip_verify: Option<bool>,
    pub token_hosts: Option<Vec<String>>,
    pub trust_node_credentials: Option<bool>,
    pub requests_per_second: Option<f64>,
    pub burst: Option<u32>,
    pub max_connections: Option<u32>,
}

/// The options that hold for one registry.
#[derive(Debug, Clone, PartialEq)]
pub struct Registry {
    pub plain_http: bool,
    pub ca_file: Option<String>,
    pub insecure_skip_verify: bool,
    /// Hosts that may be sent a password besides the registry's own.
    pub token_hosts: Vec<String>,
    /// Nodes may hold credentials that Fairlead does not see, so a refusal proves nothing.
    pub trust_node_credentials: bool,
    pub requests_per_second: f64,
    pub burst: u32,
    pub max_connections: u32,
}

impl Registries {
    /// The options that hold for a registry, whatever spelling of its host is given.
    pub fn for_host(&self, host: &str) -> Registry {
        let mut options = self.for_others();
        if let Some(own) = self.hosts.get(&HostKey::of(host)) {
            options.overlay(own);
        }
        options
    }

    /// The options that hold for a registry without options of its own.
    pub fn for_others(&self) -> Registry {
        let mut options = Registry::default();
        options.overlay(&self.default);
        options
    }
}

impl Registry {
    fn overlay(&mut self, written: &RegistryOptions) {
        let RegistryOptions {
            plain_http,
            ca_file,
            insecure_skip_verify,
            token_hosts,
            trust_node_credentials,
            requests_per_second,
            burst,
            max_connections,
        } = written.clone();
        self.plain_http = plain_http.unwrap_or(self.plain_http);
        self.ca_file = ca_file.or(self.ca_file.take());
        self.insecure_skip_verify = insecure_skip_verify.unwrap_or(self.insecure_skip_verify);
        if let Some(hosts) = token_hosts {
            self.token_hosts = hosts;
        }
        self.trust_node_credentials = trust_node_credentials.unwrap_or(self.trust_node_credentials);
        self.requests_per_second = requests_per_second.unwrap_or(self.requests_per_second);
        self.burst = burst.unwrap_or(self.burst);
        self.max_connections = max_connections.unwrap_or(self.max_connections);
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            plain_http: false,
            ca_file: None,
            insecure_skip_verify: false,
            token_hosts: Vec::new(),
            trust_node_credentials: true,
            requests_per_second: 50.0,
            burst: 100,
            max_connections: 16,
        }
    }
}

/// A registry's host as it stands before the first `/` of an image reference, with a port if it has one.
pub(super) fn check_host(host: &str) -> Result<(), String> {
    if let Some((_, rest)) = host.split_once("://") {
        let bare = rest.split('/').next().unwrap_or_default();
        return Err(format!("a registry is named without a scheme: write `{bare}`"));
    }
    if let Some((bare, _)) = host.split_once('/') {
        return Err(format!("a registry is named without a path: write `{bare}`"));
    }
    let lower = host.to_ascii_lowercase();
    if matches!(&*lower, "index.docker.io" | "registry-1.docker.io" | "registry.hub.docker.com") {
        return Err("Docker Hub is known as `docker.io`: write that".to_owned());
    }
    match Host::parse(host) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "{error}; write it as in an image reference, such as `quay.io` or `reg.example.com:5000`"
        )),
    }
}
