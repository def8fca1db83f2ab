//! Leaves out copies of private images that the Pod's namespace has not proven access to.
//!
//! Mirrors that do not ask for proof cost nothing here. A proof in the ledger is enough. Without one, the original is
//! asked about with the Pod's own pull secrets: never with those of a policy, nor with a copy of one that Fairlead put
//! into the namespace. This comes before Secrets of mirrors are read, so that no namespace receives one for a copy it
//! may not have.

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_domain::reference::{ImageKey, Reference};
use fairlead_plan::access::{self, Standing};
use fairlead_plan::admission::Planned;
use fairlead_plan::pull_secrets::may_be_copy;
use fairlead_plan::routing::{Alternatives, GuardedCopy, Index, SecretName};
use futures::future::join_all;
use jiff::Timestamp;
use tokio::time::{Instant, timeout_at};

use super::Router;
use super::pull_secrets::MOST_SECRETS;
use crate::admission::decide::PodRequest;
use crate::registries::secrets::PullKeys;

/// Originals that are asked about for one Pod.
const MOST_ORIGINALS: usize = 16;

impl Router {
    pub(super) async fn prove(&self, request: &PodRequest<'_>, planned: &mut [Planned], deadline: Instant) {
        let places = || planned.iter().filter_map(|image| image.places.as_ref().ok());
        if !self.scope.ledgers || places().flat_map(Alternatives::to_prove).next().is_none() {
            return;
        }
        let (index, now) = (self.context.policies.current(), Timestamp::now());
        let standing = |copy: &GuardedCopy<'_>| {
            let counts = |at| access::counts(at, self.proof_lifetime, now);
            self.context.claims.standing(copy, request.namespace, &index, counts)
        };
        let mut to_ask: HashMap<ImageKey, Reference> = HashMap::new();
        for copy in places().flat_map(Alternatives::to_prove) {
            if to_ask.len() < MOST_ORIGINALS && standing(&copy) == (Standing::Unproven { may_ask: true }) {
                to_ask.entry(copy.source.key()).or_insert_with(|| copy.source.clone());
            }
        }
        let opened = self.opened(request, to_ask, &index, deadline).await;
        let why = |copy: &GuardedCopy<'_>| standing(copy).withheld(opened.contains(&copy.source.key()));
        for places in planned.iter_mut().filter_map(|image| image.places.as_mut().ok()) {
            places.withhold_unproven(request.namespace, why);
        }
    }

    /// Those that the Pod's own pull secrets open, or no credentials at all. Half of the time is kept for the choice.
    async fn opened(
        &self,
        request: &PodRequest<'_>,
        originals: HashMap<ImageKey, Reference>,
        index: &Index,
        deadline: Instant,
    ) -> Vec<ImageKey> {
        if originals.is_empty() || !self.scope.registries {
            return Vec::new();
        }
        let now = Instant::now();
        let until = now + deadline.saturating_duration_since(now) / 2;
        let namespace: Arc<str> = request.namespace.into();
        let own = request.pod.pull_secrets().filter(|name| !may_be_copy(name)).take(MOST_SECRETS);
        let reads = own.map(|name| {
            let name = SecretName { namespace: Arc::clone(&namespace), name: name.into() };
            async move { self.read(request, &name, until).await }
        });
        let keys: PullKeys = join_all(reads).await.into_iter().collect();
        let asked = originals.into_iter().map(|(key, original)| {
            let credentials = keys.credentials(&original);
            let verdicts = self.context.verdicts.caused_by(index.cause_of(&original));
            async move {
                let _turn = timeout_at(until, request.share.probes.acquire()).await;
                let mut verdict = verdicts.recall(&original, &credentials, request.namespace, until).await;
                if !verdict.is_available() && !credentials.is_empty() {
                    verdict = verdicts.recall(&original, &[], request.namespace, until).await;
                }
                verdict.is_available().then_some(key)
            }
        });
        join_all(asked).await.into_iter().flatten().collect()
    }
}
