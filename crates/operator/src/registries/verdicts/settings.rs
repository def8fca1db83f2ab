//! What the configuration says about asking registries.

use std::num::NonZeroU32;
use std::time::Duration;

use fairlead_domain::cause::Cause;
use fairlead_domain::reference::{Host, HostKey};
use fairlead_plan::verdict_ttl::Ages;
use fairlead_registry::{BreakerSettings, Budget, Client, ProbeOptions, Rate, RegistrySettings, Settings};

use crate::platform::config::{Config, Registry};

/// Verdicts that are remembered at once; some hundred bytes each.
const CAPACITY: usize = 16_384;
/// A probe is given at least this time, also when no caller waits so long: a registry that stays silent is only held to
/// be down after a fair chance to answer.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);
/// Where only the deadline of each caller counts: the longest that an API server waits for us.
pub(super) const UNTOLD_PATIENCE: Duration = Duration::from_secs(5);
/// The time of a liveness check where `routing.activeCheck.timeout` is off.
const UNTOLD_CHECK: Duration = Duration::from_secs(2);
/// However short the configured age, registries are not asked more often.
const SHORTEST_REFRESH: Duration = Duration::from_secs(1);
/// A registry that is down is tried again after 1, 2, 4 and then every 5 seconds: the longest pause bounds how soon it
/// is used again after it is back.
const PATIENCE: BreakerSettings = BreakerSettings {
    first_pause: Duration::from_secs(1),
    longest_pause: Duration::from_secs(5),
    interest: Duration::from_mins(10),
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerdictSettings {
    /// Age at which a verdict in use is refreshed.
    pub refresh: Duration,
    /// How long a caller waits for a probe. `None`: until its own deadline.
    pub timeout: Option<Duration>,
    /// Ask for a tag's digest as well.
    pub resolve_digest: bool,
    /// Verdicts that are remembered at once.
    pub capacity: usize,
}

impl From<&Config> for VerdictSettings {
    fn from(config: &Config) -> Self {
        let check = &config.routing.active_check;
        Self {
            refresh: config.routing.probe.refresh.as_std().max(SHORTEST_REFRESH),
            timeout: check.timeout.as_ref().map(fairlead_domain::duration::Duration::as_std),
            resolve_digest: check.resolve_digest,
            capacity: CAPACITY,
        }
    }
}

impl VerdictSettings {
    /// How long a probe may take.
    pub(super) fn patience(&self) -> Duration {
        self.timeout.map_or(UNTOLD_PATIENCE, |timeout| timeout.max(LEAST_PATIENCE))
    }

    /// How long a liveness check may take.
    pub(super) fn check_patience(&self) -> Duration {
        self.timeout.map_or(UNTOLD_CHECK, |timeout| timeout.max(LEAST_PATIENCE))
    }

    pub(super) fn ages(&self) -> Ages {
        Ages { refresh: self.refresh, patience: self.patience(), check: self.check_patience() }
    }

    pub(super) fn options(&self, cause: Cause) -> ProbeOptions {
        ProbeOptions { check_digest: self.resolve_digest, cause, ..ProbeOptions::default() }
    }
}

/// The client that every function of the operator shares.
pub fn client(config: &Config) -> Client {
    Client::new(settings(config))
}

/// What the configuration says about registries, in the words of their client.
pub fn settings(config: &Config) -> Settings {
    let mut settings = Settings::default();
    settings.default = registry(config.registries.for_others());
    settings.patience = PATIENCE;
    for name in config.registries.hosts.keys() {
        // The configuration was checked, so every name is a host.
        if let Ok(host) = Host::parse(name.as_str()) {
            settings.set(&host, registry(config.registries.for_host(name.as_str())));
        }
    }
    settings
}

fn registry(options: Registry) -> RegistrySettings {
    RegistrySettings {
        plain_http: options.plain_http,
        ca_file: options.ca_file.map(Into::into),
        insecure_skip_verify: options.insecure_skip_verify,
        token_hosts: options.token_hosts,
        budget: Budget {
            rate: Some(Rate::per_second(
                options.requests_per_second,
                NonZeroU32::new(options.burst).unwrap_or(NonZeroU32::MIN),
            )),
            connections: NonZeroU32::new(options.max_connections).unwrap_or(NonZeroU32::MIN),
        },
        ..RegistrySettings::default()
    }
}

/// Of which registries nodes may hold credentials that we do not see.
#[derive(Clone, Debug)]
pub struct NodeTrust {
    default: bool,
    exceptions: Vec<HostKey>,
}

impl From<&Config> for NodeTrust {
    fn from(config: &Config) -> Self {
        let registries = &config.registries;
        let default = registries.for_others().trust_node_credentials;
        let differs = |host: &&HostKey| registries.for_host(host.as_str()).trust_node_credentials != default;
        Self { default, exceptions: registries.hosts.keys().filter(differs).cloned().collect() }
    }
}

impl NodeTrust {
    /// `registries.<host>.trustNodeCredentials`.
    pub fn trust_node_credentials(&self, host: &Host) -> bool {
        // Mostly there are none, and the key of the host need not be made.
        let is_exception = !self.exceptions.is_empty() && self.exceptions.contains(&host.key());
        self.default != is_exception
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text).unwrap().config
    }

    #[test]
    fn every_key_of_a_registry_arrives() {
        let text = "registries:
  default: {requestsPerSecond: 20, burst: 40, maxConnections: 8, tokenHosts: [login.example]}
  Reg.example:5000:
    plainHttp: true
    caFile: /etc/ca.pem
    insecureSkipVerify: true
    tokenHosts: [auth.example]
    requestsPerSecond: 2.5
    burst: 3
    maxConnections: 4
";
        let settings = settings(&config(text));
        let number = |value| NonZeroU32::new(value).unwrap();
        let budget = |per_second, burst, connections| Budget {
            rate: Some(Rate::per_second(per_second, number(burst))),
            connections: number(connections),
        };
        let own = settings.of(&Host::parse("reg.example:5000").unwrap());
        assert_eq!(
            *own,
            RegistrySettings {
                plain_http: true,
                ca_file: Some("/etc/ca.pem".into()),
                insecure_skip_verify: true,
                token_hosts: vec!["auth.example".to_owned()],
                budget: budget(2.5, 3, 4),
                ..RegistrySettings::default()
            }
        );
        let other = settings.of(&Host::parse("docker.io").unwrap());
        assert_eq!(
            (other.budget, other.token_hosts.as_slice()),
            (budget(20.0, 40, 8), &["login.example".to_owned()][..])
        );
    }

    #[test]
    fn the_built_in_settings_are_the_clients_own() {
        assert_eq!(settings(&Config::default()).default, RegistrySettings::default());
    }

    #[test]
    fn a_probe_has_a_fair_chance_however_hasty_its_callers_are() {
        let patience = |text: &str| VerdictSettings::from(&config(text)).patience();
        assert_eq!(patience("{}"), Duration::from_secs(1));
        assert_eq!(patience("routing: {activeCheck: {timeout: 100ms}}"), Duration::from_secs(1));
        assert_eq!(patience("routing: {activeCheck: {timeout: 3s}}"), Duration::from_secs(3));
        assert_eq!(patience("routing: {activeCheck: {timeout: 0s}}"), Duration::from_secs(5));
    }
}
