//! What a caller brings to every call: how urgent it is and until when an answer is of use.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::limits::rate::Class;
use crate::limits::tenant_queue::Tenant;

/// Urgency and deadline of one call, however many requests it takes.
#[derive(Clone, Debug)]
pub struct Context {
    urgency: Urgency,
    pub deadline: Instant,
    /// How long one request may take from the moment it is sent, with what of its answer is held as a whole.
    answer: Option<Duration>,
    /// The longest that a registry is waited for which is away for a moment.
    patience: Option<Duration>,
    /// Requests to the registry itself go over new connections.
    new_connection: bool,
    /// Sent although the circuit breaker is open.
    through_open_circuit: bool,
    /// Told when the request at hand was sent, and nothing while it waits in line.
    sent: Option<Arc<watch::Sender<Option<Instant>>>>,
    tenant: Tenant,
}

#[derive(Clone, Debug)]
enum Urgency {
    Fixed(Class),
    /// Work that several callers wait for: it becomes urgent when the first urgent one joins.
    Shared(watch::Receiver<Class>),
}

impl Context {
    pub fn new(class: Class, deadline: Instant) -> Self {
        Self {
            urgency: Urgency::Fixed(class),
            deadline,
            answer: None,
            patience: None,
            new_connection: false,
            through_open_circuit: false,
            sent: None,
            tenant: Tenant::default(),
        }
    }

    /// Sets how long each request may take once it is sent; waiting in line before that does not count.
    #[must_use]
    pub fn answered_within(self, limit: Duration) -> Self {
        Self { answer: Some(limit), ..self }
    }

    /// Has a copy hold on for at most so long when a registry does not answer or has no quota left. For those who will try
    /// again later and have other things to do meanwhile.
    #[must_use]
    pub fn waiting_at_most(self, limit: Duration) -> Self {
        Self { patience: Some(limit), ..self }
    }

    /// The same call over new connections, as a kubelet makes it.
    pub(crate) fn on_new_connections(&self) -> Self {
        Self { new_connection: true, ..self.clone() }
    }

    pub(crate) fn wants_new_connections(&self) -> bool {
        self.new_connection
    }

    /// Names the namespace whose share of each registry the call counts against.
    #[must_use]
    pub fn on_behalf_of(self, namespace: &str) -> Self {
        Self { tenant: Tenant::namespace(namespace), ..self }
    }

    pub(crate) fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Sends requests although the circuit breaker is open: for what the registry has to be told whatever its state.
    #[must_use]
    pub(crate) fn through_open_circuit(self) -> Self {
        Self { through_open_circuit: true, ..self }
    }

    pub(crate) fn goes_through_open_circuit(&self) -> bool {
        self.through_open_circuit
    }

    /// Whether the caller would rather come back later than wait for an answer that is overdue.
    pub(crate) fn is_in_a_hurry(&self) -> bool {
        self.patience.is_some()
    }

    /// Whether the call may wait for so long.
    pub(crate) fn bears(&self, pause: Duration) -> bool {
        self.patience.is_none_or(|patience| pause <= patience) && Instant::now() + pause < self.deadline
    }

    /// Has somebody told since when an answer is awaited; nothing while a request waits in line.
    #[must_use]
    pub fn telling_when_sent(self, sent: watch::Sender<Option<Instant>>) -> Self {
        Self { sent: Some(Arc::new(sent)), ..self }
    }

    /// The same call on behalf of several callers, which is as urgent as they are.
    pub(crate) fn shared(&self, class: watch::Receiver<Class>) -> Self {
        Self { urgency: Urgency::Shared(class), ..self.clone() }
    }

    /// The same call with less time for each request.
    pub(crate) fn hurried(&self, limit: Duration) -> Self {
        let answer = self.answer.map_or(limit, |stated| stated.min(limit));
        Self { answer: Some(answer), ..self.clone() }
    }

    /// The longest that a quota is waited for.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.patience
    }

    /// The end of a wait that begins now: after so long, or at the deadline if that is sooner.
    pub(crate) fn until(&self, limit: Duration) -> Instant {
        self.deadline.min(Instant::now() + limit)
    }

    /// A request gets in line.
    pub(crate) fn queue(&self) {
        self.tell(None);
    }

    /// A request is sent now. Returns until when it may be answered.
    pub(crate) fn send(&self) -> Instant {
        let now = Instant::now();
        self.tell(Some(now));
        self.answer.map_or(self.deadline, |limit| self.deadline.min(now + limit))
    }

    /// How long a request may take, as far as that is told apart from the deadline.
    pub(crate) fn answer_limit(&self) -> Duration {
        self.answer.unwrap_or(Duration::MAX)
    }

    /// Passes on what somebody else's request is doing that this call waits for.
    pub(crate) fn tell(&self, at: Option<Instant>) {
        if let Some(sent) = &self.sent {
            sent.send_if_modified(|told| std::mem::replace(told, at) != at);
        }
    }

    pub fn class(&self) -> Class {
        match &self.urgency {
            Urgency::Fixed(class) => *class,
            Urgency::Shared(class) => *class.borrow(),
        }
    }

    /// Returns when the call has become urgent; never, if it is already or nobody can make it so.
    pub(crate) async fn raised(&self) {
        if let Urgency::Shared(class) = &self.urgency
            && self.class() == Class::Background
        {
            let mut class = class.clone();
            if class.wait_for(|class| *class == Class::Admission).await.is_ok() {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    pub fn has_passed(&self) -> bool {
        Instant::now() >= self.deadline
    }
}
