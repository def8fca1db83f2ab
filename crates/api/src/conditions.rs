//! Status conditions: how every kind says whether it works, since when, and what to do if it does not.
//!
//! On the wire a condition is Kubernetes' own, so `kubectl wait --for=condition=Ready` and dashboards understand it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Names of conditions. The kinds say in their descriptions which of them they carry.
pub mod types {
    /// The object does what it says. False or Unknown: the reason and the message say why not, and what to do.
    pub const READY: &str = "Ready";
    /// The specification was understood, and is in force as far as it depends on Fairlead alone.
    pub const ACCEPTED: &str = "Accepted";
    /// The places that are declared to hold the same image hold the same, as far as registries told. Present once they
    /// did not.
    pub const CONSISTENT: &str = "Consistent";
    /// The tags of pinned images still name what is pinned, and the Pods of the revision run the same content, as far
    /// as registries and kubelets told. Present once they did not.
    pub const CURRENT: &str = "Current";
    /// Pods receive only Secrets that are named for pulling, none that is also used to push.
    pub const ISOLATED: &str = "Isolated";
    /// Every mirror holds the usage list of this cluster, and shows those of others.
    pub const USAGE_LISTED: &str = "UsageListed";
    /// The nodes carry it.
    pub const APPLIED: &str = "Applied";
    /// The container runtimes can express all of it.
    pub const EXACT: &str = "Exact";
    /// Nothing stands in the way of doing without this kind.
    pub const UPGRADEABLE: &str = "Upgradeable";
}

/// Reasons that several kinds give. Reasons of one kind alone stand beside that kind.
pub mod reasons {
    /// Everything asked for is done.
    pub const READY: &str = "Ready";
    /// Not all work is done yet; nothing is wrong.
    pub const PROGRESSING: &str = "Progressing";
    /// Part of the work fails; the message names the first failure.
    pub const DEGRADED: &str = "Degraded";
    /// A value of the specification cannot be used; the message names the field.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// A filter of the specification does not compile; the message names the item.
    pub const INVALID_FILTER: &str = "InvalidFilter";
    /// A Secret that the specification names is missing or unreadable.
    pub const SECRET_UNAVAILABLE: &str = "SecretUnavailable";
    /// Places of one image have different digests; the message names the image, the places and the digests.
    pub const DIGESTS_DIFFER: &str = "DigestsDiffer";
    /// No places of one image are known to have different digests any more.
    pub const DIGESTS_AGREE: &str = "DigestsAgree";
    /// No Secret with the right to push is copied to the namespaces of Pods.
    pub const ISOLATED: &str = "Isolated";
    /// A Secret with the right to push is copied to the namespaces of Pods; the message names it and the remedy.
    pub const PUSH_SECRET_COPIED: &str = "PushSecretCopied";
    /// Every mirror holds the usage list of this cluster.
    pub const LISTED: &str = "Listed";
    /// A usage list cannot be stored or read, or its cluster seems to be gone; the message says which.
    pub const LIST_PROBLEM: &str = "ListProblem";
    /// Two sources claim one destination; the message names both.
    pub const CONFLICT: &str = "Conflict";
}

/// One thing that is true, false or not known about an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Name of the condition, unique within the object.
    #[serde(rename = "type")]
    #[schemars(
        length(max = 316),
        regex(pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub type_: String,
    /// Whether it holds: True, False, or Unknown while it cannot be told.
    pub status: ConditionStatus,
    /// Generation of the object that this was found for. Older than `metadata.generation`: not looked at since the last
    /// edit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Since when the status has had its present value.
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub last_transition_time: Time,
    /// One word for programs to compare.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"))]
    pub reason: String,
    /// A sentence for people: what was found, and what to do about it.
    #[serde(default)]
    #[schemars(length(max = 32768))]
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// A condition as a decision knows it, before it is known how long it has been so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub type_: &'static str,
    pub status: ConditionStatus,
    pub reason: String,
    pub message: String,
}

impl Finding {
    pub fn new(
        type_: &'static str,
        status: impl Into<ConditionStatus>,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { type_, status: status.into(), reason: reason.into(), message: message.into() }
    }
}

/// The conditions to write: each finding, with the time of the last change of its status value.
///
/// Conditions of other types are kept where they stand, so that several writers can share one object. Nothing changes
/// when the findings are what the conditions already say, which lets a caller skip the write.
#[must_use]
pub fn merge(
    current: &[Condition],
    findings: &[Finding],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut merged = current.to_vec();
    for finding in findings {
        let place = merged.iter().position(|condition| condition.type_ == finding.type_);
        let since = place
            .and_then(|at| merged.get(at))
            .filter(|condition| condition.status == finding.status)
            .map_or(Time(now), |condition| condition.last_transition_time.clone());
        let condition = Condition {
            type_: finding.type_.to_owned(),
            status: finding.status,
            observed_generation: generation,
            last_transition_time: since,
            reason: finding.reason.clone(),
            message: finding.message.clone(),
        };
        match place.and_then(|at| merged.get_mut(at)) {
            Some(existing) => *existing = condition,
            None => merged.push(condition),
        }
    }
    merged
}

/// The condition of the given type, if the object carries it.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Schema of `status.conditions`, for `#[schemars(schema_with = "…")]`: a list keyed by type.
pub fn list(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": Condition::json_schema(generator),
        "maxItems": 32,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ready(holds: bool, reason: &str) -> Finding {
        Finding::new(types::READY, holds, reason, "")
    }

    #[test]
    fn time_of_the_last_change_stays_while_the_status_stays() {
        let first = merge(&[], &[ready(false, "Progressing")], Some(1), at(10));
        assert_eq!(first[0].last_transition_time, Time(at(10)));

        let still = merge(&first, &[ready(false, "Degraded")], Some(2), at(20));
        assert_eq!(still[0].last_transition_time, Time(at(10)));
        assert_eq!(still[0].reason, "Degraded");
        assert_eq!(still[0].observed_generation, Some(2));

        let turned = merge(&still, &[ready(true, "Ready")], Some(2), at(30));
        assert_eq!(turned[0].last_transition_time, Time(at(30)));
    }

    #[test]
    fn the_same_findings_change_nothing() {
        let findings = [
            ready(true, "Ready"),
            Finding::new(types::EXACT, ConditionStatus::Unknown, "NoNodes", "none yet"),
        ];
        let once = merge(&[], &findings, Some(3), at(10));
        assert_eq!(merge(&once, &findings, Some(3), at(99)), once);
    }

    #[test]
    fn conditions_of_others_stay_where_they_are() {
        let foreign = merge(&[], &[Finding::new("Foreign", true, "Theirs", "")], None, at(1));
        let both = merge(&foreign, &[ready(true, "Ready")], Some(1), at(2));
        assert_eq!(both.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), ["Foreign", "Ready"]);
        assert_eq!(both[0], foreign[0]);
        assert_eq!(find(&both, "Foreign"), Some(&foreign[0]));
    }

    #[test]
    fn wire_form_is_that_of_kubernetes() {
        let json = serde_json::json!({
            "type": "Ready", "status": "Unknown", "observedGeneration": 4,
            "lastTransitionTime": "2026-01-02T03:04:05Z", "reason": "Progressing", "message": "",
        });
        let condition: Condition = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(condition.status, ConditionStatus::Unknown);
        assert_eq!(serde_json::to_value(condition).unwrap(), json);
    }
}
