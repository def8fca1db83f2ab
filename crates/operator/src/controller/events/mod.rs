//! Kubernetes events: about Pods and policies by the lease holder alone, about internal errors by every replica.
//!
//! At admission a Pod has no UID and often no name, so the webhook writes none. What was done to a Pod's images is read
//! from the record on it when the watch shows it; internal errors of all replicas become one event on their Deployment;
//! what controllers have to say about other objects they give to the [`EventQueue`].
//! Events are news, not state: they are paced, bounded, and given up rather than allowed to pile up.

mod api;
mod errors;
mod metrics;
mod owners;
mod pods;
mod queue;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_plan::owners::OwnerKey;
use tokio::sync::OwnedMutexGuard;
use tokio::sync::mpsc::Receiver;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use errors::{Errors, INTERNAL_ERRORS};
pub use metrics::{Metrics, SendOutcome};
pub use queue::{About, EventQueue, Notice, Queued};

use api::{Delivery, Post};
use queue::Waiting;

use super::{Broken, Controller, Inflight};
use crate::cluster::state::Changes;
use crate::context::Context;
use crate::platform::install;
use crate::platform::leader::Term;

/// A look at all Pods without a change.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// What events are made of.
pub struct Events {
    context: Arc<Context>,
    post: Arc<Post>,
    queued: Queued,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Events {
    pub fn new(context: Arc<Context>, queued: Queued) -> Self {
        let post = Arc::new(Post::new(context.client.clone(), context.identity.clone()));
        Self { context, post, queued }
    }
}

/// Reports this replica's own errors, leading or not, until `shutdown`.
pub async fn report_errors(context: Arc<Context>, shutdown: CancellationToken) {
    let post = Post::new(context.client.clone(), context.identity.clone());
    let source = errors::Installation { namespace: &context.namespace, deployment: install::NAME };
    shutdown.run_until_cancelled(errors::tell(&post, &source, &context.errors)).await;
}

/// The two sources of events. One does not keep the other waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Lane {
    Records,
    Notices,
}

/// What became of one event, with what sends the next one of its lane.
type Sent = (Delivery, &'static str, Option<SendOutcome>);

/// The controller.
pub struct EventWriter {
    setup: Arc<Events>,
    term: Term,
    records: pods::Records,
    paused: BTreeSet<OwnerKey>,
    notices: OwnedMutexGuard<Receiver<Waiting>>,
    notice: Option<Waiting>,
    /// One event of each lane at a time.
    sending: Inflight<Lane, Sent>,
    /// Lanes where nothing is being sent.
    for_records: Option<Delivery>,
    for_notices: Option<Delivery>,
}

impl fmt::Debug for EventWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventWriter").field("term", &self.term).finish_non_exhaustive()
    }
}

impl EventWriter {
    fn delivery(&self, lane: Lane) -> Delivery {
        let rate = match lane {
            Lane::Records => pods::RATE,
            Lane::Notices => queue::RATE,
        };
        Delivery::new(self.setup.post.clone(), self.term.clone(), rate)
    }

    /// Starts what can be sent.
    fn send(&mut self) {
        if let Some(mut delivery) = self.for_records.take() {
            if let Some(pending) = self.records.next() {
                let pods = self.setup.context.resources.pods.clone();
                self.sending.start(Lane::Records, async move {
                    let outcome = delivery.deliver(&pending.draft(), || pending.is_wanted(&pods)).await;
                    (delivery, pending.reason(), outcome)
                });
            } else {
                self.for_records = Some(delivery);
            }
        }
        if let Some(mut delivery) = self.for_notices.take() {
            if let Some(waiting) = self.notice.take() {
                self.sending.start(Lane::Notices, async move {
                    let outcome = delivery.deliver(&waiting.notice.draft(), || waiting.is_news()).await;
                    (delivery, waiting.notice.reason, outcome)
                });
            } else {
                self.for_notices = Some(delivery);
            }
        }
    }

    fn sent(&mut self, lane: Lane, sent: Option<Sent>) {
        let delivery = match sent {
            Some((delivery, reason, outcome)) => {
                if let Some(outcome) = outcome {
                    self.setup.context.events.metrics().count(reason, outcome);
                }
                delivery
            }
            None => self.delivery(lane),
        };
        match lane {
            Lane::Records => self.for_records = Some(delivery),
            Lane::Notices => self.for_notices = Some(delivery),
        }
    }
}

impl Controller for EventWriter {
    const NAME: &'static str = "events";
    const DEBOUNCE: Duration = Duration::from_millis(500);
    type Setup = Events;

    /// Pods that are not listed yet have their turn when they are.
    fn waits_for(_setup: &Events) -> Option<String> {
        None
    }

    fn changes(setup: &Events) -> Vec<Changes> {
        let Context { resources, owners, .. } = &*setup.context;
        vec![resources.pods.changes(), owners.changes()]
    }

    async fn begin(setup: &Arc<Events>, term: &Term) -> Result<Self, Broken> {
        let notices = setup.queued.0.clone().lock_owned().await;
        let mut this = Self {
            setup: setup.clone(),
            term: term.clone(),
            records: pods::Records::default(),
            paused: BTreeSet::new(),
            notices,
            notice: None,
            sending: Inflight::new(2),
            for_records: None,
            for_notices: None,
        };
        this.for_records = Some(this.delivery(Lane::Records));
        this.for_notices = Some(this.delivery(Lane::Notices));
        Ok(this)
    }

    async fn round(&mut self, _term: &Term) -> Result<Instant, Broken> {
        let Context { resources, owners, events, .. } = &*self.setup.context;
        self.records.look(&resources.pods, events.metrics());
        owners::look(owners, events, &mut self.paused);
        self.send();
        Ok(Instant::now() + LOOK_AGAIN)
    }

    async fn progress(&mut self) -> bool {
        tokio::select! {
            (lane, sent) = self.sending.next() => self.sent(lane, sent),
            Some(waiting) = self.notices.recv(), if self.notice.is_none() => self.notice = Some(waiting),
        }
        self.send();
        false
    }
}
