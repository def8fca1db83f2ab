//! One registry: its address, its connections, its health, and what it asked for when it last wanted to know who we are.

use std::fmt;
use std::sync::{Arc, OnceLock};

use fairlead_domain::cause::Cause;
use fairlead_domain::reference::{Host, HostKey};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use url::Url;

use crate::auth::challenge_cache::ChallengeCache;
use crate::error::Problem;
use crate::limits::budget::Budget;
use crate::limits::circuit_breaker::BreakerSettings;
use crate::limits::server::{Server, Trial};
use crate::lru::LruMap;
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
    /// Blobs moving to or from the registry. A transfer holds a connection and waits for one elsewhere, so the number is
    /// kept below that of the connections.
    pub(crate) transfers: Arc<Semaphore>,
    pub(crate) transfer_capacity: u32,
    /// What the registry's challenges taught, so that the next request comes prepared.
    challenges: Arc<Mutex<ChallengeCache>>,
    token_servers: Arc<TokenServers>,
    /// Where the registry's authorities are read from, if it has some of its own.
    ca_file: Option<CaFile>,
    /// Whether tenants may cause connections to it wherever it is, because an administrator configured it.
    is_configured: bool,
    /// The same registry for requests that tenants cause, made when there is the first.
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
        // Looked at before it is read: a change in between is then noticed at the next look.
        let ca_file = own.ca_file.clone().map(CaFile::new);
        let settled = own.ca_file.is_some() || own.insecure_skip_verify;
        let endpoint = Endpoint::new(host, own.plain_http, settled)
            .ok_or_else(|| Problem::Unreachable(format!("{host} is not an address").into()))?;
        let away = match &own.ca_file {
            Some(path) => trust.with_authorities(path)?,
            None => trust.usual()?,
        };
        let home = if own.insecure_skip_verify { Trust::blind()? } else { away.clone() };
        let transport = Transport::new(Profile {
            home,
            away,
            resolver: Arc::clone(resolver),
            connections: usize::try_from(own.budget.connections.get()).unwrap_or(usize::MAX),
            user_agent: settings.user_agent.clone(),
            direct: host.is_loopback(),
            fenced: false,
        });
        let server = Server::new(own.budget, settings.patience);
        let transfer_capacity = own.budget.for_background().min(size_limits::TRANSFERS);
        Ok(Self {
            settings: own,
            endpoint: Arc::new(endpoint),
            transport,
            server,
            transfers: Arc::new(Semaphore::new(usize::try_from(transfer_capacity).unwrap_or(1))),
            transfer_capacity,
            challenges: Arc::default(),
            token_servers: Arc::new(TokenServers::new(settings)),
            ca_file,
            is_configured: settings.are_set_for(host),
            fenced: OnceLock::new(),
        })
    }

    /// The registry as requests of this cause may use it. Budget, health and quota are the same for all. Connections, and
    /// what the registry's challenges taught, are not: both may come from an address that is off limits for tenants.
    pub(crate) fn for_cause(self: &Arc<Self>, cause: Cause) -> Arc<Self> {
        if cause == Cause::Administrator || self.is_configured {
            return Arc::clone(self);
        }
        let fenced = self.fenced.get_or_init(|| {
            Arc::new(Self {
                settings: self.settings.clone(),
                endpoint: Arc::clone(&self.endpoint),
                transport: self.transport.fenced(),
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

    /// On whose account its connections are made.
    pub(crate) fn cause(&self) -> Cause {
        if self.transport.is_fenced() { Cause::Tenant } else { Cause::Administrator }
    }

    /// Takes over what callers share and what was learnt; only connections and trust are new.
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

    pub(crate) fn trial(&self) -> Trial {
        let ping = |base: &Url| base.join("v2/").unwrap_or_else(|_| base.clone());
        Trial {
            pool: self.transport.unpooled().clone(),
            url: ping(self.endpoint.base()),
            other_scheme: self.endpoint.other_scheme().map(ping),
        }
    }

    /// The server at this address that issues tokens for the registry.
    pub(crate) fn token_server(&self, url: &Url) -> Arc<Server> {
        self.token_servers.get(url)
    }

    pub(crate) fn with_challenges<T>(&self, use_it: impl FnOnce(&mut ChallengeCache) -> T) -> T {
        use_it(&mut self.challenges.lock())
    }
}

/// Servers that issue tokens for one registry and are not that registry, by scheme, host and port.
///
/// Each registry has its own experience of them: it names them, and how they are reached and whom they are believed to be
/// are matters of its settings. What one makes of a server must not be held against another to which the server belongs.
#[derive(Debug)]
struct TokenServers {
    known: Mutex<LruMap<String, Arc<Server>>>,
    budget: Budget,
    patience: BreakerSettings,
}

impl TokenServers {
    fn new(settings: &Settings) -> Self {
        let known = Mutex::new(LruMap::new(size_limits::TOKEN_SERVERS));
        Self { known, budget: settings.default.budget, patience: settings.patience }
    }

    fn get(&self, url: &Url) -> Arc<Server> {
        let origin = url.origin().ascii_serialization();
        let mut known = self.known.lock();
        if let Some(server) = known.get(&origin) {
            return Arc::clone(server);
        }
        let server = Server::new(self.budget, self.patience);
        known.insert(origin, Arc::clone(&server));
        server
    }
}

impl From<TrustError> for Problem {
    fn from(error: TrustError) -> Self {
        Self::Misconfigured(error.to_string().into())
    }
}

/// The registries in use. All spellings of a host share everything of its registry.
pub(crate) struct Registries {
    settings: Settings,
    trust: Trust,
    resolver: Arc<dyn Resolve>,
    known: Mutex<LruMap<HostKey, Arc<Registry>>>,
}

impl Registries {
    pub(crate) fn new(settings: Settings, resolver: Arc<dyn Resolve>) -> Self {
        Self {
            settings,
            trust: Trust::default(),
            resolver,
            known: Mutex::new(LruMap::new(size_limits::REGISTRIES)),
        }
    }

    /// A registry whose settings cannot be used is not remembered: a repaired file works at the next call.
    pub(crate) fn get(&self, host: &Host) -> Result<Arc<Registry>, Problem> {
        let name = host.key();
        let lock = || self.known.lock();
        let found = lock().get(&name).map(Arc::clone);
        if let Some(former) = found {
            if !former.ca_file.as_ref().is_some_and(CaFile::has_changed) {
                return Ok(former);
            }
            match Registry::new(host, &self.settings, &self.trust, &self.resolver) {
                Ok(made) => {
                    let made = Arc::new(made.in_place_of(&former));
                    lock().insert(name, Arc::clone(&made));
                    return Ok(made);
                }
                Err(problem) => {
                    tracing::warn!(registry = %host, %problem, "the authorities known so far stay in use");
                    return Ok(former);
                }
            }
        }
        // Made outside the lock, since it may read files; if two callers do so at once, the first one's is kept.
        let made = Arc::new(Registry::new(host, &self.settings, &self.trust, &self.resolver)?);
        let mut known = lock();
        if let Some(registry) = known.get(&name) {
            return Ok(Arc::clone(registry));
        }
        known.insert(name, Arc::clone(&made));
        Ok(made)
    }

    /// A registry that was used before.
    pub(crate) fn find(&self, host: &Host) -> Option<Arc<Registry>> {
        let name = host.key();
        self.known.lock().get(&name).cloned()
    }

    pub(crate) fn remove(&self, name: &HostKey) {
        self.known.lock().remove(name);
    }

    /// The registries in use, by name.
    pub(crate) fn all(&self) -> Vec<(HostKey, Arc<Registry>)> {
        let known = self.known.lock();
        known.iter().map(|(name, registry)| (name.clone(), Arc::clone(registry))).collect()
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
}
