//! The client: one for the whole process, so that every capability shares connections, tokens, budgets and knowledge.

use std::{fmt, sync::Arc};

use fairlead_domain::{cause::Cause, keyring::Credential, reference::Repository};
use tokio_util::task::TaskTracker;

use crate::{
    auth::{Authenticator, scope::Right},
    error::Error,
    probe::flight::Flights,
    registry::Registries,
    remote::Remote,
    settings::Settings,
    transport::resolver::{Resolve, SystemResolver},
};

/// Clones share everything.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) registries: Registries,
    pub(crate) authenticator: Authenticator,
    pub(crate) flights: Flights,
    /// Those who tell registries that an upload is given up.
    pub(crate) farewells: TaskTracker,
}

impl Client {
    pub fn new(settings: Settings) -> Self {
        Self::with_resolver(settings, Arc::new(SystemResolver))
    }

    /// A client that resolves names in a way of its own.
    pub fn with_resolver(settings: Settings, resolver: Arc<dyn Resolve>) -> Self {
        Self {
            shared: Arc::new(Shared {
                registries: Registries::new(settings, resolver),
                authenticator: Authenticator::default(),
                flights: Flights::default(),
                farewells: TaskTracker::new(),
            }),
        }
    }

    /// A repository as the holder of these credentials may use it. They are tried in order; without any, access is
    /// anonymous, and so is reading what the registry serves to anybody. `right` is the most that will be done, so that one token serves for all of it.
    pub fn remote(
        &self,
        repository: &Repository,
        credentials: impl Into<Arc<[Credential]>>,
        right: Right,
    ) -> Result<Remote, Error> {
        self.remote_for(Cause::Administrator, repository, credentials, right)
    }

    /// The same on a tenant's account, where the cause says so.
    pub fn remote_for(
        &self,
        cause: Cause,
        repository: &Repository,
        credentials: impl Into<Arc<[Credential]>>,
        right: Right,
    ) -> Result<Remote, Error> {
        let registry = self
            .shared
            .registries
            .get(&repository.host())
            .map_err(|problem| problem.during(format!("reach the registry of {repository}")))?
            .for_cause(cause);
        Ok(Remote::new(Arc::clone(&self.shared), registry, repository.clone(), credentials.into(), right))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
