//! Writes ledgers and statuses: for each object at most one of them in a second, the first at once.

use std::time::Duration;

use fairlead_api::conditions::{self, Condition, Finding, reasons, types};
use fairlead_api::kuik::{
    AwaitedRegistry, ClusterImageSetMirror, ImageSetMirror, MatchingImage, MirrorSetStatus, SharingCluster,
};
use fairlead_plan::ledger::{Owner, OwnerKind};
use fairlead_plan::mirroring::{self, Finalization, NextWrite, next_write};
use fairlead_plan::policy_status::{self, Compilation};
use fairlead_plan::usage_list::ListStanding;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ApiResource;
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use super::object_state::MirrorState;
use crate::cluster::ledgers::LedgerStore;
use crate::controller::ledger_writes::{LedgerWrite, WritePace};
use crate::controller::status::{Draft, Manner, ObjectId, StatusWriter};
use crate::platform::leader::Term;

pub(super) const FIELD_MANAGER: &str = "fairlead-mirror";

/// Between two looks for something to write, and how many times longer than itself such a look has to wait.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LOOK_SHARE: u32 = 20;
/// Registries in a status.
const MOST_AWAITED: usize = 32;
/// Clusters that a status remembers.
const MAX_SHARING: usize = 200;

/// When the next write about an object may be.
#[derive(Debug, Default)]
pub(super) struct WriteSchedule {
    pace: WritePace,
    /// Since when the status waits.
    status_waits: Option<Instant>,
    /// Something has changed since there was last nothing to write.
    touched: bool,
}

impl WriteSchedule {
    /// There may be something to write.
    pub(super) fn touch(&mut self) {
        self.touched = true;
    }

    /// There is nothing to write. Finding that out takes a look at everything, which is not to happen all the time.
    fn settle(&mut self, since: Instant) {
        self.touched = false;
        self.pace.put_off(Instant::now() + SHORTEST_PAUSE.max(since.elapsed() * LOOK_SHARE));
    }

    /// Nothing is being written.
    pub(super) fn is_free(&self) -> bool {
        !self.pace.is_busy()
    }

    /// When to look again whether there is something to write.
    pub(super) fn next(&self) -> Option<Instant> {
        self.pace.not_before().filter(|_| self.touched && self.is_free())
    }

    pub(super) fn end(&mut self, failed: bool) {
        self.touched = true;
        self.pace.end(failed);
    }
}

/// What a status says that is not in the ledger.
#[derive(Debug)]
pub(super) struct StatusInputs<'a> {
    pub(super) secret_problems: &'a [String],
    pub(super) copies_pull_secrets: bool,
    pub(super) usage_lists: ListStanding,
}

/// The status as it is applied.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    observed_generation: Option<i64>,
    image_count: u32,
    mirrored_count: u32,
    failed_count: u32,
    matching_images: Vec<MatchingImage>,
    waiting_for: Vec<AwaitedRegistry>,
    shared_with: Vec<SharingCluster>,
    conditions: Vec<Condition>,
}

impl Status {
    fn is_stored(&self, stored: &MirrorSetStatus) -> bool {
        let own = |condition: &&Condition| {
            [types::ACCEPTED, types::READY, types::ISOLATED, types::USAGE_LISTED].contains(&&*condition.type_)
        };
        stored.observed_generation == self.observed_generation
            && stored.image_count == Some(self.image_count)
            && stored.mirrored_count == Some(self.mirrored_count)
            && stored.failed_count == Some(self.failed_count)
            && stored.matching_images == self.matching_images
            && stored.waiting_for == self.waiting_for
            && stored.shared_with == self.shared_with
            && stored.conditions.iter().filter(own).eq(&self.conditions)
    }
}

/// The next write about an object, if one is due.
pub(super) fn next(
    mirror: &mut MirrorState,
    inputs: &StatusInputs<'_>,
    store: &LedgerStore,
    statuses: &mut StatusWriter,
    term: &Term,
    wall_clock: Timestamp,
) -> Option<BoxFuture<'static, LedgerWrite>> {
    let now = Instant::now();
    if !mirror.writes.touched || !mirror.writes.pace.may(now) {
        return None;
    }
    let owner = mirror.object.owner.clone();
    let wanted = status(mirror, inputs, wall_clock);
    if wanted.is_none() {
        statuses.forget(&owner.uid);
    }
    let status = wanted.map(|status| draft(&owner, &status)).filter(|draft| statuses.may(draft, now));
    let waits = status.is_some();
    let since = mirror.writes.status_waits.filter(|_| waits).unwrap_or(now);
    mirror.writes.status_waits = waits.then_some(since);
    // The ledger of an object under deletion says which copies are gone. No new part of it is stored, because the
    // ledger is deleted with its object.
    let going = mirror.object.deleting.is_some();
    let shard =
        mirror.ledger.dirty().into_iter().find(|shard| !going || mirror.ledger.version(*shard).is_some());
    let observed = mirror.object.stored.status().and_then(|status| status.observed_generation);
    // Copies wait for the first ledger of an object, so that comes before its first status.
    let is_unreported = observed != mirror.object.generation() && mirror.writes.pace.not_before().is_some();
    let write = match next_write(shard.is_some(), waits.then(|| now - since), is_unreported) {
        NextWrite::Ledger => LedgerWrite::of_shard(&mirror.ledger, shard?, owner, store, term),
        NextWrite::Status => {
            mirror.writes.status_waits = None;
            LedgerWrite::of_status(status?, statuses, term)
        }
        NextWrite::Nothing => {
            mirror.writes.settle(now);
            return None;
        }
    };
    mirror.writes.pace.begin();
    Some(write)
}

/// The request that writes a status. Kuik has listed images and times, which an apply alone would leave where they are.
fn draft(owner: &Owner, status: &Status) -> Draft {
    let manner = Manner::ApplyList("matchingImages");
    Draft::new(object_id(owner), manner, json!(status), &status.conditions, &[])
}

pub(super) fn object_id(owner: &Owner) -> ObjectId {
    let resource = match owner.kind {
        OwnerKind::ImageSetMirror => ApiResource::erase::<ImageSetMirror>(&()),
        OwnerKind::ClusterImageSetMirror | OwnerKind::ClusterImageSetAvailability => {
            ApiResource::erase::<ClusterImageSetMirror>(&())
        }
    };
    ObjectId {
        resource,
        namespace: owner.namespace.clone().unwrap_or_default(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
    }
}

/// What is to be said about an object, if it is not said yet.
fn status(mirror: &MirrorState, inputs: &StatusInputs<'_>, now: Timestamp) -> Option<Status> {
    let policy = mirror.object.policy.as_ref()?;
    let awaited = |one: &AwaitedRegistry| format!("{}; {} tasks wait for it", one.reason, one.tasks);
    let awaited = mirror.waiting.iter().map(awaited);
    let withheld =
        mirror.withheld.iter().map(|(why, count)| format!("{count} unused copies are kept: {why}"));
    let problems: Vec<String> = mirror.problems.iter().cloned().chain(awaited).chain(withheld).collect();
    let report = mirroring::report(&mirror.ledger, policy, inputs.secret_problems, &problems);
    let ready = match &mirror.finalization {
        Some(Finalization::Clean { why, .. }) => {
            Finding::new(types::READY, false, reasons::PROGRESSING, why.as_str())
        }
        Some(Finalization::Done { .. }) => return None,
        None => report.ready,
    };
    let outcome = Compilation::Compiled { policy, secrets: &[] };
    let findings = [
        policy_status::accepted(policy.id().kind, &outcome),
        ready,
        policy_status::isolated(policy, inputs.copies_pull_secrets),
        policy_status::usage_listed(&inputs.usage_lists),
    ];
    let stored = mirror.object.stored.status();
    let conditions = stored.map(|status| &*status.conditions).unwrap_or_default();
    let generation = mirror.object.generation();
    let mut conditions = conditions::merge(conditions, &findings, generation, now);
    conditions.retain(|condition| findings.iter().any(|finding| finding.type_ == condition.type_));
    let status = Status {
        observed_generation: generation,
        image_count: report.image_count,
        mirrored_count: report.mirrored_count,
        failed_count: report.failed_count,
        matching_images: report.matching_images,
        waiting_for: mirror.waiting.iter().take(MOST_AWAITED).cloned().collect(),
        shared_with: shared_with(&inputs.usage_lists),
        conditions,
    };
    (!stored.is_some_and(|stored| status.is_stored(stored))).then_some(status)
}

/// The clusters that share mirrors, to the hour: the status is not written every time a list was seen.
fn shared_with(lists: &ListStanding) -> Vec<SharingCluster> {
    let hour = |time: Timestamp| Timestamp::from_second(time.as_second() / 3600 * 3600).unwrap_or(time);
    let sharing = lists.shared_with.iter().map(|(mirror, seen)| SharingCluster {
        mirror: mirror.clone(),
        cluster: seen.cluster.to_string(),
        last_seen: Time(hour(seen.last_seen)),
    });
    sharing.take(MAX_SHARING).collect()
}
