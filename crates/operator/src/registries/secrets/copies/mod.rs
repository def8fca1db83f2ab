//! Copies of the pull secrets of cluster-scoped policies, in the namespaces whose Pods need them.
//!
//! `fairlead_plan::pull_secrets` decides how a copy is named and marked and when it goes; this module carries it out.
//! Every replica makes copies, because a Pod at admission cannot wait for another one; only the leader removes them.

mod controller;
mod error;
mod known;
mod object;
mod observe;
mod put;
mod search;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use fairlead_plan::certificates::WallTime;
use fairlead_plan::pull_secrets::{CopyPlace, NotCopied, OfferedSecret, Receiver, Selection, local_name};
use fairlead_plan::routing::SecretUse;
use kube::Client;
use parking_lot::Mutex;
use tokio::time::Instant;

use self::known::{CopyStanding, KnownCopy};
use super::{Keys, Metrics, Read, Secrets};
use crate::cluster::namespaces::Namespaces;
use crate::platform::certificates::Clock;
use crate::registries::cache::SingleFlightCache;
use crate::registries::single_flight::NoResult;

pub use self::controller::CopyKeeper;
pub use self::error::CopyError;

/// Makes copies.
#[derive(Clone)]
pub struct Copies {
    shared: Arc<CopiesInner>,
}

struct CopiesInner {
    client: Client,
    secrets: Secrets,
    enabled: bool,
    namespaces: Namespaces,
    clock: Clock,
    known: SingleFlightCache<CopyPlace, KnownCopy, Result<(), CopyError>>,
    /// Copies that Pods need which come and go: those that pull images onto nodes.
    kept: Mutex<BTreeSet<CopyPlace>>,
    metrics: Metrics,
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copies").field("enabled", &self.shared.enabled).finish_non_exhaustive()
    }
}

impl Copies {
    /// `enabled` is `routing.pullSecrets.copy` of the configuration; `namespaces` says where copies may be.
    pub fn new(
        client: Client,
        secrets: Secrets,
        enabled: bool,
        namespaces: Namespaces,
        clock: Clock,
        metrics: Metrics,
    ) -> Self {
        let known = SingleFlightCache::new(known::CAPACITY);
        let shared = CopiesInner {
            client,
            secrets,
            enabled,
            namespaces,
            clock,
            known,
            kept: Mutex::default(),
            metrics,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The name under which a Pod of the namespace finds the Secret, or would find it once it is copied. Writes
    /// nothing: for dry runs.
    pub fn name_of(&self, of: &SecretUse, namespace: &str) -> Result<String, NotCopied> {
        local_name(of, namespace, self.shared.enabled, || {
            self.shared.namespaces.selection(namespace) == Selection::LeftOut
        })
    }

    /// What becomes of the Secrets that places need, for a Pod of the namespace. Writes nothing.
    pub fn offered<'a, S: AsRef<str>>(
        &self,
        needed: impl IntoIterator<Item = &'a SecretUse>,
        namespace: &str,
        receiver: &Receiver<'_, S>,
    ) -> impl Iterator<Item = OfferedSecret<'a>> {
        receiver.offered(needed, move |used| self.name_of(used, namespace))
    }

    /// The name under which a Pod of the namespace finds the Secret. The copy is made if it is not known to be there;
    /// if that takes until after the deadline, it goes on, and the next Pod will find it.
    pub async fn ensure(
        &self,
        of: &SecretUse,
        namespace: &str,
        deadline: Instant,
    ) -> Result<String, CopyError> {
        let name = self.name_of(of, namespace).map_err(|why| match why {
            NotCopied::NamespacedPolicy => CopyError::NamespacedOwner { of: of.clone() },
            NotCopied::CopyingIsOff => CopyError::Disabled { of: of.clone() },
            NotCopied::NamespaceLeftOut => CopyError::LeftOut { of: of.clone(), namespace: namespace.into() },
        })?;
        if *namespace == *of.secret.namespace {
            return Ok(name);
        }
        match self.shared.namespaces.selection_by(namespace, deadline).await {
            Selection::Covered => {}
            Selection::LeftOut => {
                return Err(CopyError::LeftOut { of: of.clone(), namespace: namespace.into() });
            }
            Selection::Unknown => {
                return Err(CopyError::Unselected { of: of.clone(), namespace: namespace.into() });
            }
        }
        let keys = match self.shared.secrets.read(&of.secret, deadline).await {
            Read::Keys(keys) => keys,
            other => return Err(CopyError::source(of, &other)),
        };
        let place = CopyPlace { namespace: namespace.into(), name: name.as_str().into() };
        match self.shared.state(&place, &keys) {
            CopyStanding::There => return Ok(name),
            CopyStanding::Failed(error) => return Err(error),
            CopyStanding::Unknown => {}
        }
        let flight = self.shared.known.flights.join(&place, || {
            let (shared, of, place) = (Arc::clone(&self.shared), of.clone(), place.clone());
            async move {
                // Another caller may have made it between this caller's look and now.
                match shared.state(&place, &keys) {
                    CopyStanding::There => Ok(()),
                    CopyStanding::Failed(error) => Err(error),
                    CopyStanding::Unknown => shared.put(&of, &keys, &place).await.map(drop),
                }
            }
        });
        match flight.wait(deadline).await {
            Ok(outcome) => outcome.map(|()| name),
            Err(NoResult::TimeIsUp) => Err(CopyError::TimeIsUp { of: of.clone(), place }),
            Err(NoResult::Lost) => {
                Err(CopyError::Failed { of: of.clone(), place, why: "it was broken off".into() })
            }
        }
    }

    /// Keeps these copies although no Pod needs them just now.
    pub fn keep_for_pulls(&self, places: BTreeSet<CopyPlace>) {
        *self.shared.kept.lock() = places;
    }

    fn enabled(&self) -> bool {
        self.shared.enabled
    }
}

impl CopiesInner {
    fn state(&self, place: &CopyPlace, keys: &Keys) -> CopyStanding {
        let mut known = self.known.entries();
        let known = known.get(place);
        known.map_or(CopyStanding::Unknown, |known| known.standing(keys.content(), Instant::now()))
    }

    /// Remembers how an attempt to make a copy went.
    fn remember(&self, place: &CopyPlace, keys: &Keys, outcome: Result<(), &CopyError>) {
        let (mut known, now) = (self.known.entries(), Instant::now());
        let copy = match outcome {
            Ok(()) => KnownCopy::there(keys.content(), now),
            Err(error) => KnownCopy::failed(known.get(place).map(|known| &*known), error.clone(), now),
        };
        known.insert(place, copy, 0);
    }

    fn now(&self) -> WallTime {
        (self.clock)().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
    }
}
