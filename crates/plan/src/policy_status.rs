//! What a policy object says about itself in its status: whether it is in use, and if not, which field to correct.
//!
//! A broken object disables itself only, so its own status is where people look. `Ready` says for every kind whether
//! the object does what it says. A mirror object that works is not reported here: the mirror controller does that, in
//! one write with the counts, and what [`accepted`] and [`judge`] give is a part of it.

use fairlead_api::conditions::{self, Condition, Finding, reasons, types};
use jiff::Timestamp;
use serde::Serialize;

use crate::routing::{Policy, PolicyError, PolicyKind};
use crate::usage_list;

#[cfg(test)]
mod tests;

/// A message is read in a terminal; what is longer names the first problems and counts the others.
const LONGEST_MESSAGE: usize = 1024;

/// What became of an object.
#[derive(Debug, Clone, Copy)]
pub enum Compilation<'a> {
    /// Routing uses it. `secrets` are the Secrets it names that cannot be used, each with the reason and a remedy.
    Compiled { policy: &'a Policy, secrets: &'a [String] },
    /// It is invalid.
    Refused(&'a PolicyError),
    /// It is stored in a form that its kind does not have.
    Unreadable { error: &'a str },
}

/// Whether an object is in use as a whole, and why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    pub holds: bool,
    pub reason: &'static str,
    pub message: String,
}

/// What is stored in the status, as far as it matters here.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stored<'a> {
    /// Of the object itself.
    pub generation: Option<i64>,
    pub observed_generation: Option<i64>,
    pub upstream_count: Option<u32>,
    pub conditions: &'a [Condition],
}

/// The fields of the status that belong to this module, as they are applied.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Of replicated sets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_count: Option<u32>,
    pub conditions: Vec<Condition>,
}

/// The status to write, if it says something else than what is stored. `differences` are places of one image that the
/// object offers and that hold different digests; `None` while that is not known.
pub fn wanted(
    kind: PolicyKind,
    outcome: &Compilation<'_>,
    differences: Option<&[String]>,
    stored: &Stored<'_>,
    now: Timestamp,
) -> Option<Status> {
    // The rest of its status is written by the one who copies its images.
    let is_copied = is_mirror(kind) && matches!(outcome, Compilation::Compiled { .. });
    let mut findings = if is_copied { Vec::new() } else { findings(kind, outcome) };
    findings.extend(differences.and_then(|differences| consistent(differences, stored.conditions)));
    if is_copied && findings.is_empty() {
        return None;
    }
    let merged = conditions::merge(stored.conditions, &findings, stored.generation, now);
    let own = |condition: &Condition| {
        condition.type_ == types::CONSISTENT
            || findings.iter().any(|finding| finding.type_ == condition.type_)
    };
    let status = Status {
        observed_generation: stored.generation.filter(|_| !is_copied),
        upstream_count: upstream_count(kind, outcome),
        conditions: merged.iter().filter(|condition| own(condition)).cloned().collect(),
    };
    // Of an object that cannot be read, the conditions are all that is known of what is stored.
    let same_numbers = is_copied
        || matches!(outcome, Compilation::Unreadable { .. })
        || (status.observed_generation, status.upstream_count)
            == (stored.observed_generation, stored.upstream_count);
    let unchanged = same_numbers && merged == stored.conditions;
    (!unchanged).then_some(status)
}

fn findings(kind: PolicyKind, outcome: &Compilation<'_>) -> Vec<Finding> {
    let mut findings = Vec::with_capacity(2);
    if is_mirror(kind) {
        findings.push(accepted(kind, outcome));
    }
    findings.push(finding(types::READY, kind, outcome));
    findings
}

/// Whether the places of each image hold the same. Most objects are never found otherwise, and say nothing about it.
pub fn consistent(differences: &[String], stored: &[Condition]) -> Option<Finding> {
    if !differences.is_empty() {
        let sentence = "places of one image hold different digests, so which one a Pod runs depends on which place is \
            available; push the same image to both, or refer to it by digest";
        let message = joined(sentence, differences);
        return Some(Finding::new(types::CONSISTENT, false, reasons::DIGESTS_DIFFER, message));
    }
    conditions::find(stored, types::CONSISTENT)?;
    let message = "no places of one image are known to hold different digests";
    Some(Finding::new(types::CONSISTENT, true, reasons::DIGESTS_AGREE, message))
}

/// Whether the specification of a mirror object was understood.
pub fn accepted(kind: PolicyKind, outcome: &Compilation<'_>) -> Finding {
    // A Secret is not part of the specification.
    let specification = match *outcome {
        Compilation::Compiled { policy, .. } => Compilation::Compiled { policy, secrets: &[] },
        other => other,
    };
    finding(types::ACCEPTED, kind, &specification)
}

/// Whether Pods receive Secrets of a mirror object that are used to push as well. `copying`: whether pull secrets are
/// copied to namespaces at all.
pub fn isolated(policy: &Policy, copying: bool) -> Finding {
    let copied = policy.copied_push_secrets().filter(|_| copying);
    let copied: Vec<String> =
        copied.map(|(entry, secret)| format!("spec.mirrors[{entry}]: {secret}")).collect();
    if copied.is_empty() {
        let message = "no Secret that can push is copied to the namespaces of Pods";
        return Finding::new(types::ISOLATED, true, reasons::ISOLATED, message);
    }
    let warning = "the Secret that pushes copies is copied to every namespace whose Pods use the mirror, and can be \
        read there: name a Secret that can only pull in pullSecret";
    Finding::new(types::ISOLATED, false, reasons::PUSH_SECRET_COPIED, joined(warning, copied))
}

/// Whether clusters that share the mirrors of an object know of each other.
pub fn usage_listed(standing: &usage_list::ListStanding) -> Finding {
    if !standing.problems.is_empty() {
        let message = joined("clean-up may be affected", &standing.problems);
        return Finding::new(types::USAGE_LISTED, false, reasons::LIST_PROBLEM, message);
    }
    if !standing.listed {
        let message = "the usage list of this cluster is not in every mirror yet";
        return Finding::new(types::USAGE_LISTED, false, reasons::PROGRESSING, message);
    }
    let message = match standing.shared_with.len() {
        0 => "every mirror holds the usage list of this cluster; no other cluster uses them".to_owned(),
        1 => {
            "every mirror holds the usage list of this cluster; one other cluster uses one of them".to_owned()
        }
        others => {
            format!("every mirror holds the usage list of this cluster, beside {others} of other clusters")
        }
    };
    Finding::new(types::USAGE_LISTED, true, reasons::LISTED, message)
}

fn finding(type_: &'static str, kind: PolicyKind, outcome: &Compilation<'_>) -> Finding {
    let Judgement { holds, reason, message } = judge(kind, outcome);
    Finding::new(type_, holds, reason, message)
}

/// Whether routing uses the object, all of it.
pub fn judge(kind: PolicyKind, outcome: &Compilation<'_>) -> Judgement {
    let not = |reason, message: String| Judgement { holds: false, reason, message };
    match outcome {
        Compilation::Unreadable { error } => not(
            reasons::INVALID_SPEC,
            joined(
                "the stored object cannot be read and is not used: correct the field and apply it again",
                [error],
            ),
        ),
        Compilation::Refused(error) => {
            let reason = if error.is_filter() { reasons::INVALID_FILTER } else { reasons::INVALID_SPEC };
            not(reason, joined("not used until this is corrected", [error]))
        }
        Compilation::Compiled { policy, secrets } => {
            let problems = policy.problems().iter().map(ToString::to_string);
            let all = problems.chain(secrets.iter().cloned()).collect::<Vec<_>>();
            if !policy.problems().is_empty() {
                not(reasons::DEGRADED, joined("used, but for entries that do not work", &all))
            } else if !secrets.is_empty() {
                not(reasons::SECRET_UNAVAILABLE, joined("used, but without credentials", &all))
            } else {
                Judgement { holds: true, reason: reasons::READY, message: offered(kind, policy.offered()) }
            }
        }
    }
}

fn offered(kind: PolicyKind, count: usize) -> String {
    let noun = if is_mirror(kind) { "mirror" } else { "upstream" };
    match count {
        0 => format!("in use, but it offers no {noun}"),
        1 => format!("in use: 1 {noun} is offered"),
        count => format!("in use: {count} {noun}s are offered"),
    }
}

fn upstream_count(kind: PolicyKind, outcome: &Compilation<'_>) -> Option<u32> {
    let count = match outcome {
        Compilation::Compiled { policy, .. } => policy.offered(),
        Compilation::Refused(_) | Compilation::Unreadable { .. } => 0,
    };
    (!is_mirror(kind)).then(|| u32::try_from(count).unwrap_or(u32::MAX))
}

fn is_mirror(kind: PolicyKind) -> bool {
    matches!(kind, PolicyKind::ClusterImageSetMirror | PolicyKind::ImageSetMirror)
}

/// A sentence and the things it is about, as many as fit.
fn joined(sentence: &str, things: impl IntoIterator<Item = impl ToString>) -> String {
    let mut text = sentence.to_owned();
    let mut left_out = 0_usize;
    for (number, thing) in things.into_iter().enumerate() {
        let thing = thing.to_string();
        let mark = if number == 0 { ": " } else { "; " };
        if number == 0 && text.len() + thing.len() > LONGEST_MESSAGE {
            let room = thing.floor_char_boundary(LONGEST_MESSAGE - text.len());
            text.push_str(mark);
            text.push_str(&thing[..room]);
            text.push('…');
        } else if left_out > 0 || text.len() + thing.len() > LONGEST_MESSAGE {
            left_out += 1;
        } else {
            text.push_str(mark);
            text.push_str(&thing);
        }
    }
    if left_out > 0 {
        text = format!("{text}; and {left_out} more");
    }
    text
}
