//! The client: one for the whole process, so that all callers share connections, tokens, budgets and knowledge.

use std::fmt;
use std::sync::Arc;

use fairlead_domain::cause::Cause;
use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Repository;
use tokio_util::task::TaskTracker;

use crate::auth::Authenticator;
use crate::auth::scope::Right;
use crate::error::Error;
use crate::ops::probe::ProbesUnderWay;
use crate::registry::Registries;
use crate::repository::RepositoryClient;
use crate::settings::Settings;
use crate::transport::resolver::{Resolve, SystemResolver};

/// Clones share everything.
#[derive(Clone)]
pub struct Client {
    pub(crate) state: Arc<ClientState>,
}

#[derive(Debug)]
pub(crate) struct ClientState {
    pub(crate) registries: Registries,
    pub(crate) authenticator: Authenticator,
    pub(crate) probes: ProbesUnderWay,
    /// Tasks that cancel uploads.
    pub(crate) cancellations: TaskTracker,
}

impl Client {
    pub fn new(settings: Settings) -> Self {
        Self::with_resolver(settings, Arc::new(SystemResolver))
    }

    /// A client with another resolver of names.
    pub fn with_resolver(settings: Settings, resolver: Arc<dyn Resolve>) -> Self {
        Self {
            state: Arc::new(ClientState {
                registries: Registries::new(settings, resolver),
                authenticator: Authenticator::default(),
                probes: ProbesUnderWay::default(),
                cancellations: TaskTracker::new(),
            }),
        }
    }

    /// A repository, accessed with these credentials in this order. Without any, access is anonymous; so is reading
    /// what the registry serves without credentials. `right` is the most that will be done, so that one token is
    /// enough.
    pub fn repository(
        &self,
        repository: &Repository,
        credentials: impl Into<Arc<[Credential]>>,
        right: Right,
    ) -> Result<RepositoryClient, Error> {
        self.repository_for(Cause::Administrator, repository, credentials, right)
    }

    /// The same for a cause: connections that tenants cause do not reach every address.
    pub fn repository_for(
        &self,
        cause: Cause,
        repository: &Repository,
        credentials: impl Into<Arc<[Credential]>>,
        right: Right,
    ) -> Result<RepositoryClient, Error> {
        let registry = self.state.registries.get(&repository.host());
        let registry =
            registry.map_err(|problem| problem.during(format!("reach the registry of {repository}")))?;
        let (state, registry) = (Arc::clone(&self.state), registry.for_cause(cause));
        Ok(RepositoryClient::new(state, registry, repository.clone(), credentials.into(), right))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
