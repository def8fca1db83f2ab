//! One server we talk to, as all callers together see it: its budget, its quota, and whether it is alive.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use hyper::{Method, StatusCode};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep_until, timeout};
use url::Url;

use crate::error::{Outage, Problem};
use crate::limits::budget::{Account, Budget, Limiter, Permit, Refused};
use crate::limits::circuit_breaker::{BreakerSettings, CircuitBreaker, Health, TrialOutcome};
use crate::limits::health::HealthSignal;
use crate::limits::liveness::{Liveness, is_alive};
use crate::limits::quota::{Hold, Quota};
use crate::limits::rate::Class;
use crate::limits::tenant_queue::Tenant;
use crate::request::context::Context;
use crate::transport::failure::Failure;
use crate::transport::http::{Pool, Request, Response};

/// A trial that hangs is given up after this time. The callers are not waiting for it.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// A caller with less time than this says nothing about the server when it gives up.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Server {
    gate: Arc<Limiter>,
    health: Mutex<Watched>,
    /// The part of `health` that others look at, told anew whenever it changes.
    pub(crate) vitals: HealthSignal,
    pub(crate) liveness: Liveness,
}

#[derive(Debug)]
struct Watched {
    breaker: CircuitBreaker,
    /// What the callers are told while the breaker is open.
    cause: Option<Problem>,
    /// Whether somebody sends trials.
    trials: bool,
}

/// How to find out whether a server is alive.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// Makes a new connection for each request.
    pub(crate) pool: Pool,
    pub(crate) url: Url,
    /// The plain address, while it is not known yet what the server speaks.
    pub(crate) other_scheme: Option<Url>,
}

impl Trial {
    /// Asks once.
    pub(crate) async fn ask(&self) -> Result<Response, Failure> {
        let get = |url: &Url| self.pool.send(Request::new(Method::GET, url.clone()));
        match (get(&self.url).await, &self.other_scheme) {
            (Err(failure), Some(url)) => get(url).await.map_err(|_| failure),
            (answer, _) => answer,
        }
    }
}

impl Server {
    pub(crate) fn new(budget: Budget, patience: BreakerSettings) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            gate: Limiter::new(budget, now),
            health: Mutex::new(Watched {
                breaker: CircuitBreaker::new(patience, now),
                cause: None,
                trials: false,
            }),
            vitals: HealthSignal::default(),
            liveness: Liveness::new(now),
        })
    }

    /// Waits for the turn of a request, or says why none should be sent.
    pub(crate) async fn enter(&self, account: Account, context: &Context) -> Result<Permit, Problem> {
        self.admit(context)?;
        let permit = loop {
            let (class, deadline) = (context.class(), context.deadline);
            tokio::select! {
                entered = self.gate.enter(class, context.tenant(), account, deadline, context.patience()) => {
                    break entered.map_err(refused)?;
                }
                () = context.raised() => {}
            }
        };
        // Others may have found the server dead while this one stood in line.
        self.admit(context)?;
        Ok(permit)
    }

    fn admit(&self, context: &Context) -> Result<(), Problem> {
        if context.goes_through_open_circuit() { Ok(()) } else { self.check_alive() }
    }

    /// Waits for the turn of a liveness check: with admission's rank, and whatever the registry said about the quota of
    /// an account, since registries do not count this request as a pull.
    pub(crate) async fn turn(&self, deadline: Instant) -> Result<Permit, Problem> {
        self.check_alive()?;
        let permit = self.gate.turn(Class::Admission, &Tenant::default(), deadline).await.map_err(refused)?;
        self.check_alive()?;
        Ok(permit)
    }

    pub(crate) fn idle(&self, now: Instant) -> Duration {
        self.lock().breaker.idle(now)
    }

    pub(crate) fn check_alive(&self) -> Result<(), Problem> {
        let mut health = self.lock();
        let now = Instant::now();
        if health.breaker.admits(now) {
            return Ok(());
        }
        let unknown = || Problem::Unreachable("it did not answer lately".into());
        let mut problem = health.cause.clone().unwrap_or_else(unknown);
        if let (Problem::Unreachable(outage), Some(due)) = (&mut problem, health.breaker.next_trial(now)) {
            outage.until = SystemTime::now().checked_add(due.saturating_duration_since(now));
        }
        Err(problem)
    }

    /// Takes note of an answer: the server is there, and this is what it says about quotas.
    pub(crate) fn answered(self: &Arc<Self>, answer: &ResponseReport<'_>) {
        self.gate.learn(answer.account, |refusals| answer.quota.hold(answer.status, refusals));
        self.liveness.prove(answer.status, answer.opened);
        let health = match health_of(answer.status, answer.question) {
            Health::Answered if answer.goes_on => Health::Begun,
            health => health,
        };
        let problem = || Problem::of_server_error(answer.status);
        self.record(health, answer.started, answer.quota.retry_after, problem, answer.trial);
    }

    /// Takes note of a call without an answer.
    pub(crate) fn failed(
        self: &Arc<Self>,
        problem: &Problem,
        started: Instant,
        trial: impl FnOnce() -> Trial,
    ) {
        let health = match problem {
            Problem::TimedOut(_) if started.elapsed() < SHORTEST_PATIENCE => return,
            Problem::TimedOut(_) => Health::Silent,
            _ => Health::Failed,
        };
        self.record(health, started, None, || problem.clone(), trial);
    }

    /// Takes note that an answer that had begun is complete.
    pub(crate) fn completed(&self) {
        let now = Instant::now();
        self.lock().breaker.record(Health::Answered, now, now);
    }

    /// Takes note of an answer that began and was not completed; `since` is when its next piece was waited for.
    pub(crate) fn broke_off(
        self: &Arc<Self>,
        problem: &Problem,
        since: Instant,
        question: u64,
        trial: &Trial,
    ) {
        if matches!(problem, Problem::TimedOut(_)) {
            self.failed(problem, since, || trial.clone());
        } else {
            self.record(Health::BrokenOff { question }, since, None, || problem.clone(), || trial.clone());
        }
    }

    /// Takes note of the answer to a liveness check or a trial, and returns whether it proves that the server is alive. It
    /// answers nothing that callers want, so their failures keep their weight.
    pub(crate) fn passes(&self, response: &Response) -> bool {
        let status = response.status();
        self.liveness.passed(status, response.opened());
        let quota = Quota::read(response.headers(), SystemTime::now());
        // Admission asks for something else, which may be within its quota.
        let hold = quota.hold(status, 0).map(|hold| Hold { everyone: None, ..hold });
        if hold.is_some_and(|hold| hold != Hold::default()) {
            self.gate.learn(None, |_| hold);
        }
        is_alive(status)
    }

    /// Takes note of a liveness check that failed. What was answered meanwhile over established connections does not
    /// count, but proof of a new connection does.
    pub(crate) fn failed_check(self: &Arc<Self>, problem: &Problem, started: Instant, trial: Trial) {
        if self.liveness.is_proven_since(started) {
            return;
        }
        let now = Instant::now();
        let mut watched = self.lock();
        if watched.breaker.trip(now) {
            self.opened(&mut watched, problem.clone(), || trial);
        }
    }

    /// Forgets failures that something of ours was the reason for.
    pub(crate) fn forget_failures(&self) {
        let mut watched = self.lock();
        watched.breaker.reset();
        watched.cause = None;
    }

    /// Tells the breaker. `rest` is how long the server asked to be left alone.
    fn record(
        self: &Arc<Self>,
        health: Health,
        started: Instant,
        rest: Option<Duration>,
        problem: impl FnOnce() -> Problem,
        trial: impl FnOnce() -> Trial,
    ) {
        let now = Instant::now();
        let mut watched = self.lock();
        if watched.breaker.record(health, started, now) {
            watched.breaker.postpone(rest.unwrap_or_default(), now);
            self.opened(&mut watched, problem(), trial);
        }
    }

    /// Has trials sent now that the breaker is open.
    fn opened(self: &Arc<Self>, watched: &mut Watched, problem: Problem, trial: impl FnOnce() -> Trial) {
        tracing::debug!(problem = %problem, "a registry counts as down until a trial is answered");
        watched.cause = Some(lately(problem));
        if !std::mem::replace(&mut watched.trials, true) {
            tokio::spawn(send_trials(Arc::downgrade(self), trial()));
        }
    }

    fn lock(&self) -> Locked<'_> {
        let watched = self.health.lock();
        Locked { watched, vitals: &self.vitals }
    }

    /// When the next trial is due. `None` ends the trials, and notes that they ended under the same lock.
    fn next_trial(&self) -> Option<Instant> {
        let mut watched = self.lock();
        let due = watched.breaker.next_trial(Instant::now());
        watched.trials = due.is_some();
        due
    }
}

/// The health in the hands of somebody who may change it. What became of it is told before anybody else gets hold of it.
struct Locked<'a> {
    watched: MutexGuard<'a, Watched>,
    vitals: &'a HealthSignal,
}

impl Deref for Locked<'_> {
    type Target = Watched;

    fn deref(&self) -> &Watched {
        &self.watched
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Watched {
        &mut self.watched
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.vitals.tell(self.watched.breaker.is_open(), self.watched.cause.as_ref());
    }
}

/// What an answer tells about the server that gave it.
pub(crate) struct ResponseReport<'a> {
    pub(crate) status: StatusCode,
    /// When the connection was opened over which it came.
    pub(crate) opened: Option<Instant>,
    pub(crate) quota: &'a Quota,
    pub(crate) account: Account,
    /// What was asked, as [`Health::Erred`] has it.
    pub(crate) question: u64,
    /// More of it is to come, and how that went will be told.
    pub(crate) goes_on: bool,
    pub(crate) started: Instant,
    pub(crate) trial: &'a (dyn Fn() -> Trial + Sync),
}

fn health_of(status: StatusCode, question: u64) -> Health {
    match status.as_u16() {
        500 => Health::Erred { question },
        // The second range is how Cloudflare says that it does not get through to the server behind it.
        502..=504 | 520..=524 => Health::Unwell { question },
        _ => Health::Answered,
    }
}

/// Whoever is told about an earlier failure must see that it was an earlier one.
fn lately(problem: Problem) -> Problem {
    let detail = |reason: &str| format!("it failed a moment ago and is being watched ({reason})");
    match problem {
        Problem::Tls(reason) => Problem::Tls(detail(reason.as_str().unwrap_or("TLS error")).into()),
        Problem::TimedOut(_) => Problem::Unreachable(detail("no answer").into()),
        Problem::Unreachable(outage) => {
            let detail = detail(outage.detail.as_str().unwrap_or("connection failed")).into();
            Problem::Unreachable(Outage { detail, ..outage })
        }
        other => Problem::Unreachable(detail(&other.to_string()).into()),
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
            "other requests were first in line; see registries.<host>.requestsPerSecond".into(),
        ),
    }
}

/// Asks a server that is down for a sign of life, until there is one or nobody cares any more.
async fn send_trials(server: Weak<Server>, trial: Trial) {
    while let Some(due) = server.upgrade().and_then(|server| server.next_trial()) {
        sleep_until(due).await;
        let Some(server) = server.upgrade() else { return };
        server.lock().breaker.begin_trial();
        let outcome = match timeout(TRIAL_TIMEOUT, trial.ask()).await {
            Ok(Ok(response)) if server.passes(&response) => TrialOutcome::Alive,
            Ok(Ok(_)) if !server.liveness.answers_checks() => TrialOutcome::Unclear,
            Ok(_) | Err(_) => TrialOutcome::Dead,
        };
        let now = Instant::now();
        server.lock().breaker.end_trial(outcome, fastrand::f64(), now);
    }
}
