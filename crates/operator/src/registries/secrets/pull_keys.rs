//! The pull secrets of a Pod, and what a kubelet finds in them.

use std::sync::Arc;

use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Reference;
use fairlead_plan::routing::SecretName;
use futures::future::join_all;
use tokio::time::Instant;

use super::{Keys, Read, Secrets};
use crate::cluster::state::PodEntry;

/// What is in the pull secrets of a Pod, in its order. One that cannot be read is the kubelet's to complain about.
#[derive(Debug, Clone, Default)]
pub struct PullKeys {
    found: Vec<Arc<Keys>>,
    /// The kubelet may have found more.
    is_incomplete: bool,
}

impl PullKeys {
    /// The credentials for an image, in the order in which the kubelet tries them.
    pub fn credentials(&self, image: &Reference) -> Vec<Credential> {
        Keys::lookup(self.found.iter().map(Arc::as_ref), &image.repository())
    }

    pub fn push(&mut self, read: &Read) {
        self.found.extend(read.keys().cloned());
        self.is_incomplete |= matches!(read, Read::Failed(_));
    }

    /// Whether the API server told of every Secret what is in it.
    pub fn is_complete(&self) -> bool {
        !self.is_incomplete
    }
}

impl FromIterator<Read> for PullKeys {
    fn from_iter<I: IntoIterator<Item = Read>>(reads: I) -> Self {
        let mut all = Self::default();
        reads.into_iter().for_each(|read| all.push(&read));
        all
    }
}

impl Secrets {
    /// Reads the pull secrets of these names, all at once.
    pub async fn pull_keys(
        &self,
        namespace: &Arc<str>,
        names: impl IntoIterator<Item = Arc<str>>,
        deadline: Instant,
    ) -> PullKeys {
        let names = names.into_iter().map(|name| SecretName { namespace: namespace.clone(), name });
        let names: Vec<_> = names.collect();
        join_all(names.iter().map(|name| self.read(name, deadline))).await.into_iter().collect()
    }

    /// Reads the pull secrets of a Pod.
    pub async fn of_pod(&self, pod: &PodEntry, deadline: Instant) -> PullKeys {
        self.pull_keys(&pod.key.namespace, pod.pull_secrets.iter().cloned(), deadline).await
    }
}
