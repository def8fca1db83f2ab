//! Reads Secrets by name, once for all who ask, and remembers them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_plan::routing::SecretName;
use fairlead_plan::secret_ttl::Standing;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::cached::CachedSecret;
use super::names::can_exist;
use super::{Keys, Metrics, Problems, Read};
use crate::platform::api_error::within;
use crate::registries::cache::{Capacity, SingleFlightCache};
use crate::registries::single_flight::{Joined, NoResult};

/// One request never takes longer. Callers with less time leave earlier.
const LIMIT: Duration = Duration::from_secs(5);

/// Requests at once: a burst of Pods must not become a burst on the API server.
const AT_ONCE: usize = 32;

/// Secrets may have a megabyte each.
const CAPACITY: Capacity = Capacity { entries: 4096, bytes: 16 << 20 };

/// Secrets by name.
#[derive(Clone)]
pub struct Secrets {
    shared: Arc<SecretsInner>,
}

struct SecretsInner {
    client: Client,
    cache: SingleFlightCache<SecretName, CachedSecret, Read>,
    requests: Semaphore,
    problems: Problems,
    metrics: Metrics,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

impl Secrets {
    pub fn new(client: Client, metrics: Metrics) -> Self {
        Self {
            shared: Arc::new(SecretsInner {
                client,
                cache: SingleFlightCache::new(CAPACITY),
                requests: Semaphore::new(AT_ONCE),
                problems: Problems::default(),
                metrics,
            }),
        }
    }

    /// What is known of the Secret, without waiting. What has aged is read again meanwhile.
    pub fn cached(&self, name: &SecretName) -> Option<Read> {
        let (standing, read) = self.shared.find(name)?;
        match standing {
            Standing::Good => {}
            Standing::Renew => drop(self.board(name, false)),
            Standing::Gone => return None,
        }
        Some(read)
    }

    /// What is known of the Secret, or else what the API server says.
    pub async fn read(&self, name: &SecretName, deadline: Instant) -> Read {
        if let Some(read) = self.cached(name) {
            return read;
        }
        self.wait(self.board(name, false), deadline).await
    }

    /// Takes a Secret as it was given, or what is wrong with it, where it is not read from a cluster.
    pub fn learn(&self, name: &SecretName, secret: Result<Secret, String>) {
        let read = match secret.and_then(Keys::of) {
            Ok(keys) => Read::Keys(Arc::new(keys)),
            Err(why) => Read::Unusable(why.into()),
        };
        let cached = CachedSecret::after(None, read, Instant::now(), 0.0);
        let weight = cached.weight();
        self.shared.cache.entries().insert(name, cached, weight);
    }

    /// A registry refused what the Secret holds: it is read again at the next use, unless it was just read.
    pub fn distrust(&self, name: &SecretName) {
        if let Some(cached) = self.shared.cache.entries().get(name) {
            cached.distrust(Instant::now());
        }
    }

    /// What is wrong with the Secrets that policies name.
    pub fn problems(&self) -> &Problems {
        &self.shared.problems
    }

    /// Reads the Secret however fresh it is.
    pub(super) async fn refresh(&self, name: &SecretName) -> Read {
        self.wait(self.board(name, true), Instant::now() + 2 * LIMIT).await
    }

    async fn wait(&self, flight: Joined<Read>, deadline: Instant) -> Read {
        flight.wait(deadline).await.unwrap_or_else(|why| {
            Read::Failed(match why {
                NoResult::TimeIsUp => "the API server did not answer in time".into(),
                NoResult::Lost => "reading it was broken off".into(),
            })
        })
    }

    /// Joins the reading under way, or starts it.
    fn board(&self, name: &SecretName, even_if_fresh: bool) -> Joined<Read> {
        self.shared.cache.flights.join(name, || {
            let (shared, name) = (Arc::clone(&self.shared), name.clone());
            async move { shared.fetch(&name, even_if_fresh).await }
        })
    }
}

impl SecretsInner {
    async fn fetch(&self, name: &SecretName, even_if_fresh: bool) -> Read {
        if !can_exist(name) {
            return Read::Missing;
        }
        // Another caller may have read it between this caller's look and now.
        if !even_if_fresh && let Some((Standing::Good, read)) = self.find(name) {
            return read;
        }
        let request = async {
            let _permit = self.requests.acquire().await;
            Api::<Secret>::namespaced(self.client.clone(), &name.namespace).get_opt(&name.name).await
        };
        let read = match within(LIMIT, request).await {
            Ok(Some(secret)) => match Keys::of(secret) {
                Ok(keys) => Read::Keys(Arc::new(keys)),
                Err(why) => Read::Unusable(why.into()),
            },
            Ok(None) => Read::Missing,
            Err(failure) => Read::Failed(failure.to_string().into()),
        };
        self.metrics.read(&read);
        if let Read::Failed(why) = &read {
            tracing::debug!(secret = %name, why = &**why, "cannot read Secret");
        }
        let mut entries = self.cache.entries();
        let before = entries.get(name).map(|cached| &*cached);
        let cached = CachedSecret::after(before, read, Instant::now(), fastrand::f64());
        let (_, read) = cached.serve(Instant::now());
        let weight = cached.weight();
        entries.insert(name, cached, weight);
        read
    }

    fn find(&self, name: &SecretName) -> Option<(Standing, Read)> {
        self.cache.entries().get(name).map(|cached| cached.serve(Instant::now()))
    }
}
