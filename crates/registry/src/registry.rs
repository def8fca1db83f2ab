//! One registry: its address, connections, limits, and what its challenges taught.

use std::fmt;
use std::sync::{Arc, OnceLock};

use fairlead_domain::cause::Cause;
use fairlead_domain::reference::{Host, HostKey};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use url::Url;

use crate::auth::challenge_cache::ChallengeCache;
use crate::error::Problem;
use crate::http_client::ClientCertificate;
use crate::limits::budget::Budget;
use crate::limits::circuit_breaker::BreakerSettings;
use crate::limits::server::{Server, Trial, TrialTarget};
use crate::lru::LruCache;
use crate::settings::{RegistrySettings, Settings};
use crate::size_limits;
use crate::transport::ca_file::CaFile;
use crate::transport::endpoint::Endpoint;
use crate::transport::resolver::Resolve;
use crate::transport::tls::{Trust, TrustError};
use crate::transport::{Profile, Transport};

#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) settings: RegistrySettings,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) transport: Transport,
    pub(crate) server: Arc<Server>,
    /// Finds out whether the registry is alive, over this registry's own connections.
    pub(crate) trial: Arc<Trial>,
    /// Blobs moving to or from the registry. A transfer holds a connection while it waits for one at another registry,
    /// so there are fewer transfers than connections.
    pub(crate) transfers: Arc<Semaphore>,
    pub(crate) transfer_capacity: u32,
    challenges: Arc<Mutex<ChallengeCache>>,
    token_servers: Arc<TokenServers>,
    /// Set if the registry has certificate authorities of its own.
    ca_file: Option<CaFile>,
    /// Configured by an administrator: tenants may cause connections to it at any address.
    is_configured: bool,
    /// The same registry for requests that tenants cause.
    fenced: OnceLock<Arc<Self>>,
}

impl Registry {
    fn new(
        host: &Host,
        settings: &Settings,
        trust: &Trust,
        resolver: &Arc<dyn Resolve>,
    ) -> Result<Self, Problem> {
        let own = settings.of(host).clone();
        // Stamped before it is read, so that a change in between is noticed later.
        let ca_file = own.ca_file.clone().map(CaFile::new);
        let is_settled = own.ca_file.is_some() || own.ca.is_some() || own.insecure_skip_verify;
        let may_fall_back = own.plain_http_fallback || (host.is_loopback() && !is_settled);
        let endpoint = Endpoint::new(host, own.plain_http, may_fall_back)
            .ok_or_else(|| Problem::Unreachable(format!("{host} is not an address").into()))?;
        let away = match (&own.ca, &own.ca_file) {
            (Some(text), _) => trust.with_pem(text)?,
            (None, Some(path)) => trust.with_authorities(path)?,
            (None, None) => trust.usual()?,
        };
        let mut home = if own.insecure_skip_verify { Trust::blind()? } else { away.clone() };
        if let Some(ClientCertificate { chain, key }) = &own.client_certificate {
            Trust::identify(&mut home, chain, key)?;
        }
        let transport = Transport::new(Profile {
            home,
            away,
            resolver: Arc::clone(resolver),
            connections: usize::try_from(own.budget.connections.get()).unwrap_or(usize::MAX),
            connect_timeout: settings.connect_timeout,
            user_agent: settings.user_agent.clone(),
            direct: host.is_loopback(),
            fenced: false,
            fences_redirects: false,
        });
        let endpoint = Arc::new(endpoint);
        let transfer_capacity = own.budget.for_background().min(size_limits::TRANSFERS);
        Ok(Self {
            server: Server::new(own.budget, settings.patience),
            settings: own,
            trial: trial(&transport, &endpoint),
            endpoint,
            transport,
            transfers: Arc::new(Semaphore::new(usize::try_from(transfer_capacity).unwrap_or(1))),
            transfer_capacity,
            challenges: Arc::default(),
            token_servers: Arc::new(TokenServers::new(settings)),
            ca_file,
            is_configured: !settings.fenced || settings.are_set_for(host),
            fenced: OnceLock::new(),
        })
    }

    /// The registry for requests of this cause. Budget, circuit breaker and quota are shared by all causes. Connections
    /// and challenges are not, because they may come from an address that is off limits for tenants.
    pub(crate) fn for_cause(self: &Arc<Self>, cause: Cause) -> Arc<Self> {
        if cause == Cause::Administrator || self.is_configured {
            return Arc::clone(self);
        }
        let fenced = self.fenced.get_or_init(|| {
            let transport = self.transport.fenced();
            Arc::new(Self {
                settings: self.settings.clone(),
                endpoint: Arc::clone(&self.endpoint),
                trial: trial(&transport, &self.endpoint),
                transport,
                server: Arc::clone(&self.server),
                transfers: Arc::clone(&self.transfers),
                transfer_capacity: self.transfer_capacity,
                challenges: Arc::default(),
                token_servers: Arc::clone(&self.token_servers),
                ca_file: None,
                is_configured: false,
                fenced: OnceLock::new(),
            })
        });
        Arc::clone(fenced)
    }

    /// The cause of its connections.
    pub(crate) fn cause(&self) -> Cause {
        if self.transport.is_fenced() { Cause::Tenant } else { Cause::Administrator }
    }

    /// Takes over limits and knowledge; connections and trust are new.
    fn in_place_of(self, former: &Self) -> Self {
        former.server.forget_failures();
        Self {
            server: Arc::clone(&former.server),
            transfers: Arc::clone(&former.transfers),
            challenges: Arc::clone(&former.challenges),
            ..self
        }
    }

    /// The address of an API path such as `team/app/tags/list`.
    pub(crate) fn api(&self, path: &str) -> Result<Url, Problem> {
        let base = self.endpoint.base();
        base.join(&format!("v2/{path}")).map_err(|error| Problem::malformed(error.to_string()))
    }

    /// The server at this address that issues tokens for the registry.
    pub(crate) fn token_server(&self, url: &Url) -> Arc<Server> {
        self.token_servers.get(url)
    }

    pub(crate) fn challenges<T>(&self, access: impl FnOnce(&mut ChallengeCache) -> T) -> T {
        access(&mut self.challenges.lock())
    }
}

fn trial(transport: &Transport, endpoint: &Arc<Endpoint>) -> Arc<Trial> {
    let (pool, target) = (transport.unpooled().clone(), TrialTarget::Registry(Arc::clone(endpoint)));
    Arc::new(Trial { pool, target })
}

/// Token servers of one registry other than itself, by scheme, host and port.
///
/// Each registry has its own: it names them, and its settings decide how they are reached. Failures that one registry
/// causes at a server must not count against another that uses the same server.
#[derive(Debug)]
struct TokenServers {
    known: LruCache<String, Arc<Server>>,
    budget: Budget,
    breaker: BreakerSettings,
}

impl TokenServers {
    fn new(settings: &Settings) -> Self {
        let known = LruCache::new(size_limits::TOKEN_SERVERS);
        Self { known, budget: settings.default.budget, breaker: settings.patience }
    }

    fn get(&self, url: &Url) -> Arc<Server> {
        let origin = url.origin().ascii_serialization();
        self.known.get_or_insert_with(&origin, || Server::new(self.budget, self.breaker))
    }
}

impl From<TrustError> for Problem {
    fn from(error: TrustError) -> Self {
        Self::Misconfigured(error.to_string().into())
    }
}

/// The registries in use. All spellings of a host are one registry.
pub(crate) struct Registries {
    settings: Settings,
    trust: Trust,
    resolver: Arc<dyn Resolve>,
    known: LruCache<HostKey, Arc<Registry>>,
}

impl Registries {
    pub(crate) fn new(settings: Settings, resolver: Arc<dyn Resolve>) -> Self {
        let known = LruCache::new(size_limits::REGISTRIES);
        Self { settings, trust: Trust::default(), resolver, known }
    }

    /// A registry whose settings cannot be used is not kept: a repaired file works at the next call.
    pub(crate) fn get(&self, host: &Host) -> Result<Arc<Registry>, Problem> {
        let name = host.key();
        let create = || Registry::new(host, &self.settings, &self.trust, &self.resolver);
        let Some(former) = self.known.get(&name) else {
            // Made without the cache's lock, since it may read files. Of two that are made at once the first is kept.
            let made = Arc::new(create()?);
            return Ok(self.known.get_or_insert_with(&name, || made));
        };
        if !former.ca_file.as_ref().is_some_and(CaFile::has_changed) {
            return Ok(former);
        }
        match create() {
            Ok(made) => {
                let made = Arc::new(made.in_place_of(&former));
                self.known.insert(name, Arc::clone(&made));
                Ok(made)
            }
            Err(problem) => {
                tracing::warn!(registry = %host, %problem, "the authorities known so far stay in use");
                Ok(former)
            }
        }
    }

    /// A registry that was used before.
    pub(crate) fn find(&self, host: &Host) -> Option<Arc<Registry>> {
        self.known.get(&host.key())
    }

    pub(crate) fn remove(&self, name: &HostKey) {
        self.known.remove(name);
    }

    /// The registries in use, by name.
    pub(crate) fn all(&self) -> Vec<(HostKey, Arc<Registry>)> {
        self.known.all()
    }

    pub(crate) fn settings_of(&self, host: &Host) -> &RegistrySettings {
        self.settings.of(host)
    }
}

impl fmt::Debug for Registries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registries").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::resolver::SystemResolver;

    #[test]
    fn every_spelling_of_a_host_is_one_registry_with_its_settings() {
        let host = |text: &str| Host::parse(text).unwrap();
        let mut settings = Settings::default();
        let own =
            RegistrySettings { token_hosts: vec!["auth.example".to_owned()], ..RegistrySettings::default() };
        settings.set(&host("Reg.local:443"), own);
        let registries = Registries::new(settings, Arc::new(SystemResolver));
        let first = registries.get(&host("REG.local")).unwrap();
        for spelling in ["reg.local", "reg.local:443", "Reg.Local:0443"] {
            let registry = registries.get(&host(spelling)).unwrap();
            assert!(Arc::ptr_eq(&first, &registry), "{spelling}: connections, budget and breaker are shared");
            assert!(registries.find(&host(spelling)).is_some(), "{spelling}");
        }
        assert_eq!(first.settings.token_hosts, ["auth.example"]);
        assert!(!Arc::ptr_eq(&first, &registries.get(&host("reg.local:80")).unwrap()));
        let hub = registries.get(&host("DOCKER.io:443")).unwrap();
        assert_eq!(hub.endpoint.base().as_str(), "https://registry-1.docker.io/");
        assert!(Arc::ptr_eq(&hub, &registries.get(&host("docker.io")).unwrap()));
    }

    #[test]
    fn only_loopback_and_what_is_called_insecure_falls_back_to_plain_http() {
        let mut settings = Settings::default();
        let insecure = RegistrySettings {
            plain_http_fallback: true,
            insecure_skip_verify: true,
            ..RegistrySettings::default()
        };
        settings.set(&Host::parse("insecure.example").unwrap(), insecure);
        let strict = RegistrySettings { insecure_skip_verify: true, ..RegistrySettings::default() };
        settings.set(&Host::parse("localhost:5001").unwrap(), strict);
        let registries = Registries::new(settings, Arc::new(SystemResolver));
        let falls_back =
            |host: &str| registries.get(&Host::parse(host).unwrap()).unwrap().endpoint.fall_back();
        for host in ["localhost:5000", "127.0.0.1:5000", "[::1]:5000", "r.localhost", "insecure.example"] {
            assert!(falls_back(host), "{host}");
        }
        for host in ["r.example.com", "10.0.0.1:5000", "localhost:5001"] {
            assert!(!falls_back(host), "{host}");
        }
    }
}
