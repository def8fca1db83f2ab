//! One HTTP server as all callers share it: its budget, its quota, its circuit breaker and its liveness.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use hyper::{Method, StatusCode};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout};
use url::Url;

use super::budget::{Account, Budget, Limiter, Permit, Refused};
use super::circuit_breaker::{BreakerSettings, CallFailure, CircuitBreaker, TrialResult};
use super::health::HealthSignal;
use super::liveness::{Liveness, is_alive};
use super::quota::{Hold, Quota};
use super::rate::Class;
use super::tenant_queue::Tenant;
use crate::error::{Outage, Problem};
use crate::request::context::Context;
use crate::transport::endpoint::Endpoint;
use crate::transport::failure::Failure;
use crate::transport::http::{Pool, Request, Response};

/// A trial that hangs is given up after this time. No caller waits for it.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// A timeout shorter than this says nothing about the server.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Server {
    limiter: Arc<Limiter>,
    circuit: Mutex<Circuit>,
    /// Published whenever the circuit opens or closes.
    pub(crate) health: HealthSignal,
    pub(crate) liveness: Liveness,
}

#[derive(Debug)]
struct Circuit {
    breaker: CircuitBreaker,
    /// The error that callers get while the circuit is open.
    cause: Option<Problem>,
    /// Whether a task sends trials.
    has_trials: bool,
}

/// A request that shows whether a server is alive.
#[derive(Debug)]
pub(crate) struct Trial {
    /// Opens a new connection for each request.
    pub(crate) pool: Pool,
    pub(crate) target: TrialTarget,
}

#[derive(Debug)]
pub(crate) enum TrialTarget {
    /// `/v2/` of a registry, in the scheme that it turned out to speak.
    Registry(Arc<Endpoint>),
    Url(Url),
}

impl Trial {
    pub(crate) async fn send(&self) -> Result<Response, Failure> {
        let get = |url: Url| self.pool.send(Request::new(Method::GET, url));
        let ping = |base: &Url| base.join("v2/").unwrap_or_else(|_| base.clone());
        match &self.target {
            TrialTarget::Url(url) => get(url.clone()).await,
            TrialTarget::Registry(endpoint) => {
                match (get(ping(endpoint.base())).await, endpoint.other_scheme()) {
                    (Err(failure), Some(other)) => get(ping(other)).await.map_err(|_| failure),
                    (answer, _) => answer,
                }
            }
        }
    }
}

/// An answer, as far as limits and health are concerned.
pub(crate) struct ResponseReport<'a> {
    pub(crate) status: StatusCode,
    /// When its connection was opened.
    pub(crate) opened: Option<Instant>,
    pub(crate) quota: &'a Quota,
    pub(crate) account: Account,
    /// Identifies what was asked for, as [`CallFailure`] does.
    pub(crate) request: u64,
    /// A body follows, which is reported by itself.
    pub(crate) has_body: bool,
    pub(crate) started: Instant,
}

impl Server {
    pub(crate) fn new(budget: Budget, breaker: BreakerSettings) -> Arc<Self> {
        let now = Instant::now();
        let breaker = CircuitBreaker::new(breaker, now);
        Arc::new(Self {
            limiter: Limiter::new(budget, now),
            circuit: Mutex::new(Circuit { breaker, cause: None, has_trials: false }),
            health: HealthSignal::default(),
            liveness: Liveness::new(now),
        })
    }

    /// Waits for a turn in the budget, or returns why no request may be sent.
    pub(crate) async fn enter(&self, account: Account, context: &Context) -> Result<Permit, Problem> {
        self.admit(context)?;
        let (class, deadline, patience) = (context.class(), context.deadline, context.patience());
        let turn = self.limiter.enter(class, context.tenant(), account, deadline, patience);
        let entered = context.unless_withdrawn(turn).await.unwrap_or(Err(Refused::TooLate));
        let permit = entered.map_err(refused)?;
        // Other calls may have opened the circuit while this one waited.
        self.admit(context)?;
        Ok(permit)
    }

    fn admit(&self, context: &Context) -> Result<(), Problem> {
        if context.ignores_open_circuit() { Ok(()) } else { self.check_circuit() }
    }

    /// Waits for the turn of a liveness check: with admission's rank, and regardless of the quota of an account,
    /// because registries do not count this request as a pull.
    pub(crate) async fn enter_check(&self, deadline: Instant) -> Result<Permit, Problem> {
        self.check_circuit()?;
        let turn = self.limiter.turn(Class::Admission, &Tenant::default(), deadline).await;
        let permit = turn.map_err(refused)?;
        self.check_circuit()?;
        Ok(permit)
    }

    /// Until when requests of an account are refused.
    pub(crate) fn held_until(&self, account: Account, now: Instant) -> Option<Instant> {
        self.limiter.held_until(account, now)
    }

    pub(crate) fn idle(&self, now: Instant) -> Duration {
        self.circuit.lock().breaker.idle(now)
    }

    /// The error that callers get while the circuit is open.
    pub(crate) fn check_circuit(&self) -> Result<(), Problem> {
        let mut circuit = self.circuit.lock();
        let now = Instant::now();
        if circuit.breaker.admits(now) {
            return Ok(());
        }
        let unknown = || Problem::Unreachable("it did not answer lately".into());
        let mut problem = circuit.cause.clone().unwrap_or_else(unknown);
        if let (Problem::Unreachable(outage), Some(due)) = (&mut problem, circuit.breaker.next_trial(now)) {
            outage.until = SystemTime::now().checked_add(due.saturating_duration_since(now));
        }
        Err(problem)
    }

    pub(crate) fn answered(self: &Arc<Self>, report: &ResponseReport<'_>, trial: &Arc<Trial>) {
        self.limiter.learn(report.account, |refusals| report.quota.hold(report.status, refusals));
        self.liveness.prove(report.status, report.opened);
        if is_server_error(report.status) {
            let failure = CallFailure::ServerError { request: report.request };
            let problem = Problem::of_server_error(report.status);
            self.record(failure, &problem, report.started, report.quota.retry_after, trial);
        } else {
            self.circuit.lock().breaker.answered(!report.has_body, Instant::now());
        }
    }

    /// Records a call without an answer.
    pub(crate) fn failed(self: &Arc<Self>, problem: &Problem, started: Instant, trial: &Arc<Trial>) {
        let failure = match problem {
            Problem::TimedOut(_) if started.elapsed() < SHORTEST_TIMEOUT => return,
            Problem::TimedOut(_) => CallFailure::TimedOut,
            _ => CallFailure::Disconnected,
        };
        self.record(failure, problem, started, None, trial);
    }

    /// Records that a body arrived whole.
    pub(crate) fn completed(&self) {
        self.circuit.lock().breaker.answered(true, Instant::now());
    }

    /// Records that a body did not arrive whole; `since` is when its next piece was waited for.
    pub(crate) fn broke_off(
        self: &Arc<Self>,
        problem: &Problem,
        since: Instant,
        request: u64,
        trial: &Arc<Trial>,
    ) {
        match problem {
            Problem::TimedOut(_) => self.failed(problem, since, trial),
            _ => self.record(CallFailure::BrokenOff { request }, problem, since, None, trial),
        }
    }

    /// Records the answer to a liveness check or a trial, and returns whether it proves that the server is alive. It
    /// does not clear the failures of calls, because it answers nothing that callers ask for.
    pub(crate) fn passes(&self, response: &Response) -> bool {
        let status = response.status();
        self.liveness.passed(status, response.opened());
        let quota = Quota::read(response.headers(), SystemTime::now());
        // The requests of admission may be within their quota although this one was not.
        let hold = quota.hold(status, 0).map(|hold| Hold { everyone: None, ..hold });
        if hold.is_some_and(|hold| hold != Hold::default()) {
            self.limiter.learn(None, |_| hold);
        }
        is_alive(status)
    }

    /// Records a liveness check that failed. Answers over established connections do not count against it, proof by a
    /// new connection does.
    pub(crate) fn failed_check(self: &Arc<Self>, problem: &Problem, started: Instant, trial: &Arc<Trial>) {
        if !self.liveness.is_proven_since(started) {
            self.open(problem, trial, CircuitBreaker::trip);
        }
    }

    /// Forgets failures whose reason was a setting of ours.
    pub(crate) fn forget_failures(&self) {
        let mut circuit = self.circuit.lock();
        circuit.breaker.close();
        self.health.publish(None);
    }

    fn record(
        self: &Arc<Self>,
        failure: CallFailure,
        problem: &Problem,
        started: Instant,
        retry_after: Option<Duration>,
        trial: &Arc<Trial>,
    ) {
        self.open(problem, trial, |breaker, now| {
            let opened = breaker.failed(failure, started, now);
            if opened {
                breaker.postpone(retry_after.unwrap_or_default(), now);
            }
            opened
        });
    }

    /// Publishes an outage and starts trials if `change` opens the circuit.
    fn open(
        self: &Arc<Self>,
        problem: &Problem,
        trial: &Arc<Trial>,
        change: impl FnOnce(&mut CircuitBreaker, Instant) -> bool,
    ) {
        let mut circuit = self.circuit.lock();
        if !change(&mut circuit.breaker, Instant::now()) {
            return;
        }
        tracing::debug!(%problem, "the circuit is open until a trial is answered");
        let cause = circuit.cause.insert(circuit_open_after(problem));
        self.health.publish(Some(&*cause));
        if !std::mem::replace(&mut circuit.has_trials, true) {
            tokio::spawn(send_trials(Arc::downgrade(self), Arc::clone(trial)));
        }
    }

    /// When the next trial is due. `None` ends the trials.
    fn next_trial(&self) -> Option<Instant> {
        let mut circuit = self.circuit.lock();
        let due = circuit.breaker.next_trial(Instant::now());
        circuit.has_trials = due.is_some();
        if due.is_none() {
            self.health.publish(None);
        }
        due
    }
}

/// Statuses of a server that is not well. The second range is Cloudflare's for an unreachable origin.
fn is_server_error(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502..=504 | 520..=524)
}

/// The failure that opened the circuit, marked as an earlier one.
fn circuit_open_after(problem: &Problem) -> Problem {
    let detail = |reason: &str| format!("circuit open after: {reason}").into();
    match problem {
        Problem::Tls(reason) => Problem::Tls(detail(reason.as_str().unwrap_or("TLS error"))),
        Problem::TimedOut(_) => {
            Problem::Unreachable(Outage { detail: detail("no answer"), ..Outage::default() })
        }
        Problem::Unreachable(outage) => {
            let detail = detail(outage.detail.as_str().unwrap_or("connection failed"));
            Problem::Unreachable(Outage { detail, ..outage.clone() })
        }
        other => Problem::Unreachable(Outage { detail: detail(&other.to_string()), ..Outage::default() }),
    }
}

fn refused(refused: Refused) -> Problem {
    match refused {
        Refused::Held { ends } => {
            let rest = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
            Problem::RateLimited {
                until: rest.and_then(|rest| SystemTime::now().checked_add(rest)),
                detail: "it said so in an earlier answer".into(),
            }
        }
        Refused::TooLate => Problem::TimedOut(
            "the queue of requests to the registry is too long; see registries.<host>.requestsPerSecond"
                .into(),
        ),
    }
}

/// Sends trials until the circuit closes or the server is forgotten.
async fn send_trials(server: Weak<Server>, trial: Arc<Trial>) {
    while let Some(due) = server.upgrade().and_then(|server| server.next_trial()) {
        sleep_until(due).await;
        let Some(server) = server.upgrade() else { return };
        let result = match timeout(TRIAL_TIMEOUT, trial.send()).await {
            Ok(Ok(response)) if server.passes(&response) => TrialResult::Alive,
            Ok(Ok(_)) if !server.liveness.answers_checks() => TrialResult::Unclear,
            Ok(_) | Err(_) => TrialResult::Dead,
        };
        let mut circuit = server.circuit.lock();
        circuit.breaker.end_trial(result, fastrand::f64(), Instant::now());
        if !circuit.breaker.is_open() {
            server.health.publish(None);
        }
    }
}
