//! Whether a registry is down, readable without taking the circuit breaker's lock.

use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::keyring::CredentialId;
use fairlead_domain::reference::{Host, HostKey};
use fairlead_domain::verdict::Verdict;
use tokio::sync::watch;
use tokio::time::Instant;

use super::server::Server;
use crate::client::Client;
use crate::error::Problem;

/// Changes only when a circuit opens or closes.
#[derive(Debug, Default)]
pub(crate) struct HealthSignal(watch::Sender<HealthState>);

#[derive(Debug, Default)]
struct HealthState {
    /// The verdict on all images while the registry is down.
    down: Option<Verdict>,
    recovered: Option<Instant>,
}

impl HealthSignal {
    /// Publishes the cause of an outage, or that there is none.
    pub(crate) fn publish(&self, cause: Option<&Problem>) {
        self.0.send_if_modified(|state| {
            let changes = state.down.is_some() != cause.is_some();
            if changes {
                state.down = cause.map(Problem::verdict);
                state.recovered = if cause.is_none() { Some(Instant::now()) } else { state.recovered };
            }
            changes
        });
    }
}

/// The health of one registry. Clones share it.
#[derive(Clone, Debug)]
pub struct RegistryHealth {
    pub(crate) server: Arc<Server>,
}

impl RegistryHealth {
    /// The verdict on all images while the registry is down; `None` when it is not known to be down. Counts as interest
    /// in the registry, so that trials go on.
    pub fn down(&self) -> Option<Verdict> {
        let verdict = self.server.health.0.borrow().down.clone()?;
        // The caller is spared the call that would have shown its interest.
        self.server.check_circuit().is_err().then_some(verdict)
    }

    pub fn is_down(&self) -> bool {
        self.server.health.0.borrow().down.is_some()
    }

    /// Until when the registry wants no requests of an account, or without one, as it said itself.
    pub fn held_until(&self, account: Option<CredentialId>, now: Instant) -> Option<Instant> {
        self.server.held_until(account, now)
    }

    /// How long nothing was asked of the registry. Trials do not count.
    pub fn idle(&self, now: Instant) -> Duration {
        self.server.idle(now)
    }

    /// When the registry was last found to be back after an outage.
    pub fn recovered(&self) -> Option<Instant> {
        self.server.health.0.borrow().recovered
    }

    /// Returns once the registry is down, with the verdict on all its images.
    pub async fn goes_down(&self) -> Verdict {
        let mut state = self.server.health.0.subscribe();
        // The sender lives as long as the server, which is held here.
        let down =
            state.wait_for(|state| state.down.is_some()).await.ok().and_then(|state| state.down.clone());
        match down {
            Some(verdict) => verdict,
            None => std::future::pending().await,
        }
    }
}

impl Client {
    /// The health of a registry, also of one that was never used. `None` if its settings cannot be used.
    pub fn health(&self, host: &Host) -> Option<RegistryHealth> {
        let registry = self.state.registries.get(host).ok()?;
        Some(RegistryHealth { server: Arc::clone(&registry.server) })
    }

    /// The verdict on all images of a registry that is known to be down. Nothing is sent.
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
