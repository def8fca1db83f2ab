//! What a caller brings to every call: urgency, deadline, tenant.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::limits::rate::Class;
use crate::limits::tenant_queue::Tenant;

/// Urgency and deadline of one call, however many requests it takes.
#[derive(Clone, Debug)]
pub struct Context {
    class: Class,
    pub deadline: Instant,
    /// Limit for one request from the moment it is sent, with the part of its answer that is held as a whole.
    answer_limit: Option<Duration>,
    /// Longest wait for a registry that does not answer or has no quota left.
    patience: Option<Duration>,
    /// Requests to the registry itself use new connections.
    new_connection: bool,
    /// Requests are sent although the circuit is open.
    ignores_open_circuit: bool,
    /// A failed request is not repeated.
    once: bool,
    /// Receives when the current request was sent, `None` while it waits for the budget.
    sent: Option<Arc<watch::Sender<Option<Instant>>>>,
    /// Once this is cancelled, requests leave the queue of the budget.
    withdrawal: Option<CancellationToken>,
    tenant: Tenant,
}

impl Context {
    pub fn new(class: Class, deadline: Instant) -> Self {
        Self {
            class,
            deadline,
            answer_limit: None,
            patience: None,
            new_connection: false,
            ignores_open_circuit: false,
            once: false,
            sent: None,
            withdrawal: None,
            tenant: Tenant::default(),
        }
    }

    /// Sets how long each request may take once it is sent; waiting for the budget does not count.
    #[must_use]
    pub fn answered_within(self, limit: Duration) -> Self {
        Self { answer_limit: Some(limit), ..self }
    }

    /// Limits the waits of a copy for a registry that does not answer or has no quota left. For callers that retry
    /// later and have other work meanwhile.
    #[must_use]
    pub fn waiting_at_most(self, limit: Duration) -> Self {
        Self { patience: Some(limit), ..self }
    }

    /// Repeats no request after a failure: for callers that have another place to ask.
    #[must_use]
    pub fn once(self) -> Self {
        Self { once: true, ..self }
    }

    /// Names the namespace whose share of each registry the call counts against.
    #[must_use]
    pub fn on_behalf_of(self, namespace: &str) -> Self {
        Self { tenant: Tenant::namespace(namespace), ..self }
    }

    /// Sends the time at which each request was sent, and `None` while it waits for the budget.
    #[must_use]
    pub fn telling_when_sent(self, sent: watch::Sender<Option<Instant>>) -> Self {
        Self { sent: Some(Arc::new(sent)), ..self }
    }

    /// Lets the caller withdraw what waits for the budget; what was sent goes on. No other call shares the answer.
    #[must_use]
    pub fn withdrawn_by(self, withdrawal: CancellationToken) -> Self {
        Self { withdrawal: Some(withdrawal), ..self }
    }

    /// The same call over new connections, as a kubelet makes it.
    pub(crate) fn on_new_connections(&self) -> Self {
        Self { new_connection: true, ..self.clone() }
    }

    /// The same call with admission's rank and a lower limit for each request.
    pub(crate) fn urgent(&self, limit: Duration) -> Self {
        let limit = self.answer_limit.map_or(limit, |stated| stated.min(limit));
        Self { class: Class::Admission, answer_limit: Some(limit), ..self.clone() }
    }

    /// Sends requests although the circuit is open.
    #[must_use]
    pub(crate) fn ignoring_open_circuit(self) -> Self {
        Self { ignores_open_circuit: true, ..self }
    }

    pub fn class(&self) -> Class {
        self.class
    }

    pub fn has_passed(&self) -> bool {
        Instant::now() >= self.deadline
    }

    pub(crate) fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    pub(crate) fn wants_new_connections(&self) -> bool {
        self.new_connection
    }

    pub(crate) fn may_repeat(&self) -> bool {
        !self.once
    }

    pub(crate) fn ignores_open_circuit(&self) -> bool {
        self.ignores_open_circuit
    }

    /// Longest wait for a quota.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.patience
    }

    /// Whether the call may wait this long.
    pub(crate) fn allows(&self, pause: Duration) -> bool {
        self.patience.is_none_or(|patience| pause <= patience) && Instant::now() + pause < self.deadline
    }

    /// The end of a wait that begins now: after `limit`, or at the deadline if that is sooner.
    pub(crate) fn until(&self, limit: Duration) -> Instant {
        self.deadline.min(Instant::now() + limit)
    }

    pub(crate) fn may_be_withdrawn(&self) -> bool {
        self.withdrawal.is_some()
    }

    /// A turn in the queue of the budget; none if the call is withdrawn before.
    pub(crate) async fn unless_withdrawn<T>(&self, turn: impl Future<Output = T>) -> Option<T> {
        match &self.withdrawal {
            Some(withdrawal) => {
                // Its turn may have come in the same moment.
                let turn = withdrawal.run_until_cancelled(turn).await;
                turn.filter(|_| !withdrawal.is_cancelled())
            }
            None => Some(turn.await),
        }
    }

    /// Reports that a request waits for the budget.
    pub(crate) fn queued(&self) {
        self.report(None);
    }

    /// Reports that a request is sent now, and returns its time limit.
    pub(crate) fn sent(&self) -> Instant {
        let now = Instant::now();
        self.report(Some(now));
        self.answer_limit.map_or(self.deadline, |limit| self.deadline.min(now + limit))
    }

    fn report(&self, at: Option<Instant>) {
        if let Some(sent) = &self.sent {
            sent.send_if_modified(|sent| std::mem::replace(sent, at) != at);
        }
    }
}
