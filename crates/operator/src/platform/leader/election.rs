//! Carries out what `fairlead_plan::leadership` decides.

use std::fmt;
use std::time::Duration;

use fairlead_plan::leadership::{Action, Elector, Loss, Stamp, Timing, Write};
use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::lease::Leases;
use super::term::GRACE;
use super::{Leader, Leadership, Metrics, Term};
use crate::platform::api_error::{Class, Failure};
use crate::platform::telemetry::Heartbeat;

/// Limit of one request while shutting down, when there is no time for a slow one.
const RELEASE_LIMIT: Duration = Duration::from_millis(600);
const RELEASE_ATTEMPTS: usize = 2;

/// This replica's part in the election.
pub struct Election {
    leases: Leases,
    elector: Elector,
    origin: Instant,
    state: watch::Sender<Leadership>,
    metrics: Metrics,
    heartbeat: Heartbeat,
    /// Class of the failure that was logged last, so that an outage is logged once and not at every attempt.
    told: Option<Class>,
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("elector", &self.elector).finish_non_exhaustive()
    }
}

impl Election {
    /// Elects among the replicas that name the same Lease. `identity` must differ between replicas.
    pub fn new(
        client: Client,
        namespace: &str,
        lease: &str,
        identity: &str,
        metrics: Metrics,
        heartbeat: Heartbeat,
    ) -> (Self, Leader) {
        let (state, receiver) = watch::channel(Leadership::Standby { holder: None });
        let election = Self {
            leases: Leases::new(client, namespace, lease),
            elector: Elector::new(identity, Timing::default()),
            origin: Instant::now(),
            state,
            metrics,
            heartbeat,
            told: None,
        };
        (election, Leader::new(receiver))
    }

    /// Takes part until `shutdown`, then gives leadership back if this replica has it.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            self.heartbeat.beat();
            let action = self.elector.decide(self.now(), stamp());
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                () = self.carry_out(action) => {}
            }
        }
        self.release().await;
    }

    async fn carry_out(&mut self, action: Action) {
        match action {
            Action::Wait { until } => tokio::time::sleep_until(self.origin + until).await,
            Action::Look { limit } => self.look(limit).await,
            Action::Acquire { write, limit } | Action::Renew { write, limit } => {
                self.write(&write, limit).await;
            }
            Action::StepDown { loss } => {
                let (reason, by) = match loss {
                    Loss::OutOfTime => ("the lease could not be renewed in time", None),
                    Loss::Taken { by } => ("the lease is held by another", by),
                    Loss::Vanished => ("the lease was deleted", None),
                };
                tracing::warn!(term = self.elector.term(), reason, by, "leadership lost");
                self.end_term();
            }
        }
    }

    async fn look(&mut self, limit: Duration) {
        match self.leases.read(limit).await {
            Ok(stored) => {
                self.elector.saw(stored, self.now(), fastrand::f64());
                self.told = None;
                self.publish();
            }
            Err(failure) => self.failed(&failure, "get"),
        }
    }

    async fn write(&mut self, write: &Write, limit: Duration) {
        let begun = self.now();
        self.elector.sending(write, begun);
        match self.leases.write(write, limit).await {
            Ok(stored) => {
                self.elector.wrote(stored, begun, self.now());
                self.told = None;
                self.publish();
            }
            // Refused for its version, or the Lease to be replaced is gone: look what happened.
            Err(failure) if matches!(failure.class, Class::Conflict) => self.elector.refused(self.now()),
            Err(failure) if failure.class == Class::Absent && write.replaces.is_some() => {
                self.elector.refused(self.now());
            }
            Err(failure) => self.failed(&failure, if write.replaces.is_some() { "update" } else { "create" }),
        }
    }

    fn failed(&mut self, failure: &Failure, verb: &'static str) {
        self.elector.failed(self.now(), fastrand::f64());
        let namespace = self.leases.namespace();
        let lease = self.leases.name();
        if self.told.replace(failure.class) == Some(failure.class) {
            tracing::debug!(namespace, lease, verb, error = %failure, "the election's request failed again");
        } else if failure.class == Class::Denied {
            tracing::error!(
                namespace, lease, verb, error = %failure,
                "not allowed to take part in the election; grant get, create and update on leases.coordination.k8s.io"
            );
        } else {
            tracing::warn!(namespace, lease, verb, error = %failure, "the election's request failed; trying again");
        }
    }

    /// Tells the rest of the operator what the elector believes now.
    fn publish(&mut self) {
        let until = self.elector.leads_until().filter(|until| self.now() < *until);
        let (Some(until), Some(number)) = (until, self.elector.term()) else {
            if self.elector.term().is_none() {
                self.note_holder();
            }
            return;
        };
        let current = match &*self.state.borrow() {
            Leadership::Leading(term) if term.number() == number => Some(term.clone()),
            Leadership::Leading(_) | Leadership::Standby { .. } => None,
        };
        if let Some(term) = current {
            return term.extend(until);
        }
        tracing::info!(term = number, lease = self.leases.name(), "leadership acquired");
        self.metrics.started();
        self.state.send_replace(Leadership::Leading(Term::new(number, self.origin, until)));
    }

    fn note_holder(&self) {
        let holder = self.elector.holder();
        self.state.send_if_modified(|state| {
            let Leadership::Standby { holder: known } = state else {
                return false;
            };
            let changed = known.as_deref() != holder;
            if changed {
                tracing::info!(holder, "standing by");
                *known = holder.map(Into::into);
            }
            changed
        });
    }

    /// Ends the present term for all controllers and returns it.
    fn end_term(&mut self) -> Option<Term> {
        self.elector.step_down();
        let before = self.state.send_replace(Leadership::Standby { holder: None });
        let Leadership::Leading(term) = before else {
            return None;
        };
        term.end();
        self.metrics.ended();
        Some(term)
    }

    /// Stops acting, then says so in the Lease, in this order: its next holder may start at once.
    async fn release(mut self) {
        let mut elector = self.elector.clone();
        let Some(term) = self.end_term() else { return };
        if tokio::time::timeout(GRACE + GRACE / 5, term.finished()).await.is_err() {
            tracing::warn!(
                term = term.number(),
                "work goes on after leadership ended; the lease is left to run out"
            );
            return;
        }
        for _ in 0..RELEASE_ATTEMPTS {
            let Some(write) = elector.release(stamp()) else {
                return;
            };
            match self.leases.write(&write, RELEASE_LIMIT).await {
                Ok(_) => {
                    tracing::info!(term = term.number(), lease = self.leases.name(), "leadership released");
                    return;
                }
                Err(failure) => tracing::debug!(error = %failure, "the lease could not be released"),
            }
            // A renewal that was under way may have changed the version.
            if let Ok(stored) = self.leases.read(RELEASE_LIMIT).await {
                elector.saw(stored, self.now(), 0.0);
            }
        }
        tracing::warn!(term = term.number(), "the lease could not be released and is left to run out");
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}

/// Marks a write. People read it as a time; the election does not.
fn stamp() -> Stamp {
    Stamp(Timestamp::now().as_microsecond())
}
