//! The state of warming as a value: what the table shows and what programs read. Its JSON is documented and stays as
//! it is.

use std::cmp::Reverse;

use fairlead_api::conditions::{find, types};
use fairlead_api::drop::{
    CachedImagePhase, CachedImageSetPhase, CachedImageSetStatus, CachedImageSpec, CachedImageStatus,
    PULL_PROGRESS, PullPolicySpec,
};
use fairlead_api::fairlead::WarmLedger;
use fairlead_plan::warm::asked;
use fairlead_plan::warm::memory::{Memory, Row};
use fairlead_plan::warm::pacing::Pace;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::DynamicObject;
use serde::Serialize;

use crate::readiness::Readiness;
use crate::stored::part;

/// Everything that was found.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct WarmReport {
    pub(crate) images: Vec<ImageReport>,
    pub(crate) sets: Vec<SetReport>,
    /// Whatever makes the report less than whole.
    pub(crate) warnings: Vec<String>,
}

/// One `CachedImage`.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ImageReport {
    pub(crate) name: String,
    #[serde(skip)]
    pub(crate) uid: String,
    /// The reference that the object asks for.
    pub(crate) image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<CachedImagePhase>,
    pub(crate) targeted: u32,
    pub(crate) holding: u32,
    pub(crate) pulling: u32,
    /// Nodes whose last pull failed. None: their ledgers cannot be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failing: Option<u32>,
    /// A node that should hold the image now is among them: ledgers keep what happened on others, too.
    #[serde(skip)]
    fails: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_pulled_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ready: Option<Readiness>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<Readiness>,
    /// Whether an operator has looked at the object as it is now.
    pub(crate) observed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deleting_since: Option<Timestamp>,
    /// Only of an image that is asked for by name: those that failed first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nodes: Option<Vec<NodeReport>>,
    /// What is wrong with the object itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) problems: Vec<String>,
}

/// What the last pull on one node came to.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeReport {
    pub(crate) node: String,
    /// What the kubelet was asked for.
    pub(crate) reference: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pulled_at: Option<Timestamp>,
    /// In a row.
    pub(crate) failures: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed_at: Option<Timestamp>,
    /// From when on it is tried again, as soon as there is a slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) again_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
}

/// One `CachedImageSet`.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SetReport {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<CachedImageSetPhase>,
    pub(crate) images: u32,
    /// Those that are on all their nodes.
    pub(crate) images_ready: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ready: Option<Readiness>,
    pub(crate) observed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) problems: Vec<String>,
}

/// What is known of a ledger before it is read.
#[derive(Debug)]
pub(crate) struct LedgerLine {
    pub(crate) name: String,
    pub(crate) owners: Vec<OwnerReference>,
    pub(crate) failed: u32,
}

impl LedgerLine {
    pub(crate) fn is_of(&self, uid: &str) -> bool {
        self.owners.iter().any(|owner| owner.uid == uid)
    }
}

impl WarmReport {
    pub(crate) fn is_troubled(&self) -> bool {
        self.images.iter().any(ImageReport::is_troubled) || self.sets.iter().any(SetReport::is_troubled)
    }

    pub(crate) fn count_failing(&mut self, ledgers: &[LedgerLine]) {
        let mut failed = std::collections::HashMap::<&str, u32>::new();
        for ledger in ledgers {
            for owner in &ledger.owners {
                *failed.entry(&owner.uid).or_default() += ledger.failed;
            }
        }
        for image in &mut self.images {
            image.set_failing(failed.get(&*image.uid).copied().unwrap_or_default());
        }
    }

    /// What needs a person comes first, then what is under way.
    pub(crate) fn sort(&mut self) {
        self.images.sort_by(|one, other| {
            let rank = |image: &ImageReport| {
                (Reverse(image.is_troubled()), image.phase == Some(CachedImagePhase::Ready))
            };
            rank(one).cmp(&rank(other)).then_with(|| one.name.cmp(&other.name))
        });
        self.sets.sort_by(|one, other| {
            let rank =
                |set: &SetReport| (Reverse(set.is_troubled()), set.phase == Some(CachedImageSetPhase::Ready));
            rank(one).cmp(&rank(other)).then_with(|| one.name.cmp(&other.name))
        });
    }
}

impl ImageReport {
    pub(crate) fn of(object: &DynamicObject) -> Self {
        let (metadata, mut problems) = (&object.metadata, Vec::new());
        let spec: Option<CachedImageSpec> = part(&object.data, "spec", &mut problems);
        let status: CachedImageStatus = part(&object.data, "status", &mut problems);
        let image = spec.as_ref().map_or_else(String::new, |spec| {
            match asked(&spec.image, spec.tag.as_deref(), spec.digest.as_deref()) {
                Ok(reference) => reference.as_str().to_owned(),
                // The condition says what is wrong with it.
                Err(_) => spec.image.clone(),
            }
        });
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            image,
            policy: spec.and_then(|spec| spec.policy_ref).map(|policy| policy.name),
            phase: status.phase,
            targeted: count(status.nodes_targeted),
            holding: count(status.nodes_ready),
            pulling: count(status.nodes_pulling),
            failing: None,
            fails: count(status.consecutive_failures) > 0,
            digest: status.resolved_digest,
            last_pulled_at: status.last_pulled_at.map(|time| time.0),
            ready: find(&status.conditions, types::READY).map(Readiness::of),
            progress: find(&status.conditions, PULL_PROGRESS).map(Readiness::of),
            observed: is_observed(status.observed_generation, metadata.generation),
            deleting_since: metadata.deletion_timestamp.as_ref().map(|time| time.0),
            nodes: None,
            problems,
        }
    }

    /// What the ledgers say of each node. Without a policy its defaults hold, as they do for the operator.
    pub(crate) fn add_nodes(&mut self, policy: Option<&PullPolicySpec>, ledgers: &[WarmLedger]) {
        let (pace, memory) =
            (Pace::new(policy), Memory::load(&self.name, &self.uid, ledgers, Timestamp::now()));
        let mut nodes: Vec<_> = memory.iter().map(|(_, row)| NodeReport::of(row, &pace)).collect();
        nodes.sort_by(|one, other| {
            (Reverse(one.failures), &one.node).cmp(&(Reverse(other.failures), &other.node))
        });
        let failing = nodes.iter().filter(|node| node.failures > 0).count();
        self.set_failing(u32::try_from(failing).unwrap_or(u32::MAX));
        self.nodes = Some(nodes);
    }

    /// Of the nodes that failed, as many as can be nodes that should hold the image.
    fn set_failing(&mut self, failed: u32) {
        self.failing = Some(if self.fails { failed.min(self.targeted) } else { 0 });
    }

    pub(crate) fn is_troubled(&self) -> bool {
        self.phase == Some(CachedImagePhase::Degraded) || !self.problems.is_empty()
    }
}

impl NodeReport {
    fn of(row: &Row, pace: &Pace) -> Self {
        let (failed, failed_at) = (row.failed.as_deref(), row.failed_at());
        Self {
            node: row.name.to_string(),
            reference: row.reference.to_string(),
            digest: row.digest.as_ref().map(ToString::to_string),
            pulled_at: row.pulled_at,
            failures: row.failures(),
            failed_at,
            again_at: failed_at.map(|at| pace.retry_at(at, row.failures())),
            reason: failed.and_then(|failed| failed.reason.as_deref()).map(str::to_owned),
            message: failed.and_then(|failed| failed.message.as_deref()).map(str::to_owned),
        }
    }
}

impl SetReport {
    pub(crate) fn of(object: &DynamicObject) -> Self {
        let (metadata, mut problems) = (&object.metadata, Vec::new());
        let status: CachedImageSetStatus = part(&object.data, "status", &mut problems);
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            phase: status.phase,
            images: count(status.images_managed),
            images_ready: count(status.images_ready),
            ready: find(&status.conditions, types::READY).map(Readiness::of),
            observed: is_observed(status.observed_generation, metadata.generation),
            problems,
        }
    }

    pub(crate) fn is_troubled(&self) -> bool {
        self.phase == Some(CachedImageSetPhase::Degraded) || !self.problems.is_empty()
    }
}

/// Nothing stands for zero.
fn count(number: Option<i32>) -> u32 {
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or_default()
}

fn is_observed(observed: Option<i64>, generation: Option<i64>) -> bool {
    observed.is_some() && observed == generation
}

#[cfg(test)]
mod tests;
