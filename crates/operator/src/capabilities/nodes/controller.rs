//! The controller: plans what nodes should follow, and writes how far they have come.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::conditions::{Condition, ConditionStatus, Finding, find, merge, types};
use fairlead_plan::node_config::migration::{Migration, Step};
use fairlead_plan::node_config::status::{self, AgentNode, Observed, Statuses};
use fairlead_plan::node_config::{History, Inputs, NodeConfig, PolicyId, PolicyKind};
use fairlead_plan::policy_status;
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::{OwnedMutexGuard, mpsc};
use tokio::time::Instant;

use super::compare::Compared;
use super::observe::{self, KINDS, Missing, Policy};
use super::{NodesSetup, migrate};
use crate::capabilities::availability::Seen;
use crate::cluster::state::Changes;
use crate::controller::events::{About, Notice};
use crate::controller::status::{Draft, Manner, StatusWriter};
use crate::controller::{Broken, Controller};
use crate::platform::leader::Term;

const FIELD_MANAGER: &str = "fairlead-nodes";
/// Nodes become late, and Pods of agents ready, without a change that wakes the controller.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// Reports of many nodes make one write: the shortest time from one status of an object to the next.
const PACE: Duration = Duration::from_secs(1);
/// A kind whose definition drops conditions is tried again after this time: the definition may have changed.
const UNSTORED_FOR: Duration = Duration::from_hours(1);
/// A step of a migration that was refused is tried again after this time.
const REFUSED_FOR: Duration = Duration::from_mins(5);

/// No differences.
const NOTHING: &[String] = &[];

/// The controller.
pub struct PolicyReporter {
    setup: Arc<NodesSetup>,
    statuses: StatusWriter,
    history: History,
    planned: Option<Planned>,
    missing: Missing,
    /// When the status of each object was last written, by UID.
    written: HashMap<Arc<str>, Instant>,
    /// Kinds whose definitions have no room for conditions, and since when that is known.
    unstored: BTreeMap<PolicyKind, Instant>,
    /// What was last told about each object, by UID and topic.
    told: HashMap<(Arc<str>, &'static str), String>,
    seen: OwnedMutexGuard<mpsc::Receiver<Seen>>,
    compared: Compared,
    /// Steps that the API server refused, by name of the object, and when they are tried again.
    refused: BTreeMap<String, (String, Instant)>,
}

/// What the policies come to.
struct Planned {
    hash: String,
    config: NodeConfig,
    config_hash: String,
    /// What becomes of old objects, after these refusals.
    migration: Option<(BTreeMap<String, String>, Arc<Migration>)>,
}

impl fmt::Debug for PolicyReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyReporter").field("unstored", &self.unstored).finish_non_exhaustive()
    }
}

impl Controller for PolicyReporter {
    const NAME: &'static str = "mirror policies on nodes";
    const DEBOUNCE: Duration = PACE;
    type Setup = NodesSetup;

    fn waits_for(setup: &NodesSetup) -> Option<String> {
        let (board, resources) = (&setup.context.board, &setup.context.resources);
        if let Some(why) = board.awaits_pods_and(&KINDS).or_else(|| board.awaits_served(&["DaemonSet"])) {
            return Some(why);
        }
        // Nodes report every few seconds; without policies that is of no use.
        let mut nodes = setup.nodes.lock();
        if observe::has_none(resources) {
            *nodes = None;
            return None;
        }
        nodes.get_or_insert_with(|| resources.nodes.keep_watched());
        board.awaits_served(&["Node"])
    }

    fn changes(setup: &NodesSetup) -> Vec<Changes> {
        let resources = &setup.context.resources;
        vec![
            resources.image_content_source_policies.changes(),
            resources.image_digest_mirror_sets.changes(),
            resources.image_source_digest_policies.changes(),
            resources.image_source_tag_policies.changes(),
            resources.image_tag_mirror_sets.changes(),
            resources.node_mirror_reports.changes(),
            resources.agents.changes(),
            resources.nodes.changes(),
        ]
    }

    async fn begin(setup: &Arc<NodesSetup>, _term: &Term) -> Result<Self, Broken> {
        Ok(Self {
            setup: setup.clone(),
            seen: Arc::clone(&setup.seen).lock_owned().await,
            compared: Compared::default(),
            statuses: StatusWriter::new(setup.context.client.clone(), FIELD_MANAGER),
            history: History::default(),
            planned: None,
            missing: Missing::default(),
            written: HashMap::new(),
            unstored: BTreeMap::new(),
            told: HashMap::new(),
            refused: BTreeMap::new(),
        })
    }

    async fn round(&mut self, term: &Term) -> Result<Instant, Broken> {
        let begun = Instant::now();
        let policies = observe::policies(&self.setup.context.resources);
        let inputs = self.inputs(&policies);
        let mut statuses = self.judge(&policies, &inputs);
        self.refused.retain(|_, (_, until)| *until > begun);
        let migration = self.migration(&inputs);
        for (name, condition) in &migration.conditions {
            let id = PolicyId { kind: PolicyKind::ImageContentSourcePolicy, name: name.clone() };
            let conditions = statuses.conditions.entry(id).or_default();
            if !conditions.iter().any(|known| known.type_ == condition.type_) {
                conditions.push(condition.clone());
            }
        }
        self.compare(&policies, &mut statuses, begun);
        let sources = self.planned.as_ref().map_or(0, |planned| planned.config.named().count());
        self.setup.metrics.show(&statuses, sources);
        let next = self.write(&policies, &statuses, term, begun).await;
        self.migrate(&policies, &migration.steps, term, begun).await;
        Ok(next)
    }

    async fn progress(&mut self) -> bool {
        let Some(Seen { reference, verdict, .. }) = self.seen.recv().await else {
            // The watch has ended, which it does with the process.
            return std::future::pending().await;
        };
        self.compared.learn(&reference, &verdict)
    }

    fn end(setup: &NodesSetup) {
        setup.wishes.send_replace(Arc::default());
        setup.metrics.end();
        *setup.nodes.lock() = None;
    }
}

impl PolicyReporter {
    /// What agents report that they follow: objects that can be read.
    fn inputs(&self, policies: &[Policy]) -> Inputs {
        let readable = policies.iter().filter_map(|policy| policy.content.as_ref().ok());
        let (insecure, blocked) = (self.setup.insecure.clone(), self.setup.blocked.clone());
        Inputs { policies: readable.cloned().collect(), insecure, blocked }
    }

    /// Has tags compared on mirrors and sources, and says what differs.
    fn compare(&mut self, policies: &[Policy], statuses: &mut Statuses, now: Instant) {
        let Some(planned) = &self.planned else { return };
        self.compared.observe(&self.setup, &planned.config, &planned.hash, now);
        let differences = self.compared.differences();
        for policy in policies {
            // Without anything to compare, nothing differs.
            let known = differences.get(&policy.id).map_or(Some(NOTHING), Option::as_deref);
            let stored = &policy.stored.conditions;
            let finding = match known {
                Some(known) => policy_status::consistent(known, stored),
                None => find(stored, types::CONSISTENT).map(repeated),
            };
            statuses.conditions.entry(policy.id.clone()).or_default().extend(finding);
        }
    }

    /// What the conditions of all policies should say.
    fn judge(&mut self, policies: &[Policy], inputs: &Inputs) -> Statuses {
        let hash = self.history.note(inputs);
        let planned = match self.planned.take() {
            Some(planned) if planned.hash == hash => planned,
            _ => {
                let config = NodeConfig::plan(inputs);
                Planned { hash, config_hash: config.hash(), config, migration: None }
            }
        };
        let context = &self.setup.context;
        let now = context.clock.now();
        let agents = observe::nodes(&context.resources, &mut self.missing, now);
        let nodes: Option<Vec<AgentNode<'_>>> = agents.as_ref().map(|agents| {
            let nodes = agents.nodes.iter().map(|(name, pod)| AgentNode {
                name,
                report: agents.reports.get(name).map(|report| &report.spec),
                is_lost: pod.is_lost(now),
            });
            nodes.collect()
        });
        let observed = Observed {
            config: &planned.config,
            config_hash: &planned.config_hash,
            policies_hash: &planned.hash,
            history: &self.history,
            nodes: nodes.as_deref(),
        };
        let readable = policies.iter().filter(|policy| policy.content.is_ok()).map(|policy| &policy.id);
        let mut statuses = observed.statuses(readable);
        for policy in policies {
            if let Err(error) = &policy.content {
                let conditions = status::unreadable(&policy.id, error);
                statuses.conditions.insert(policy.id.clone(), conditions);
            }
        }
        self.planned = Some(planned);
        statuses
    }

    fn migration(&mut self, inputs: &Inputs) -> Arc<Migration> {
        let refused: BTreeMap<_, _> =
            self.refused.iter().map(|(name, (why, _))| (name.clone(), why.clone())).collect();
        let known = self.planned.as_mut().and_then(|planned| planned.migration.clone());
        match known {
            Some((failures, migration)) if failures == refused => migration,
            _ => {
                let migration = Arc::new(Migration::plan(inputs, self.setup.migration, &refused));
                if let Some(planned) = &mut self.planned {
                    planned.migration = Some((refused, migration.clone()));
                }
                migration
            }
        }
    }

    /// Writes what differs from what is stored, and tells of what is wrong. Returns when to look again.
    async fn write(
        &mut self,
        policies: &[Policy],
        statuses: &Statuses,
        term: &Term,
        begun: Instant,
    ) -> Instant {
        self.unstored.retain(|_, since| *since + UNSTORED_FOR > begun);
        let mut next = begun + LOOK_AGAIN;
        let mut open = HashSet::new();
        for policy in policies {
            let Some(findings) = statuses.conditions.get(&policy.id) else { continue };
            self.tell(policy, findings);
            let uid = &policy.object.uid;
            let Some(draft) = draft(policy, findings) else { continue };
            open.insert(uid.clone());
            if self.unstored.contains_key(&policy.id.kind) || !self.statuses.may(&draft, begun) {
                continue;
            }
            let due = self.written.get(uid).map_or(begun, |last| *last + PACE);
            if due > begun {
                next = next.min(due);
                continue;
            }
            if !term.holds() {
                break;
            }
            self.written.insert(uid.clone(), begun);
            // A failure is logged, and tried again with back-off.
            if let Ok(is_kept) = self.statuses.write_if_kept(&draft).await {
                self.note_kept(policy, is_kept, begun);
            }
        }
        self.statuses.keep(|uid| open.contains(uid));
        let known: HashSet<_> = policies.iter().map(|policy| &policy.object.uid).collect();
        self.written.retain(|uid, _| known.contains(uid));
        self.told.retain(|(uid, _), _| known.contains(uid));
        self.statuses.next_due(begun, next)
    }

    /// Where a definition that is not ours drops conditions, events and metrics say the same.
    fn note_kept(&mut self, policy: &Policy, is_kept: bool, now: Instant) {
        let kind = policy.id.kind;
        self.setup.metrics.unstored(kind.name(), !is_kept);
        if !is_kept && self.unstored.insert(kind, now).is_none() {
            tracing::warn!(
                kind = kind.name(),
                "the definition of this kind in the cluster has no conditions; events and metrics say how its objects do"
            );
        }
    }

    /// News about an object: that something of it is wrong, that a mirror differs from its source, and where conditions
    /// cannot be stored, everything.
    fn tell(&mut self, policy: &Policy, findings: &[Finding]) {
        let is_unstored = self.unstored.contains_key(&policy.id.kind);
        let finding = |type_| findings.iter().find(|finding| finding.type_ == type_);
        let is_true = |finding: &&Finding| finding.status == ConditionStatus::True;
        let wrong = finding(types::ACCEPTED).filter(|accepted| !is_true(accepted));
        let applied = finding(types::APPLIED).filter(|_| is_unstored && wrong.is_none());
        let state = wrong.map(|accepted| (true, "MirrorPolicyFailed", accepted, &accepted.message));
        let state = state.or_else(|| {
            let applied = applied?;
            let is_good = is_true(&applied);
            let reason = if is_good { "MirrorPolicyApplied" } else { "MirrorPolicyNotApplied" };
            // The number of nodes changes too often to be news each time.
            Some((!is_good, reason, applied, &applied.reason))
        });
        let differing = finding(types::CONSISTENT).filter(|consistent| !is_true(consistent));
        let differing = differing.map(|found| (true, "MirrorDiffers", found, &found.message));
        for (topic, news) in [("state", state), ("tags", differing)] {
            let slot = (policy.object.uid.clone(), topic);
            let Some((is_warning, reason, finding, essence)) = news else {
                self.told.remove(&slot);
                continue;
            };
            let key = format!("{:?} {essence}", policy.generation);
            if self.told.get(&slot) == Some(&key) {
                continue;
            }
            self.told.insert(slot, key.clone());
            let message = finding.message.clone();
            if is_warning {
                tracing::warn!(policy = %policy.id, reason, "{message}");
            }
            self.setup.context.events.tell(notice(policy, is_warning, reason, message, key));
        }
    }

    async fn migrate(&mut self, policies: &[Policy], steps: &[Step], term: &Term, begun: Instant) {
        for step in steps {
            let name = match step {
                Step::Create { policy } => &policy.id.name,
                Step::Delete { name } => name,
            };
            let is_old = |policy: &&Policy| {
                policy.id.kind == PolicyKind::ImageContentSourcePolicy
                    && policy.id.name == *name
                    && policy.content.is_ok()
            };
            let Some(old) = policies.iter().find(is_old) else { continue };
            if !term.holds() {
                return;
            }
            match migrate::carry_out(&self.setup.context, old, step).await {
                Ok(None) => {}
                Ok(Some(done)) => {
                    tracing::info!(policy = %old.id, "{done}");
                    let key = done.clone();
                    self.setup.context.events.tell(notice(old, false, "MirrorPolicyMigrated", done, key));
                }
                Err(failure) => {
                    tracing::warn!(policy = %old.id, error = %failure, "cannot be migrated; trying again");
                    let why = format!("it could not be migrated: {failure}");
                    self.setup.context.events.tell(notice(
                        old,
                        true,
                        "MigrationFailed",
                        why.clone(),
                        why.clone(),
                    ));
                    self.refused.insert(name.clone(), (why, begun + REFUSED_FOR));
                }
            }
        }
    }
}

/// The same again, while what is stored may still hold.
fn repeated(stored: &Condition) -> Finding {
    let is_true = stored.status == ConditionStatus::True;
    Finding::new(types::CONSISTENT, is_true, &stored.reason, stored.message.clone())
}

fn notice(policy: &Policy, warning: bool, reason: &'static str, message: String, key: String) -> Notice {
    let object = &policy.object;
    let about = About {
        api_version: object.resource.api_version.clone(),
        kind: object.resource.kind.clone(),
        namespace: None,
        name: object.name.to_string(),
        uid: object.uid.to_string(),
    };
    Notice { about, warning, reason, message, key }
}

/// What is to be written, if the stored status says something else.
fn draft(policy: &Policy, findings: &[Finding]) -> Option<Draft> {
    let merged = merge(&policy.stored.conditions, findings, policy.generation, Timestamp::now());
    let is_ours = |one: &Condition| findings.iter().any(|finding| finding.type_ == one.type_);
    let ours: Vec<Condition> = merged.into_iter().filter(is_ours).collect();
    let is_stored = |one: &Condition| find(&policy.stored.conditions, &one.type_) == Some(one);
    let is_malformed = matches!(policy.manner, Manner::Replace { .. });
    if ours.iter().all(is_stored) && (is_malformed || policy.stored.observed_generation == policy.generation)
    {
        return None;
    }
    let status = json!({"observedGeneration": policy.generation});
    let (object, manner) = (policy.object.clone(), policy.manner.clone());
    Some(Draft::new(object, manner, status, &ours, &policy.others(&ours)))
}
