//! What the conditions of mirror policies say: merged or not, on how many nodes, and how exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use fairlead_api::conditions::{ConditionStatus, Finding as Condition, types};
use fairlead_api::fairlead::{MAX_REPORTED_SOURCES, NodeMirrorReportSpec, ReportedSource};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Toleration;

use crate::node::{Node, Taint};
use crate::warm::targets::tolerates;

use super::migration::NOT_CONVERTIBLE;
use super::{Finding, History, NodeConfig, PolicyId, PolicyKind};

/// Something of a policy is not used because it is wrong.
pub const FAILED: &str = "Failed";
/// All of it is merged.
pub const MERGED: &str = "Merged";
pub const APPLIED: &str = "Applied";
pub const PROGRESSING: &str = "Progressing";
/// No agents are installed.
pub const NO_AGENTS: &str = "NoAgents";
/// There is no node that agents would run on.
pub const NO_NODES: &str = "NoNodes";
pub const EXACT: &str = "Exact";
pub const NOT_EXPRESSED: &str = "NotExpressed";
/// No node has told yet.
pub const NOT_REPORTED: &str = "NotReported";

/// How long a node may be without a ready agent.
const LOST_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// Items that a message names; others are counted.
const NAMED: usize = 3;
/// Longest that one item of a message may be.
const LONGEST: usize = 400;

/// A node that agents should run on.
#[derive(Clone, Debug)]
pub struct AgentNode<'a> {
    pub name: &'a str,
    pub report: Option<&'a NodeMirrorReportSpec>,
    /// Its agent has not been ready for too long for its report to count.
    pub is_lost: bool,
}

/// The Pod of the agent of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentPod {
    Ready,
    NotReady { since: Timestamp },
}

impl AgentPod {
    /// Whether what the agent reported counts no more: its files may have been changed, and it does not mend them.
    pub fn is_lost(self, now: Timestamp) -> bool {
        match self {
            Self::Ready => false,
            Self::NotReady { since } => now.duration_since(since) >= LOST_AFTER,
        }
    }

    /// The state of a node with two agents.
    #[must_use]
    pub fn better(self, other: Self) -> Self {
        match (self, other) {
            (Self::NotReady { since: one }, Self::NotReady { since: two }) => {
                Self::NotReady { since: one.max(two) }
            }
            _ => Self::Ready,
        }
    }
}

/// Whether agents should run on a node: it is ready, has Linux, and is what their `DaemonSet` selects. Taints of
/// Kubernetes itself keep no Pod of a `DaemonSet` away.
pub fn is_selected(node: &Node, selector: &BTreeMap<String, String>, tolerations: &[Toleration]) -> bool {
    let repels = |taint: &&Taint| {
        matches!(&*taint.effect, "NoSchedule" | "NoExecute")
            && !taint.key.starts_with("node.kubernetes.io/")
            && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    };
    node.ready
        && &*node.os == "linux"
        && selector.iter().all(|(key, value)| node.label(key) == Some(value))
        && !node.taints.iter().any(|taint| repels(&taint))
}

/// What conditions follow from.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// What the policies come to.
    pub config: &'a NodeConfig,
    pub config_hash: &'a str,
    /// Hash of the policies, which is the latest of the history.
    pub policies_hash: &'a str,
    pub history: &'a History,
    /// In the order of their names; `None` where no agents are installed.
    pub nodes: Option<&'a [AgentNode<'a>]>,
}

/// How many nodes there are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Nodes that follow all policies as they are now.
    pub applied: usize,
    /// Nodes that have not reported so far, or follow earlier policies.
    pub behind: usize,
    /// Nodes that cannot follow some policy, and nodes whose agent is not there.
    pub failing: usize,
}

/// What is to be said.
#[derive(Clone, Debug, Default)]
pub struct Statuses {
    /// The conditions of each policy.
    pub conditions: BTreeMap<PolicyId, Vec<Condition>>,
    /// `None` where no agents are installed.
    pub nodes: Option<NodeCounts>,
}

/// Why a policy is not in force on a node.
enum Gap {
    /// It may be soon, without anything being done.
    Behind(&'static str),
    Failing(String),
}

impl<'a> Observed<'a> {
    /// The conditions of these policies, and the states of nodes.
    pub fn statuses(&self, policies: impl IntoIterator<Item = &'a PolicyId>) -> Statuses {
        let sources = self.sources();
        let mut findings: BTreeMap<&PolicyId, Vec<&Finding>> = BTreeMap::new();
        for finding in &self.config.findings {
            findings.entry(&finding.policy).or_default().push(finding);
        }
        let none = BTreeSet::new();
        let conditions = policies.into_iter().map(|policy| {
            let findings = findings.get(policy).map(Vec::as_slice).unwrap_or_default();
            let sources = sources.get(policy).unwrap_or(&none);
            (policy.clone(), self.conditions(policy, sources, findings))
        });
        Statuses { conditions: conditions.collect(), nodes: self.counts() }
    }

    /// The sources of each policy that made it into the configuration, also under other names of their registries.
    fn sources(&self) -> BTreeMap<&'a PolicyId, BTreeSet<&'a str>> {
        let mut sources: BTreeMap<&PolicyId, BTreeSet<&str>> = BTreeMap::new();
        for (scope, entry) in &self.config.entries {
            for policy in &*entry.policies {
                sources.entry(policy).or_default().insert(scope.as_str());
            }
        }
        sources
    }

    fn is_named(&self, source: &str) -> bool {
        self.config.entries.get(source).is_some_and(|entry| !entry.is_alias)
    }

    fn counts(&self) -> Option<NodeCounts> {
        let mut counts = NodeCounts::default();
        for node in self.nodes? {
            match self.gap(node) {
                None => counts.applied += 1,
                Some(Gap::Behind(_)) => counts.behind += 1,
                Some(Gap::Failing(_)) => counts.failing += 1,
            }
        }
        Some(counts)
    }

    /// What keeps a node from following all policies.
    fn gap(&self, node: &AgentNode<'_>) -> Option<Gap> {
        if let Some(gap) = self.gap_of_all(node) {
            return Some(gap);
        }
        let report = node.report?;
        if report.policies.as_deref() != Some(self.policies_hash) {
            return Some(Gap::Behind("it follows earlier policies"));
        }
        report.skipped.first().map(|skipped| Gap::Failing(said(skipped)))
    }

    /// What keeps a node from following any policy.
    fn gap_of_all(&self, node: &AgentNode<'_>) -> Option<Gap> {
        if node.is_lost {
            return Some(Gap::Failing("its agent has not been ready for ten minutes or more".to_owned()));
        }
        let Some(report) = node.report else { return Some(Gap::Behind("it has not reported so far")) };
        if let Some(error) = &report.error {
            return Some(Gap::Failing(error.clone()));
        }
        let is_same = report.policies.as_deref() == Some(self.policies_hash);
        (is_same && report.config.as_deref() != Some(self.config_hash)).then(|| {
            let version = &report.agent;
            Gap::Failing(format!(
                "its agent, version {version}, merges the policies otherwise than the operator: upgrade one of them"
            ))
        })
    }

    /// What keeps a node from following one policy.
    fn gap_of(&self, node: &AgentNode<'_>, policy: &PolicyId, sources: &BTreeSet<&str>) -> Option<Gap> {
        if let Some(gap) = self.gap_of_all(node) {
            return Some(gap);
        }
        let report = node.report?;
        let known = report.policies.as_deref().and_then(|hash| self.history.contents(hash));
        let now = self.history.contents(self.policies_hash).and_then(|contents| contents.get(policy));
        if known.and_then(|contents| contents.get(policy)) != now {
            return Some(Gap::Behind("it does not follow this version yet"));
        }
        let skipped = report.skipped.iter().find(|skipped| is_among(sources, skipped));
        let skipped = skipped.map(said).or_else(|| unlisted(report, sources));
        skipped.map(Gap::Failing)
    }

    fn conditions(
        &self,
        policy: &PolicyId,
        sources: &BTreeSet<&str>,
        findings: &[&Finding],
    ) -> Vec<Condition> {
        let named = sources.iter().filter(|source| self.is_named(source)).count();
        let accepted = accepted(named, findings);
        let Some(nodes) = self.nodes else {
            let message = "no agents are installed, so no node follows it; see docs/node-configuration.md";
            return vec![
                Condition::new(types::APPLIED, false, NO_AGENTS, message),
                Condition::new(types::EXACT, ConditionStatus::Unknown, NO_AGENTS, message),
                accepted,
            ];
        };
        let (mut applied, mut gaps) = (Vec::new(), Vec::new());
        for node in nodes {
            match self.gap_of(node, policy, sources) {
                None => applied.push(node),
                Some(gap) => gaps.push((node.name, gap)),
            }
        }
        let carried = carried(applied.len(), nodes.len(), &gaps, &accepted);
        vec![accepted, carried, exact(&applied, sources)]
    }
}

/// The conditions of an object that cannot be read.
pub fn unreadable(policy: &PolicyId, error: &str) -> Vec<Condition> {
    let message =
        format!("the object cannot be read: {error}; nodes go on with an earlier version if they know one");
    let mut conditions = vec![
        Condition::new(types::ACCEPTED, false, FAILED, message.clone()),
        Condition::new(types::APPLIED, false, FAILED, message.clone()),
        Condition::new(types::EXACT, ConditionStatus::Unknown, FAILED, message.clone()),
    ];
    if policy.kind == PolicyKind::ImageContentSourcePolicy {
        conditions.push(Condition::new(types::UPGRADEABLE, false, NOT_CONVERTIBLE, message));
    }
    conditions
}

fn is_among(sources: &BTreeSet<&str>, reported: &ReportedSource) -> bool {
    sources.contains(reported.source.as_str())
}

/// A report lists skipped sources in order, as many as fit. Of those after the last nothing is known.
fn unlisted(report: &NodeMirrorReportSpec, sources: &BTreeSet<&str>) -> Option<String> {
    let last = report.skipped.last().filter(|_| report.unlisted > 0)?;
    let is_cut = report.skipped.len() >= MAX_REPORTED_SOURCES;
    let after = sources.iter().find(|source| is_cut && **source > last.source.as_str())?;
    Some(format!("more sources are left alone than fit its report, perhaps {after} among them"))
}

fn said(ReportedSource { source, message }: &ReportedSource) -> String {
    format!("{source}: {message}")
}

/// `Accepted`: whether it is merged. What is only odd about it is said as well.
fn accepted(sources: usize, findings: &[&Finding]) -> Condition {
    let wrong: Vec<&&Finding> = findings.iter().filter(|finding| finding.problem.is_failure()).collect();
    let told = if wrong.is_empty() { findings.iter().collect() } else { wrong };
    let items = told.iter().map(|finding| format!("source {:?}: {}", finding.source, finding.problem));
    match told.first() {
        Some(first) => {
            let (holds, reason) = (!first.problem.is_failure(), first.problem.reason());
            Condition::new(types::ACCEPTED, holds, reason, listed(items))
        }
        None => Condition::new(types::ACCEPTED, true, MERGED, format!("{sources} sources are merged")),
    }
}

/// `Applied`: on how many nodes it is in force.
fn carried(applied: usize, all: usize, gaps: &[(&str, Gap)], accepted: &Condition) -> Condition {
    let failing = gaps.iter().filter(|(_, gap)| matches!(gap, Gap::Failing(_)));
    let behind = gaps.iter().filter(|(_, gap)| matches!(gap, Gap::Behind(_)));
    let has_failing = failing.clone().next().is_some();
    let mut message = format!("{applied} of {all} nodes");
    if !gaps.is_empty() {
        let items = failing.chain(behind).map(|(node, gap)| match gap {
            Gap::Behind(why) => format!("{node}: {why}"),
            Gap::Failing(why) => format!("{node}: {why}"),
        });
        // Writing into a String cannot fail.
        let _ = write!(message, "; not on {}", listed(items));
    }
    if accepted.reason == FAILED {
        let message = format!("only what is accepted of it: {message}");
        return Condition::new(types::APPLIED, false, FAILED, message);
    }
    match (all, gaps.is_empty()) {
        (0, _) => Condition::new(types::APPLIED, ConditionStatus::Unknown, NO_NODES, message),
        (_, true) => Condition::new(types::APPLIED, true, APPLIED, message),
        (_, false) => {
            Condition::new(types::APPLIED, false, if has_failing { FAILED } else { PROGRESSING }, message)
        }
    }
}

/// `Exact`: what runtimes do otherwise than it says, on the nodes that follow it.
fn exact(applied: &[&AgentNode<'_>], sources: &BTreeSet<&str>) -> Condition {
    let mut notes: BTreeMap<&ReportedSource, usize> = BTreeMap::new();
    let mut is_cut = false;
    for report in applied.iter().filter_map(|node| node.report) {
        is_cut |= report.unlisted > 0;
        for note in report.inexact.iter().filter(|note| is_among(sources, note)) {
            *notes.entry(note).or_default() += 1;
        }
    }
    if !notes.is_empty() {
        let items = notes.iter().map(|(note, nodes)| format!("{} (on {nodes} nodes)", said(note)));
        return Condition::new(types::EXACT, false, NOT_EXPRESSED, listed(items));
    }
    let unknown =
        |message: &str| Condition::new(types::EXACT, ConditionStatus::Unknown, NOT_REPORTED, message);
    match (applied.is_empty(), is_cut) {
        (true, _) => unknown("no node follows it so far"),
        (false, true) => unknown("some nodes have more to report than fits their reports"),
        (false, false) => Condition::new(
            types::EXACT,
            true,
            EXACT,
            "the runtimes of nodes that follow it express all of it",
        ),
    }
}

/// The first few items, and how many more there are.
fn listed(items: impl Iterator<Item = String>) -> String {
    let mut items = items.map(|mut item| {
        item.truncate(item.floor_char_boundary(LONGEST));
        item
    });
    let mut text = items.by_ref().take(NAMED).collect::<Vec<_>>().join("; ");
    let more = items.count();
    if more > 0 {
        let _ = write!(text, "; and {more} more");
    }
    text
}
