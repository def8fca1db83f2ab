//! Settings of the client and of single registries.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use fairlead_domain::reference::{Host, HostKey};
use hyper::header::{HeaderMap, HeaderValue};

use crate::http_client::ClientCertificate;
use crate::limits::budget::Budget;
use crate::limits::circuit_breaker::BreakerSettings;
use crate::limits::rate::Rate;
use crate::transport::connect::CONNECT_TIMEOUT;

/// Settings of one registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrySettings {
    /// Use plain HTTP for a host that is not loopback.
    pub plain_http: bool,
    /// Use plain HTTP if the host does not speak TLS, as runtimes do with registries that are called insecure. An
    /// attacker on the path can then switch encryption off.
    pub plain_http_fallback: bool,
    /// Certificate authorities to trust besides the system's, PEM.
    pub ca_file: Option<PathBuf>,
    /// The same as a text, in place of the file.
    pub ca: Option<Vec<u8>>,
    pub client_certificate: Option<ClientCertificate>,
    /// Sent with every request to the registry itself, in place of headers of the same name.
    pub headers: HeaderMap,
    /// Accept any certificate of the registry's own host.
    pub insecure_skip_verify: bool,
    /// Token servers, with or without port, that may receive this registry's passwords.
    pub token_hosts: Vec<String>,
    pub budget: Budget,
}

impl Default for RegistrySettings {
    fn default() -> Self {
        Self {
            plain_http: false,
            plain_http_fallback: false,
            ca_file: None,
            ca: None,
            client_certificate: None,
            headers: HeaderMap::new(),
            insecure_skip_verify: false,
            token_hosts: Vec::new(),
            budget: Budget { rate: Some(Rate::per_second(50.0, number(100))), connections: number(16) },
        }
    }
}

fn number(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap_or(NonZeroU32::MIN)
}

/// Settings of the whole client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// For registries without settings of their own.
    pub default: RegistrySettings,
    registries: HashMap<HostKey, RegistrySettings>,
    pub patience: BreakerSettings,
    /// For opening a connection, TLS included.
    pub connect_timeout: Duration,
    pub user_agent: HeaderValue,
    /// Whether some addresses are off limits where tenants are the cause. Not for a person, who reaches what they
    /// reach.
    pub fenced: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            default: RegistrySettings::default(),
            registries: HashMap::new(),
            patience: BreakerSettings::default(),
            connect_timeout: CONNECT_TIMEOUT,
            user_agent: HeaderValue::from_static(concat!("fairlead/", env!("CARGO_PKG_VERSION"))),
            fenced: true,
        }
    }
}

impl Settings {
    /// Sets the settings of a registry, for every spelling of its host.
    pub fn set(&mut self, host: &Host, settings: RegistrySettings) {
        self.registries.insert(host.key(), settings);
    }

    /// Whether a registry has settings of its own.
    pub fn are_set_for(&self, host: &Host) -> bool {
        self.registries.contains_key(&host.key())
    }

    pub fn of(&self, host: &Host) -> &RegistrySettings {
        self.registries.get(&host.key()).unwrap_or(&self.default)
    }
}
