//! Kubernetes events: about Pods and policies by the lease holder alone, about internal errors by whoever met them.
//!
//! At admission a Pod has no UID and often no name, so the webhook writes none. What was done to a Pod's images is read
//! from the record on it when the watch shows it; internal errors of all replicas become one event on their Deployment;
//! what controllers have to say about other objects they give to the [`Teller`].
//! Events are news, not state: they are paced, bounded, and given up rather than allowed to pile up.

mod api;
mod errors;
mod metrics;
mod owners;
mod pods;
mod queue;

use std::fmt;

use kube::Client;

pub use errors::{Errors, INTERNAL_ERRORS};
pub use metrics::{Fate, Metrics};
pub use queue::{About, Notice, Teller};

use api::Post;
use queue::Told;

use crate::cluster::state::Pods;
use crate::platform::leader::{Leader, Term};

/// Who emits events, and about which installation.
#[derive(Debug, Clone)]
pub struct Source {
    /// This replica.
    pub identity: String,
    /// Of the operator.
    pub namespace: String,
    /// Name of the operator's Deployment.
    pub deployment: String,
}

/// The emitter of events.
pub struct Events {
    source: Source,
    post: Post,
    pods: Pods,
    errors: Errors,
    metrics: Metrics,
    teller: Teller,
    told: Told,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Events {
    pub fn new(client: Client, source: Source, pods: Pods, errors: Errors, metrics: Metrics) -> Self {
        let post = Post::new(client, source.identity.clone());
        let (teller, told) = Teller::new(metrics.clone());
        Self { source, post, pods, errors, metrics, teller, told }
    }

    /// Where controllers tell what they have to say.
    pub fn teller(&self) -> Teller {
        self.teller.clone()
    }

    /// Tells about Pods and whatever it is told whenever this replica leads, and about its own errors always, until the election is over.
    pub async fn run(self, leader: Leader) {
        let this = &self;
        tokio::select! {
            () = leader.while_leading(|term| async move { this.lead(&term).await }) => {}
            () = errors::tell(&self.post, &self.source, &self.errors) => {}
        }
    }

    async fn lead(&self, term: &Term) {
        let (sender, receiver) = tokio::sync::mpsc::channel(pods::QUEUE);
        let looking = pods::look(&self.pods, &sender, &self.metrics);
        // Requests make large futures, which the task would otherwise carry along even while another replica leads.
        let sending = Box::pin(pods::send(&self.post, &self.pods, receiver, &self.metrics, term));
        let pausing = owners::look(self.pods.owners(), &self.teller);
        let telling = Box::pin(queue::send(&self.post, &self.told, &self.metrics, term));
        term.token().run_until_cancelled(async { tokio::join!(looking, sending, pausing, telling) }).await;
    }
}
