//! What is said of images and policies in their statuses.

use std::collections::BTreeMap;

use fairlead_api::conditions::{self, Finding, types};
use fairlead_api::drop::{
    CachedImage, CachedImagePhase, CachedImageStatus, MAX_CACHED_NODES, MAX_USERS, PULL_PROGRESS, PullPolicy,
    PullPolicyStatus,
};
use jiff::Timestamp;

use super::image::Image;
use super::snapshot::Trouble;
use crate::ledger::whole_seconds;

/// Kinds of skipped nodes that a message lists.
const MOST_SKIPS: usize = 4;

/// Where an image stands, before it is written out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) phase: CachedImagePhase,
    reason: String,
    message: String,
}

/// Failures come first, whatever else is under way: they do not pass by themselves.
pub(super) fn summary(image: &Image, trouble: Option<&Trouble>) -> Summary {
    use CachedImagePhase::{Degraded, Pending, Pulling, Ready};
    let tally = &image.tally;
    let (ready, targeted) = (tally.ready.len(), tally.targeted);
    let mut message = format!("{ready} of {targeted} nodes hold the image");
    if let Some(Err(problem)) = image.routed.as_ref().map(|routed| &routed.reference) {
        return Summary {
            phase: Degraded,
            reason: "InvalidImageName".to_owned(),
            message: problem.to_string(),
        };
    }
    // A refusal matters while there is something to pull.
    let needs_pods = !image.waiting.is_empty() || tally.pulling > 0;
    let failing = tally.failing.iter().find_map(|(name, uid)| Some((name, image.memory.get(uid)?)));
    let (phase, reason) = if let Some((node, row)) = failing {
        let others = tally.failing.len() - 1;
        let others = if others == 0 { String::new() } else { format!(" and {others} more") };
        let failed = row.failed.as_deref();
        let said = failed.and_then(|failed| failed.message.as_deref()).unwrap_or("failed");
        message = format!("{message}; node {node}{others}: {said}");
        (Degraded, failed.and_then(|failed| failed.reason.as_deref()).unwrap_or_default())
    } else if let Some(refused) = image.refused.as_ref().filter(|_| needs_pods) {
        message = format!("{message}; the API server did not take a Pod: {}", refused.message);
        (Degraded, &*refused.reason)
    } else if targeted > 0 && ready == targeted {
        (Ready, "Cached")
    } else if ready > 0 || tally.pulling > 0 {
        (Pulling, "InProgress")
    } else {
        (Pending, "InProgress")
    };
    if let Some((host, trouble)) = image.host.as_ref().zip(trouble) {
        message = format!("{message}; no new pulls while registry {} is {}", host.as_str(), trouble.what);
    }
    if let Some(problem) = image.routed.as_ref().and_then(|routed| routed.secret_problem.as_deref()) {
        message = format!("{message}; {problem}");
    }
    for (skip, count) in tally.skipped.iter().take(MOST_SKIPS) {
        message = format!("{message}; {count} skipped: {skip}");
    }
    if let Some(name) = image.object.spec.policy_ref.as_ref().filter(|_| image.policy.is_none()) {
        message = format!("{message}; PullPolicy {} is missing: its defaults are used", name.name);
    }
    // The API server takes words only.
    let is_word = reason.starts_with(|first: char| first.is_ascii_alphabetic())
        && reason.chars().all(|character| character.is_ascii_alphanumeric());
    Summary { phase, reason: if is_word { reason } else { "PullFailed" }.to_owned(), message }
}

pub(super) fn image_status(image: &Image, summary: &Summary, now: Timestamp) -> CachedImageStatus {
    use CachedImagePhase::{Degraded, Ready};
    let tally = &image.tally;
    let (ready, targeted) = (tally.ready.len(), tally.targeted);
    let progress = match summary.phase {
        _ if tally.pulling > 0 => "Pulling",
        Ready => "Complete",
        Degraded => "Stalled",
        _ => "Idle",
    };
    let is_ready = summary.phase == Ready;
    let findings = [
        Finding::new(types::READY, is_ready, &*summary.reason, &*summary.message),
        Finding::new(
            PULL_PROGRESS,
            progress == "Pulling",
            progress,
            format!("{} nodes are pulling the image", tally.pulling),
        ),
    ];
    let current = image.object.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let generation = image.object.metadata.generation;
    let attempted = image.memory.last_start().max(image.last_failure);
    CachedImageStatus {
        observed_generation: generation,
        phase: Some(summary.phase),
        ready: Some(format!("{ready}/{targeted}")),
        resolved_digest: image.latest_pull.and_then(|(_, digest)| digest).map(|digest| digest.to_string()),
        nodes_targeted: count(targeted),
        nodes_ready: count(ready),
        nodes_pulling: count(tally.pulling),
        cached_nodes: tally.ready.iter().take(MAX_CACHED_NODES).map(ToString::to_string).collect(),
        consecutive_failures: count(image.most_failures() as usize),
        last_pulled_at: image.latest_pull.map(|(at, _)| whole_seconds(at).into()),
        last_attempted_at: attempted.map(|at| whole_seconds(at).into()),
        conditions: conditions::merge(current, &findings, generation, now),
    }
}

/// Zero is left out, as always.
fn count(number: usize) -> Option<i32> {
    (number > 0).then(|| i32::try_from(number).unwrap_or(i32::MAX))
}

/// The statuses of policies that have to be written, by name.
pub fn policy_statuses(
    policies: &[impl AsRef<PullPolicy>],
    images: &[impl AsRef<CachedImage>],
    now: Timestamp,
) -> Vec<(String, PullPolicyStatus)> {
    let mut users = BTreeMap::<&str, Vec<&str>>::new();
    for image in images.iter().map(AsRef::as_ref) {
        if let (Some(policy), Some(name)) = (&image.spec.policy_ref, image.metadata.name.as_deref()) {
            users.entry(&policy.name).or_default().push(name);
        }
    }
    let statuses = policies.iter().map(AsRef::as_ref).filter_map(|policy| {
        let name = policy.metadata.name.as_deref()?;
        let mut users = users.get(name).cloned().unwrap_or_default();
        users.sort_unstable();
        let (count, generation) =
            (u32::try_from(users.len()).unwrap_or(u32::MAX), policy.metadata.generation);
        let (reason, message) = match count {
            0 => ("Unused", "no CachedImage names the policy".to_owned()),
            _ => ("InUse", format!("paces {count} CachedImages")),
        };
        let current = policy.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let findings = [Finding::new(types::ACCEPTED, true, reason, message)];
        users.truncate(MAX_USERS);
        let status = PullPolicyStatus {
            observed_generation: generation,
            user_count: Some(count),
            users: users.into_iter().map(str::to_owned).collect(),
            conditions: conditions::merge(current, &findings, generation, now),
        };
        (policy.status.as_ref() != Some(&status)).then(|| (name.to_owned(), status))
    });
    statuses.collect()
}
