//! One server we talk to, as all callers together see it: its budget, its quota, and whether it is alive.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use reqwest::{Client, StatusCode, Url};
use tokio::time::{Instant, sleep_until, timeout};

use crate::{
    context::Context,
    error::Problem,
    manners::{
        breaker::{Breaker, Health, Patience},
        gate::{Account, Budget, Gate, Permit, Refused},
        quota::Quota,
    },
};

/// A trial has its own patience: the callers are not waiting for it.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// A caller with less time than this says nothing about the server when it gives up.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Peer {
    gate: Arc<Gate>,
    health: Mutex<Watched>,
}

#[derive(Debug)]
struct Watched {
    breaker: Breaker,
    /// What the callers are told while the breaker is open.
    cause: Option<Problem>,
    /// Whether somebody sends trials.
    trials: bool,
}

/// How to find out whether a server is back.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) client: Client,
    pub(crate) url: Url,
}

impl Peer {
    pub(crate) fn new(budget: Budget, patience: Patience) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            gate: Gate::new(budget, now),
            health: Mutex::new(Watched { breaker: Breaker::new(patience, now), cause: None, trials: false }),
        })
    }

    /// Waits for the turn of a request, or says why none should be sent.
    pub(crate) async fn enter(&self, account: Account, context: &Context) -> Result<Permit, Problem> {
        self.check_alive()?;
        let permit = loop {
            tokio::select! {
                entered = self.gate.enter(context.class(), account, context.deadline) => {
                    break entered.map_err(refused)?;
                }
                () = context.raised() => {}
            }
        };
        // Others may have found the server dead while this one stood in line.
        self.check_alive()?;
        Ok(permit)
    }

    fn check_alive(&self) -> Result<(), Problem> {
        let mut health = self.lock();
        if health.breaker.admits(Instant::now()) {
            return Ok(());
        }
        Err(health.cause.clone().unwrap_or_else(|| Problem::Unreachable("it did not answer lately".into())))
    }

    /// Takes note of an answer: the server is there, and this is what it says about quotas.
    pub(crate) fn answered(self: &Arc<Self>, answer: &Answered<'_>) {
        let refusals = match answer.status {
            StatusCode::TOO_MANY_REQUESTS => self.gate.refusals(answer.account),
            _ => 0,
        };
        self.gate.learn(answer.account, answer.quota.hold(answer.status, refusals));
        let health = health_of(answer.status);
        let problem = || Problem::Unreachable(format!("it answered with status {}", answer.status).into());
        self.record(health, answer.started, problem, answer.trial);
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
        self.record(health, started, || problem.clone(), trial);
    }

    fn record(
        self: &Arc<Self>,
        health: Health,
        started: Instant,
        problem: impl FnOnce() -> Problem,
        trial: impl FnOnce() -> Trial,
    ) {
        let mut watched = self.lock();
        let opened = watched.breaker.record(health, started, Instant::now());
        if !opened {
            return;
        }
        let problem = problem();
        tracing::debug!(problem = %problem, "a registry counts as down until a trial is answered");
        watched.cause = Some(lately(problem));
        if !std::mem::replace(&mut watched.trials, true) {
            tokio::spawn(send_trials(Arc::downgrade(self), trial()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the next trial is due. `None` ends the trials, and notes that they ended under the same lock.
    fn next_trial(&self) -> Option<Instant> {
        let mut watched = self.lock();
        let due = watched.breaker.next_trial(Instant::now());
        watched.trials = due.is_some();
        due
    }
}

/// What an answer tells about the server that gave it.
pub(crate) struct Answered<'a> {
    pub(crate) status: StatusCode,
    pub(crate) quota: &'a Quota,
    pub(crate) account: Account,
    pub(crate) started: Instant,
    pub(crate) trial: &'a (dyn Fn() -> Trial + Sync),
}

fn health_of(status: StatusCode) -> Health {
    match status.as_u16() {
        500 | 502 | 503 | 504 | 522 => Health::Failed,
        _ => Health::Answered,
    }
}

/// Whoever is told about an earlier failure must see that it was an earlier one.
fn lately(problem: Problem) -> Problem {
    let detail = |reason: &str| format!("it failed a moment ago and is being watched ({reason})");
    match problem {
        Problem::Tls(reason) => Problem::Tls(detail(reason.as_str().unwrap_or("TLS error")).into()),
        Problem::TimedOut(_) => Problem::Unreachable(detail("no answer").into()),
        Problem::Unreachable(reason) => {
            Problem::Unreachable(detail(reason.as_str().unwrap_or("connection failed")).into())
        }
        other => Problem::Unreachable(detail(&other.to_string()).into()),
    }
}

fn refused(refused: Refused) -> Problem {
    match refused {
        Refused::Held { until } => Problem::RateLimited {
            until: SystemTime::now().checked_add(until.saturating_duration_since(Instant::now())),
            detail: "it said so in an earlier answer".into(),
        },
        Refused::TooLate => Problem::TimedOut(
            "other requests were first in line; see registries.<host>.requestsPerSecond".into(),
        ),
    }
}

/// Asks a server that is down for a sign of life, until there is one or nobody cares any more.
async fn send_trials(peer: Weak<Peer>, trial: Trial) {
    while let Some(due) = peer.upgrade().and_then(|peer| peer.next_trial()) {
        sleep_until(due).await;
        let Some(peer) = peer.upgrade() else { return };
        peer.lock().breaker.begin_trial();
        let answer = timeout(TRIAL_TIMEOUT, trial.client.get(trial.url.clone()).send()).await;
        let alive = matches!(answer, Ok(Ok(answer)) if health_of(answer.status()) == Health::Answered);
        peer.lock().breaker.end_trial(alive, fastrand::f64(), Instant::now());
    }
}
