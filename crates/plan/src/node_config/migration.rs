//! From `ImageContentSourcePolicy` to the kinds that took its place.
//!
//! Such an object can go when nothing changes without it: another object says the same. That is what `Upgradeable`
//! means, no matter which client made the other object. On request one is made, and on another request the old one is
//! deleted. Both are done only after the merged result was compared.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_api::conditions::{Finding as Condition, types};
use fairlead_api::openshift::{MAX_LOCATION_LENGTH, MAX_MIRRORS, MAX_SOURCES};

use super::{Inputs, Location, MirrorPolicy, NodeConfig, PolicyId, PolicyKind, Scope, Set};

/// Nothing changes when the object is deleted.
pub const MIGRATED: &str = "Migrated";
/// No object of a newer kind says the same.
pub const ORPHANED: &str = "Orphaned";
pub const NOT_CONVERTIBLE: &str = "NotConvertible";
pub const MIGRATION_FAILED: &str = "MigrationFailed";

const OLD: PolicyKind = PolicyKind::ImageContentSourcePolicy;

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The kind to make new objects of; `None`: none are made.
    pub to: Option<PolicyKind>,
    /// Whether old objects are deleted that are not needed any more.
    pub deletes: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make an object of the name of the old one, which says the same.
    Create { policy: MirrorPolicy },
    /// Delete the old object of this name.
    Delete { name: String },
}

/// What to do, and what to say about each old object, by name.
#[derive(Clone, Debug, Default)]
pub struct Migration {
    pub steps: Vec<Step>,
    pub conditions: BTreeMap<String, Condition>,
}

impl Migration {
    /// `failures` are attempts to carry out a step that the API server refused, by name of the old object.
    pub fn plan(inputs: &Inputs, request: Request, failures: &BTreeMap<String, String>) -> Self {
        let mut plan = Self::default();
        let old: Vec<&MirrorPolicy> = inputs.policies.iter().filter(|policy| policy.id.kind == OLD).collect();
        if old.is_empty() {
            return plan;
        }
        let now = NodeConfig::plan(inputs).hash();
        let dispensable = dispensable(inputs, &old, &now);
        for policy in old {
            let name = &policy.id.name;
            let (holds, reason, message) = if dispensable.contains(name) {
                if request.deletes && !failures.contains_key(name) {
                    plan.steps.push(Step::Delete { name: name.clone() });
                }
                (
                    true,
                    MIGRATED,
                    "an object of a newer kind says the same; this one can be deleted".to_owned(),
                )
            } else {
                match converted(policy, request.to) {
                    Err(why) => (false, NOT_CONVERTIBLE, why),
                    Ok(_) if failures.contains_key(name) => {
                        (false, MIGRATION_FAILED, failures.get(name).cloned().unwrap_or_default())
                    }
                    Ok(twin) => plan.twin(inputs, twin, &now),
                }
            };
            plan.conditions.insert(name.clone(), Condition::new(types::UPGRADEABLE, holds, reason, message));
        }
        plan
    }

    /// Makes the new object, if one is asked for and that changes nothing.
    fn twin(
        &mut self,
        inputs: &Inputs,
        twin: Option<MirrorPolicy>,
        now: &str,
    ) -> (bool, &'static str, String) {
        let Some(twin) = twin else {
            let message =
                "no object of a newer kind says the same; see nodes.migrateICSP and `fairlead convert`";
            return (false, ORPHANED, message.to_owned());
        };
        if inputs.policies.iter().any(|policy| policy.id == twin.id) {
            let message = format!("{} exists and says something else; make it say the same", twin.id);
            return (false, MIGRATION_FAILED, message);
        }
        let mut with = inputs.clone();
        with.policies.push(twin.clone());
        if NodeConfig::plan(&with).hash() != now {
            let message = format!("with {} the merged result would be another", twin.id);
            return (false, MIGRATION_FAILED, message);
        }
        let message = format!("{} is being made", twin.id);
        self.steps.push(Step::Create { policy: twin });
        (false, ORPHANED, message)
    }
}

/// The old objects without which the merged result is the same: all of these together, or each of them alone.
fn dispensable<'a>(inputs: &Inputs, old: &[&'a MirrorPolicy], now: &str) -> BTreeSet<&'a String> {
    // Which source is closed is compared with the result, not with the sets: the newer one may close it as well.
    let newer: BTreeSet<(&str, &[String])> = inputs
        .policies
        .iter()
        .filter(|policy| {
            matches!(policy.id.kind, PolicyKind::ImageSourceDigestPolicy | PolicyKind::ImageDigestMirrorSet)
        })
        .flat_map(|policy| &policy.sets)
        .map(said)
        .collect();
    let is_repeated = |policy: &&&MirrorPolicy| {
        let sets = policy.sets.iter().map(converted_set).collect::<Result<Vec<_>, _>>();
        sets.is_ok_and(|sets| sets.iter().all(|set| newer.contains(&said(set))))
    };
    let repeated: BTreeSet<&String> = old.iter().filter(is_repeated).map(|policy| &policy.id.name).collect();
    let is_same_without = |names: &dyn Fn(&String) -> bool| {
        let mut without = inputs.clone();
        without.policies.retain(|policy| policy.id.kind != OLD || !names(&policy.id.name));
        NodeConfig::plan(&without).hash() == now
    };
    if repeated.is_empty() || is_same_without(&|name| repeated.contains(name)) {
        return repeated;
    }
    repeated.into_iter().filter(|one| is_same_without(&|name| name == *one)).collect()
}

fn said(set: &Set) -> (&str, &[String]) {
    (&set.source, &set.mirrors)
}

/// The object of the wanted kind that says the same; `Ok(None)` if none is wanted.
fn converted(policy: &MirrorPolicy, to: Option<PolicyKind>) -> Result<Option<MirrorPolicy>, String> {
    let sets = policy.sets.iter().map(converted_set).collect::<Result<_, _>>()?;
    let twin = |kind| MirrorPolicy { id: PolicyId { kind, name: policy.id.name.clone() }, sets };
    Ok(to.map(twin))
}

/// Whether an object of a newer kind has room for these sets, by the definitions that are installed with this program.
/// The oldest kind has no bounds, and neither have the newer ones of clusters with definitions of their own.
pub fn check_bounds(sets: &[Set]) -> Result<(), String> {
    if sets.len() > MAX_SOURCES {
        let count = sets.len();
        return Err(format!(
            "it has {count} sources, and newer kinds take {MAX_SOURCES}; split it into several"
        ));
    }
    for Set { source, mirrors, .. } in sets {
        let is_long = |text: &&String| text.chars().count() > MAX_LOCATION_LENGTH;
        if let Some(text) = std::iter::once(source).chain(mirrors).find(is_long) {
            return Err(format!(
                "{text} is longer than the {MAX_LOCATION_LENGTH} characters that newer kinds take"
            ));
        }
        if mirrors.len() > MAX_MIRRORS {
            let count = mirrors.len();
            return Err(format!(
                "{source} has {count} mirrors, and newer kinds take {MAX_MIRRORS}; remove some"
            ));
        }
    }
    Ok(())
}

/// The newer kinds refuse what the oldest let pass, and duplicates.
pub fn converted_set(set: &Set) -> Result<Set, String> {
    Scope::parse(&set.source).map_err(|error| error.to_string())?;
    let mut mirrors: Vec<String> = Vec::new();
    for mirror in &set.mirrors {
        Location::parse(mirror).map_err(|error| error.to_string())?;
        if !mirrors.contains(mirror) {
            mirrors.push(mirror.clone());
        }
    }
    Ok(Set { source: set.source.clone(), mirrors, never_contact_source: set.never_contact_source })
}
