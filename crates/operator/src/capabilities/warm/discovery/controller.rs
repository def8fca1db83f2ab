//! The controller: asks for each policy when it is due, and writes what was found.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::conditions::{Condition, Finding, find, merge};
use fairlead_api::drop::{DiscoveryPolicy, DiscoveryPolicyStatus};
use fairlead_plan::node::Node;
use fairlead_plan::warm::discovery::{
    Discovery, NodeFacts, Report, Round, SpecError, first_due, interval, next_due, refused,
};
use jiff::Timestamp;
use serde_json::json;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::Instant;

use super::DiscoverySetup;
use super::ask::{AllAsked, Asked, ask_all};
use super::metrics::Measured;
use crate::cluster::nodes::Watched;
use crate::cluster::state::Changes;
use crate::controller::status::{Draft, Manner, ObjectId, StatusWriter};
use crate::controller::{Broken, Controller, Inflight, wake_at};
use crate::platform::leader::Term;

const FIELD_MANAGER: &str = "fairlead-discovery";
/// Policies at once. Each may hold answers of several megabytes.
const AT_ONCE: usize = 4;
/// Besides, policies that are new or edited: they do not wait for backends that do not answer.
const EDITED_AT_ONCE: usize = 2;
/// How long a policy whose ranking counts nodes waits for them to be listed.
const NODES_LISTED: Duration = Duration::from_secs(10);

/// Which version of which policy is being asked for.
type Version = (Arc<str>, Option<i64>);

/// The controller.
pub struct DiscoverySync {
    setup: Arc<DiscoverySetup>,
    statuses: StatusWriter,
    /// By UID.
    policies: HashMap<Arc<str>, Policy>,
    asking: Inflight<Version, AllAsked>,
    /// Set while some ranking counts nodes.
    nodes: Option<Watched>,
}

struct Policy {
    object: Arc<DiscoveryPolicy>,
    name: Arc<str>,
    plan: Result<Arc<Discovery>, SpecError>,
    due: Timestamp,
    /// What it says now has not been asked for yet.
    edited: bool,
    /// Rounds in a row in which something failed.
    failures: u32,
    /// Every query answered in the round that the list is of, as far as this process knows.
    complete: bool,
    asking: Option<AbortHandle>,
    asked: Option<AllAsked>,
    /// What the status does not say yet.
    news: Option<News>,
}

struct News {
    status: DiscoveryPolicyStatus,
    findings: Vec<Finding>,
}

impl fmt::Debug for DiscoverySync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiscoverySync").field("policies", &self.policies.len()).finish_non_exhaustive()
    }
}

impl Controller for DiscoverySync {
    const NAME: &'static str = "discovery";
    type Setup = DiscoverySetup;

    fn waits_for(setup: &DiscoverySetup) -> Option<String> {
        setup.context.board.awaits_served(&["DiscoveryPolicy"])
    }

    fn changes(setup: &DiscoverySetup) -> Vec<Changes> {
        vec![setup.context.resources.discovery_policies.changes()]
    }

    async fn begin(setup: &Arc<DiscoverySetup>, _term: &Term) -> Result<Self, Broken> {
        Ok(Self {
            setup: setup.clone(),
            statuses: StatusWriter::new(setup.context.client.clone(), FIELD_MANAGER),
            policies: HashMap::new(),
            asking: Inflight::new(AT_ONCE + EDITED_AT_ONCE),
            nodes: None,
        })
    }

    async fn round(&mut self, term: &Term) -> Result<Instant, Broken> {
        let (begun, now) = (Instant::now(), Timestamp::now());
        self.observe(now);
        self.conclude(now).await?;
        self.ask(now);
        self.write(term, begun).await;
        Ok(self.statuses.next_due(begun, self.next_look(begun, now)))
    }

    async fn progress(&mut self) -> bool {
        let ((uid, generation), asked) = self.asking.next().await;
        let policy = self.policies.get_mut(&uid);
        // Answers to what a policy asked before it was edited say nothing about it.
        if let Some(policy) = policy.filter(|policy| policy.object.metadata.generation == generation) {
            policy.asking = None;
            match asked {
                Some(asked) => policy.asked = Some(asked),
                None => policy.failed(Timestamp::now()),
            }
        }
        true
    }

    fn end(setup: &DiscoverySetup) {
        setup.metrics.rest();
    }
}

impl DiscoverySync {
    /// Takes up new, edited and deleted policies.
    fn observe(&mut self, now: Timestamp) {
        let snapshot = self.setup.context.resources.discovery_policies.snapshot();
        let mut present = HashSet::new();
        for object in snapshot.objects.values().filter(|one| one.metadata.deletion_timestamp.is_none()) {
            let uid: Arc<str> = object.metadata.uid.as_deref().unwrap_or_default().into();
            present.insert(uid.clone());
            match self.policies.get_mut(&uid) {
                Some(known) if known.object.metadata.generation == object.metadata.generation => {
                    known.object = object.clone();
                }
                known => {
                    if let Some(known) = known {
                        known.dismiss(&self.setup);
                    }
                    self.policies.insert(uid, Policy::new(object, now));
                }
            }
        }
        self.policies.retain(|uid, policy| {
            let stays = present.contains(uid);
            if !stays {
                policy.dismiss(&self.setup);
            }
            stays
        });
        let counts = self.policies.values().filter_map(|policy| policy.plan.as_ref().ok());
        if !counts.clone().any(|plan| plan.counts_nodes()) {
            self.nodes = None;
        } else if self.nodes.is_none() {
            self.nodes = Some(self.setup.context.resources.nodes.keep_watched());
        }
    }

    /// Makes a status of the answers that have come.
    async fn conclude(&mut self, now: Timestamp) -> Result<(), Broken> {
        let nodes = &self.setup.context.resources.nodes;
        for policy in self.policies.values_mut() {
            let (Some(asked), Ok(plan)) = (policy.asked.take(), &policy.plan) else { continue };
            let ready =
                nodes.all().into_iter().map(|(node, _)| node).filter(|node| node.ready).map(ReadyNode);
            let nodes = plan.exposed_nodes(ready);
            policy.show(&self.setup, plan, &asked.queries);
            let (plan, object, complete) = (plan.clone(), policy.object.clone(), policy.complete);
            // Hundreds of thousands of values take a while, and this task must show that it is alive.
            let report = spawn_blocking(move || {
                let stored = object.status.clone().unwrap_or_default();
                let AllAsked { queries, turn: _turn } = asked;
                let mut answers: Vec<_> = queries.into_iter().map(|one| one.answer).collect();
                let (generation, answers) = (object.metadata.generation, &mut *answers);
                plan.report(Round { stored: &stored, complete, generation, answers, nodes, now })
            });
            let Report { status, findings, failed, complete, found } = report.await?;
            policy.complete = complete;
            self.setup.metrics.show_found(&policy.name, &found);
            self.setup.warming.reconciled("discoverypolicy", !failed);
            if failed {
                policy.failed(now);
            } else {
                policy.failures = 0;
                policy.due = next_due(policy.interval(), 0, now);
            }
            policy.news = Some(News { status, findings });
        }
        Ok(())
    }

    /// Begins to ask for policies that are due: those that are new or edited first, then the longest due.
    fn ask(&mut self, now: Timestamp) {
        let awaits_nodes = self.setup.context.board.awaits_served(&["Node"]).is_some();
        let mut due: Vec<_> = self.policies.iter_mut().filter(|(_, policy)| policy.due <= now).collect();
        due.sort_by_key(|(_, policy)| (!policy.edited, policy.due));
        for (uid, policy) in due {
            let Ok(plan) = &policy.plan else { continue };
            let waits = awaits_nodes
                && plan.counts_nodes()
                && now.duration_since(policy.due).unsigned_abs() < NODES_LISTED;
            let most = if policy.edited { AT_ONCE + EDITED_AT_ONCE } else { AT_ONCE };
            if self.asking.len() >= most || policy.asking.is_some() || waits {
                continue;
            }
            policy.edited = false;
            let version = (uid.clone(), policy.object.metadata.generation);
            let asking = ask_all(self.setup.clone(), plan.clone());
            policy.asking = Some(self.asking.start(version, asking));
        }
    }

    async fn write(&mut self, term: &Term, begun: Instant) {
        let snapshot = self.setup.context.resources.discovery_policies.snapshot();
        let news =
            self.policies.values().filter_map(|policy| Some(policy.news.as_ref()?.draft(&policy.object)));
        let drafts: Vec<_> = news.chain(Draft::of_all_malformed(&snapshot)).collect();
        let (written, _) = self.statuses.write_all(drafts, term, begun).await;
        for uid in &written {
            if let Some(policy) = self.policies.get_mut(uid) {
                policy.news = None;
            }
        }
    }

    fn next_look(&self, begun: Instant, now: Timestamp) -> Instant {
        let waiting = self.policies.values().filter(|one| one.plan.is_ok() && one.asking.is_none());
        let due = waiting.map(|one| one.due).min();
        match due {
            // Either all places are taken, and the end of one wakes this, or nodes are being listed.
            Some(due) if due <= now => begun + Duration::from_secs(1),
            due => wake_at(due, now, begun),
        }
    }
}

impl Policy {
    fn new(object: &Arc<DiscoveryPolicy>, now: Timestamp) -> Self {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let plan = Discovery::compile(&object.spec).map(Arc::new);
        let (generation, status) = (object.metadata.generation, object.status.as_ref());
        let mut policy = Self {
            name: name.into(),
            due: first_due(generation, status, interval(name, &object.spec), now),
            edited: status.is_none_or(|status| status.observed_generation != generation),
            plan,
            failures: 0,
            complete: true,
            asking: None,
            asked: None,
            news: None,
            object: object.clone(),
        };
        if let Err(error) = &policy.plan {
            policy.news = news_of_refusal(error, &policy.object);
        }
        policy
    }

    fn interval(&self) -> Duration {
        interval(&self.name, &self.object.spec)
    }

    fn failed(&mut self, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        self.due = next_due(self.interval(), self.failures, now);
    }

    fn show(&self, setup: &DiscoverySetup, plan: &Discovery, asked: &[Asked]) {
        let measured = plan.queries.iter().zip(asked).map(|(query, asked)| Measured {
            source_type: query.kind_name(),
            name: &query.name,
            healthy: asked.answer.as_ref().is_ok_and(|answer| answer.partial.is_none()),
            took: asked.took,
        });
        setup.metrics.show(&self.name, &measured.collect::<Vec<_>>());
    }

    /// The policy is gone, or has been edited.
    fn dismiss(&mut self, setup: &DiscoverySetup) {
        if let Some(asking) = self.asking.take() {
            asking.abort();
        }
        if let Ok(plan) = &self.plan {
            let queries: Vec<_> = plan.queries.iter().map(|one| (one.kind_name(), &*one.name)).collect();
            setup.metrics.forget(&self.name, &queries);
        }
    }
}

/// The status of an invalid policy, unless it is stored already. Everything else stays as it is.
fn news_of_refusal(error: &SpecError, object: &DiscoveryPolicy) -> Option<News> {
    let (generation, finding) = (object.metadata.generation, refused(error));
    let stored = object.status.clone().unwrap_or_default();
    let status = DiscoveryPolicyStatus { observed_generation: generation, ..stored };
    let says = says(&status.conditions, &finding, generation);
    (!says).then(|| News { status, findings: vec![finding] })
}

fn says(conditions: &[Condition], finding: &Finding, generation: Option<i64>) -> bool {
    find(conditions, finding.type_).is_some_and(|one| {
        one.observed_generation == generation
            && one.reason == finding.reason
            && one.message == finding.message
    })
}

impl News {
    /// Conditions of the other form of a policy are left out, and thereby removed.
    fn draft(&self, object: &DiscoveryPolicy) -> Draft {
        let stored = object.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
        let mut conditions = merge(stored, &self.findings, object.metadata.generation, Timestamp::now());
        conditions.retain(|one| self.findings.iter().any(|finding| finding.type_ == one.type_));
        let status = json!(DiscoveryPolicyStatus { conditions: Vec::new(), ..self.status.clone() });
        Draft::new(ObjectId::of(object), Manner::ApplyList("discoveredImages"), status, &conditions, &[])
    }
}

struct ReadyNode(Arc<Node>);

impl NodeFacts for ReadyNode {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.0.label(key)
    }
}
