//! What an object's status says.

use std::time::Duration;

use fairlead_api::conditions::{Condition, ConditionStatus, Finding, find, types};
use fairlead_api::reef::{HEALTHY, OWNED, ProxyCacheHealth, ProxyCachePhase, ProxyCacheStatus, SYNCED};
use fairlead_domain::backoff::Backoff;
use fairlead_domain::harbor::Health;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Observed;
use super::finalize::is_over;
use super::ownership::Ownership;
use super::reconcile::{Action, Drift, Plan};

/// From one look at a pair that is as it should be to the next.
const STEADY: Duration = Duration::from_mins(5);
/// After an error.
const AFTER_ERROR: Duration = Duration::from_secs(30);
/// The configuration names no Harbor.
pub(super) const NOT_CONFIGURED: &str = "HarborNotConfigured";
/// Messages that Harbor makes are no longer.
const LONGEST_MESSAGE: usize = 2048;

/// How a look at Harbor ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Harbor could not be looked at.
    Failed(String),
    Seen(Box<Seen>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub observed: Observed,
    /// Made on that.
    pub plan: Plan,
    /// Why a step did not succeed.
    pub failed: Option<String>,
    /// Why pairs of former names could not be removed. The new pair works all the same.
    pub former: Option<String>,
    /// Why Harbor keeps the endpoint as it was: it tests the upstream before it stores anything.
    pub refused: Option<String>,
    /// The step that failed is one that Harbor does not take for the same reason: there is no endpoint yet.
    pub rejected: bool,
    /// Version of the Secret whose login Harbor has now.
    pub taken: Option<String>,
}

impl Seen {
    /// Whether Harbor tested the upstream, and did not take what it was given.
    pub fn is_refused(&self) -> bool {
        self.rejected || self.refused.is_some()
    }

    /// Gives up pairs of former names that could not be removed since then, and tells what is left.
    pub fn give_up(&mut self, since: Timestamp, now: Timestamp) -> Option<String> {
        let why = self.former.take_if(|_| is_over(since, now))?;
        self.observed.former.clear();
        Some(format!("what was made under a former name may be left in Harbor: {why}"))
    }

    /// Whether nothing is left under a former name.
    pub fn is_complete(&self) -> bool {
        self.observed.former.is_empty() && self.failed.is_none()
    }
}

/// A status to be written if it says something new, and when to look again.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Without conditions.
    pub status: ProxyCacheStatus,
    pub findings: Vec<Finding>,
    /// Whether the upstream is healthy, if Harbor says so definitely.
    pub healthy: Option<bool>,
    /// Whether everything is as the object asks for.
    pub settled: bool,
    pub again: Duration,
}

impl Report {
    /// With what is found of the object besides.
    #[must_use]
    pub fn and(mut self, findings: impl IntoIterator<Item = Finding>) -> Self {
        self.findings.extend(findings);
        self
    }
}

/// Makes the status of an outcome. `failures` are the updates that were refused and the removals that failed before, in
/// a row.
pub fn report(
    stored: Option<&ProxyCacheStatus>,
    generation: Option<i64>,
    outcome: &Outcome,
    failures: u32,
    now: Timestamp,
) -> Report {
    let kept = ProxyCacheStatus {
        observed_generation: generation,
        conditions: Vec::new(),
        ..stored.cloned().unwrap_or_default()
    };
    match outcome {
        Outcome::Failed(error) => failed(kept, error),
        Outcome::Seen(seen) => of_seen(kept, seen, failures, now),
    }
}

/// What is said while the configuration names no Harbor.
pub fn not_configured(stored: Option<&ProxyCacheStatus>, generation: Option<i64>) -> Report {
    let message = "no Harbor is configured: set harbor.url in the configuration, or HARBOR_URL";
    let status = ProxyCacheStatus {
        observed_generation: generation,
        phase: Some(ProxyCachePhase::Pending),
        health: Some(ProxyCacheHealth::Unknown),
        message: Some(message.to_owned()),
        conditions: Vec::new(),
        ..stored.cloned().unwrap_or_default()
    };
    let findings = vec![
        Finding::new(types::READY, false, NOT_CONFIGURED, message),
        Finding::new(HEALTHY, ConditionStatus::Unknown, NOT_CONFIGURED, ""),
    ];
    Report { status, findings, healthy: None, settled: false, again: STEADY }
}

/// What is said while a deleted object waits for its pair to be removed.
pub fn leaving(stored: Option<&ProxyCacheStatus>, generation: Option<i64>, failing: &str) -> Report {
    let message = shortened(&format!("being deleted: {failing}"));
    let findings = vec![Finding::new(types::READY, false, "Deleting", &*message)];
    let status = ProxyCacheStatus {
        observed_generation: generation,
        phase: Some(ProxyCachePhase::Error),
        message: Some(message),
        conditions: Vec::new(),
        ..stored.cloned().unwrap_or_default()
    };
    Report { status, findings, healthy: None, settled: false, again: AFTER_ERROR }
}

fn failed(kept: ProxyCacheStatus, error: &str) -> Report {
    let error = shortened(error);
    let findings = vec![
        Finding::new(types::READY, false, "ReconcileError", &*error),
        Finding::new(HEALTHY, ConditionStatus::Unknown, "ReconcileError", &*error),
    ];
    let status = ProxyCacheStatus {
        phase: Some(ProxyCachePhase::Error),
        health: Some(ProxyCacheHealth::Unknown),
        message: Some(error),
        ..kept
    };
    Report { status, findings, healthy: None, settled: false, again: AFTER_ERROR }
}

fn of_seen(kept: ProxyCacheStatus, seen: &Seen, failures: u32, now: Timestamp) -> Report {
    let Seen { observed, plan, .. } = seen;
    let problem = seen.failed.clone().or_else(|| plan.problem.as_ref().map(|problem| problem.0.clone()));
    let refused = seen.refused.as_deref().map(shortened);
    let former = seen.former.as_deref().map(shortened);
    // Pods that name the new upstream must not be given images of the former one.
    let other_upstream = refused.as_deref().filter(|_| keeps_another_address(plan));
    let other_upstream =
        other_upstream.map(|refused| format!("the endpoint still serves its former upstream: {refused}"));
    let problem = problem.or(other_upstream).as_deref().map(shortened);
    let mut status = kept;
    let health = observed.endpoint.as_ref().map_or(Health::Unknown, |endpoint| endpoint.health);
    status.health = Some(match health {
        Health::Healthy => ProxyCacheHealth::Healthy,
        Health::Unhealthy => ProxyCacheHealth::Unhealthy,
        Health::Unknown => ProxyCacheHealth::Unknown,
    });
    let linked = observed.endpoint.as_ref().zip(observed.project.as_ref());
    status.project_created =
        Some(linked.is_some_and(|(endpoint, project)| project.endpoint == Some(endpoint.id)));
    let owned = matches!(plan.ownership, Ownership::Ours | Ownership::Adoptable);
    match (&plan.ownership, &observed.endpoint) {
        (_, Some(endpoint)) if owned => status.registry_id = Some(endpoint.id),
        // Else it would be taken for ours.
        (Ownership::Foreign(_), _) => status.registry_id = None,
        _ => {}
    }
    if owned && seen.taken.is_some() {
        status.credentials_version.clone_from(&seen.taken);
    }
    let message = problem.clone().or_else(|| refused.clone()).or_else(|| former.clone());
    status.message.clone_from(&message);
    let phase = if problem.is_some() { ProxyCachePhase::Error } else { ProxyCachePhase::Ready };
    let again = match &problem {
        // Each attempt is a login at the upstream, which may lock users, or deletes what Harbor does not let go.
        _ if seen.is_refused() || former.is_some() => Backoff::new(AFTER_ERROR, STEADY).plain(failures),
        Some(_) => AFTER_ERROR,
        None => STEADY,
    };
    status.phase = Some(phase);
    if phase == ProxyCachePhase::Ready {
        status.last_reconciled = Some(Time(now));
    }
    let not_synced = match (&refused, &problem, &former) {
        (Some(refused), ..) => Some(("UpdateRefused", &**refused)),
        (None, Some(problem), _) => Some(("ReconcileError", &**problem)),
        (None, None, former) => former.as_deref().map(|former| ("FormerPairLeft", former)),
    };
    let mut findings = findings(plan, health, observed, problem.as_deref(), refused.as_deref());
    findings.extend(synced(&plan.ownership, not_synced));
    let healthy = match health {
        Health::Healthy => Some(true),
        Health::Unhealthy => Some(false),
        Health::Unknown => None,
    };
    let settled = problem.is_none() && refused.is_none() && former.is_none();
    Report { status, findings, healthy, settled, again }
}

/// Whether the endpoint has another address than the object asks for, and is to be given it.
fn keeps_another_address(plan: &Plan) -> bool {
    let updates = |action: &Action| matches!(action, Action::UpdateEndpoint { drifts, .. } if drifts.contains(&Drift::Url));
    plan.actions.iter().any(updates)
}

fn findings(
    plan: &Plan,
    health: Health,
    observed: &Observed,
    problem: Option<&str>,
    refused: Option<&str>,
) -> Vec<Finding> {
    let mut findings = vec![match problem {
        Some(problem) => Finding::new(types::READY, false, "ReconcileError", problem),
        None => Finding::new(types::READY, true, "Reconciled", ""),
    }];
    findings.push(match health {
        Health::Healthy => Finding::new(HEALTHY, true, "RegistryHealthy", ""),
        Health::Unhealthy => {
            let message = refused.unwrap_or("Harbor cannot reach the upstream, or is not let in there");
            Finding::new(HEALTHY, false, "RegistryUnhealthy", message)
        }
        Health::Unknown if observed.endpoint.is_none() => {
            Finding::new(HEALTHY, ConditionStatus::Unknown, "ReconcileError", problem.unwrap_or_default())
        }
        Health::Unknown => Finding::new(HEALTHY, ConditionStatus::Unknown, "HealthUnknown", ""),
    });
    match &plan.ownership {
        Ownership::Absent => {}
        owned @ (Ownership::Ours | Ownership::Adoptable) => {
            findings.push(Finding::new(OWNED, true, "Owned", owned.to_string()));
        }
        foreign @ Ownership::Foreign(_) => {
            let message =
                format!("{foreign}; they are used as they are, and stay when this object is deleted");
            findings.push(Finding::new(OWNED, false, "Foreign", message));
        }
    }
    findings
}

/// Whether Harbor has what the object asks for, and nothing besides. A pair of others is not written, so for one only
/// what is left of a former pair is reported.
fn synced(ownership: &Ownership, not: Option<(&str, &str)>) -> Option<Finding> {
    match (ownership, not) {
        (Ownership::Ours | Ownership::Adoptable, None) => Some(Finding::new(SYNCED, true, "Synced", "")),
        (Ownership::Ours | Ownership::Adoptable, Some((reason, message)))
        | (Ownership::Foreign(_), Some((reason @ "FormerPairLeft", message))) => {
            Some(Finding::new(SYNCED, false, reason, message))
        }
        (Ownership::Absent | Ownership::Foreign(_), _) => None,
    }
}

/// Whether a status says so already, whenever it was written.
pub fn says(stored: Option<&ProxyCacheStatus>, report: &Report) -> bool {
    let Some(stored) = stored else { return false };
    let generation = report.status.observed_generation;
    let plain = |status: &ProxyCacheStatus| ProxyCacheStatus {
        conditions: Vec::new(),
        last_reconciled: None,
        ..status.clone()
    };
    let same = |finding: &Finding, one: &Condition| {
        one.status == finding.status
            && one.reason == finding.reason
            && one.message == finding.message
            && one.observed_generation == generation
    };
    plain(stored) == plain(&report.status)
        && report
            .findings
            .iter()
            .all(|finding| find(&stored.conditions, finding.type_).is_some_and(|one| same(finding, one)))
}

pub(super) fn shortened(message: &str) -> String {
    let mut message = message.to_owned();
    message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
    message
}
