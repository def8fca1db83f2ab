//! Proof that a registry is alive, and the liveness check that renews it.
//!
//! A kubelet opens a new connection for its pull. An answer over an established connection therefore proves nothing:
//! the connection may outlive the listener behind it. Proof is an answer below 500 over a connection that was opened
//! lately, by any caller. Where it is missing, a liveness check requests `/v2/` over a new connection, through a proxy
//! over a new tunnel. Checks are single-flight for each registry and independent of the callers that wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fairlead_domain::cause::Cause;
use fairlead_domain::reference::Host;
use hyper::StatusCode;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::health::RegistryHealth;
use super::server::Server;
use crate::client::Client;
use crate::error::{Detail, Problem};
use crate::registry::Registry;
use crate::transport::failure::Failure;

/// Longest wait for the registry's budget: the longest that an API server waits for a webhook.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Proof that one server is alive.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// The zero of `proven`.
    start: Instant,
    /// Opening time of the newest connection that carried an answer below 500, in nanoseconds; zero before the first.
    /// Anything coarser would take an answer just before a check began for proof during it.
    proven: AtomicU64,
    check: watch::Sender<Stage>,
    /// `/v2/` was answered below 500 at least once. A server that never did so may not serve that page.
    answers_checks: AtomicBool,
}

/// Progress of the liveness check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    /// Waiting for the registry's budget.
    InLine,
    Sent(Instant),
}

impl Liveness {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            // So that no moment is zero.
            start: now.checked_sub(Duration::from_millis(1)).unwrap_or(now),
            proven: AtomicU64::new(0),
            check: watch::Sender::new(Stage::Idle),
            answers_checks: AtomicBool::new(false),
        }
    }

    /// Records an answer over a connection that was opened at this time.
    pub(crate) fn prove(&self, status: StatusCode, opened: Option<Instant>) {
        if let Some(opened) = opened.filter(|_| is_alive(status)) {
            self.proven.fetch_max(self.at(opened), Ordering::Relaxed);
        }
    }

    /// Records the answer to a check.
    pub(crate) fn passed(&self, status: StatusCode, opened: Option<Instant>) {
        self.answers_checks.fetch_or(is_alive(status), Ordering::Relaxed);
        self.prove(status, opened);
    }

    /// Whether a server error in answer to a check counts as an outage.
    pub(crate) fn answers_checks(&self) -> bool {
        self.answers_checks.load(Ordering::Relaxed)
    }

    pub(crate) fn is_proven_since(&self, moment: Instant) -> bool {
        self.proven.load(Ordering::Relaxed) >= self.at(moment)
    }

    fn proof_age(&self, now: Instant) -> Option<Duration> {
        let proven = self.proven.load(Ordering::Relaxed);
        (proven > 0).then(|| Duration::from_nanos(self.at(now).saturating_sub(proven)))
    }

    fn at(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }

    /// True for the caller that has to run the check.
    fn begin(&self) -> bool {
        self.check.send_if_modified(|stage| {
            let begins = *stage == Stage::Idle;
            if begins {
                *stage = Stage::InLine;
            }
            begins
        })
    }
}

/// Whether an answer with this status proves that the server is alive. 407 comes from a proxy.
pub(crate) fn is_alive(status: StatusCode) -> bool {
    status.as_u16() < 500 && status != StatusCode::PROXY_AUTHENTICATION_REQUIRED
}

impl RegistryHealth {
    /// How long ago the newest connection was opened over which the registry answered below 500. `None`: there was
    /// none.
    pub fn proof_age(&self, now: Instant) -> Option<Duration> {
        self.server.liveness.proof_age(now)
    }

    pub fn is_being_checked(&self) -> bool {
        *self.server.liveness.check.borrow() != Stage::Idle
    }
}

impl Client {
    /// Starts a liveness check of a registry, or joins the one under way. An answer below 500 proves that the registry
    /// is alive. No answer within `patience` opens its circuit; so does a server error if it has ever answered a check.
    /// `None` if its settings cannot be used.
    pub fn check(&self, host: &Host, cause: Cause, patience: Duration) -> Option<Check> {
        let registry = self.state.registries.get(host).ok()?.for_cause(cause);
        let server = &registry.server;
        let stage = server.liveness.check.subscribe();
        if server.liveness.begin() {
            let under_way = UnderWay(Arc::clone(server));
            tokio::spawn(async move {
                let _under_way = under_way;
                registry.check(patience).await;
            });
        }
        Some(Check { stage })
    }
}

/// A liveness check under way. It continues when this is dropped.
#[derive(Debug)]
pub struct Check {
    stage: watch::Receiver<Stage>,
}

impl Check {
    /// Returns true once the check has ended, false if it has not by the deadline or within `limit` of being sent.
    pub async fn ended(mut self, limit: Duration, deadline: Instant) -> bool {
        loop {
            let stage = *self.stage.borrow_and_update();
            let until = match stage {
                Stage::Idle => return true,
                Stage::InLine => deadline,
                Stage::Sent(at) => deadline.min(at + limit),
            };
            match timeout_at(until, self.stage.changed()).await {
                Ok(Ok(())) => {}
                // The server was forgotten, and its checks with it.
                Ok(Err(_)) => return true,
                Err(_) => return false,
            }
        }
    }
}

/// Ends a check, also if it panics.
struct UnderWay(Arc<Server>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.liveness.check.send_replace(Stage::Idle);
    }
}

impl Registry {
    async fn check(&self, patience: Duration) {
        let server = &self.server;
        let Ok(_permit) = server.enter_check(Instant::now() + LONGEST_WAIT).await else { return };
        let started = Instant::now();
        server.liveness.check.send_replace(Stage::Sent(started));
        let problem = match timeout(patience, self.trial.send()).await {
            Ok(Ok(response)) if server.passes(&response) => return,
            // It may not serve this page, and everything else may work.
            Ok(Ok(_)) if !server.liveness.answers_checks() => return,
            Ok(Ok(response)) => Problem::of_server_error(response.status()),
            // Nothing was sent.
            Ok(Err(Failure::OffLimits(_))) => return,
            Ok(Err(failure)) => Problem::of_failure(failure),
            Err(_) => Problem::TimedOut(Detail::none()),
        };
        server.failed_check(&problem, started, &self.trial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn only_an_answer_below_500_is_proof_and_it_is_as_old_as_its_connection() {
        let start = Instant::now();
        let liveness = Liveness::new(start);
        let age = |at| liveness.proof_age(after(start, at)).map(|age| age.as_millis());
        assert_eq!(age(0), None);
        for status in [407, 500, 502, 503, 599] {
            liveness.prove(StatusCode::from_u16(status).unwrap(), Some(start));
        }
        assert_eq!(age(10), None);
        liveness.prove(StatusCode::UNAUTHORIZED, Some(after(start, 100)));
        assert_eq!((age(100), age(3100)), (Some(0), Some(3000)));
        liveness.prove(StatusCode::OK, Some(start));
        assert_eq!(age(3100), Some(3000), "an older connection takes nothing away");
        let opened = after(start, 100);
        assert!(liveness.is_proven_since(opened), "a check that began then");
        assert!(!liveness.is_proven_since(opened + Duration::from_nanos(1)), "a check that began later");
    }

    #[test]
    fn there_is_one_check_at_a_time() {
        let server = Server::new(
            crate::settings::RegistrySettings::default().budget,
            crate::BreakerSettings::default(),
        );
        assert!(server.liveness.begin() && !server.liveness.begin());
        drop(UnderWay(Arc::clone(&server)));
        assert!(server.liveness.begin());
    }
}
