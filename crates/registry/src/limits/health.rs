//! Whether a registry is down, for those who must not wait to be told.
//!
//! The breaker's own state changes with every call and is behind a lock. What others act on changes rarely: that a
//! registry went down, why, and when it came back.

use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::reference::{Host, HostKey};
use fairlead_domain::verdict::Verdict;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::client::Client;
use crate::error::Problem;
use crate::limits::server::Server;

#[derive(Debug, Default)]
pub(crate) struct HealthSignal {
    told: watch::Sender<Told>,
}

#[derive(Debug, Default)]
struct Told {
    /// What callers get to hear while it is down.
    down: Option<Verdict>,
    recovered: Option<Instant>,
}

impl HealthSignal {
    /// Takes note of the state of things. Called often, and usually nothing has changed.
    pub(crate) fn tell(&self, is_down: bool, cause: Option<&Problem>) {
        if self.told.borrow().down.is_some() == is_down {
            return;
        }
        self.told.send_modify(|told| {
            if is_down {
                let unknown = Problem::Unreachable("it did not answer lately".into());
                told.down = Some(cause.unwrap_or(&unknown).verdict());
            } else {
                told.down = None;
                told.recovered = Some(Instant::now());
            }
        });
    }
}

/// The health of one registry, as far as it is known. Clones share it.
#[derive(Clone, Debug)]
pub struct RegistryHealth {
    pub(crate) server: Arc<Server>,
}

impl RegistryHealth {
    /// What every caller is told while the registry is down; `None` when it is not known to be down. Asking counts as
    /// interest in the registry, so that trials go on.
    pub fn down(&self) -> Option<Verdict> {
        let verdict = self.server.vitals.told.borrow().down.clone()?;
        // An answer from here spares the caller the call that would have shown interest.
        self.server.check_alive().is_err().then_some(verdict)
    }

    pub fn is_down(&self) -> bool {
        self.server.vitals.told.borrow().down.is_some()
    }

    /// How long nothing was asked of the registry. Its own trials do not count.
    pub fn idle(&self, now: Instant) -> Duration {
        self.server.idle(now)
    }

    /// When the registry was last found to be back after an outage.
    pub fn recovered(&self) -> Option<Instant> {
        self.server.vitals.told.borrow().recovered
    }

    /// Returns once the registry is down, with what callers are told.
    pub async fn goes_down(&self) -> Verdict {
        let mut news = self.server.vitals.told.subscribe();
        // The sender lives as long as the server, which is held here.
        let told = news.wait_for(|told| told.down.is_some()).await.ok().and_then(|told| told.down.clone());
        match told {
            Some(verdict) => verdict,
            None => std::future::pending().await,
        }
    }
}

impl Client {
    /// The health of a registry, also of one that was never used. `None`: its settings cannot be used.
    pub fn health(&self, host: &Host) -> Option<RegistryHealth> {
        let registry = self.state.registries.get(host).ok()?;
        Some(RegistryHealth { server: Arc::clone(&registry.server) })
    }

    /// What every caller is told about a registry that is known to be down, without asking it anything.
    pub fn is_down(&self, host: &Host) -> Option<Verdict> {
        let registry = self.state.registries.find(host)?;
        RegistryHealth { server: Arc::clone(&registry.server) }.down()
    }

    /// Forgets a registry: its connections are closed, its trials end, and what was learnt about it is lost. Calls that
    /// are under way are not affected.
    pub fn forget(&self, host: &HostKey) {
        self.state.registries.remove(host);
    }

    /// The registries in use and their health.
    pub fn healths(&self) -> Vec<(HostKey, RegistryHealth)> {
        let all = self.state.registries.all().into_iter();
        all.map(|(name, registry)| (name, RegistryHealth { server: Arc::clone(&registry.server) })).collect()
    }
}
