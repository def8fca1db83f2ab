//! What is kept about one mirror object while this replica leads.

use std::collections::{BTreeMap, HashMap, HashSet};

use fairlead_api::fairlead::LedgerManner;
use fairlead_api::kuik::AwaitedRegistry;
use fairlead_domain::reference::{Location, Reference};
use fairlead_plan::access;
use fairlead_plan::credentials::Principal;
use fairlead_plan::ledger::{Entry, Ledger, ShardId};
use fairlead_plan::mirroring::{self, Finalization, Finding, MirrorObject, RefusedCopy, Task};
use fairlead_plan::usage::Used;
use fairlead_plan::usage_list::SeenCluster;
use jiff::Timestamp;
use tokio::time::Instant;

use super::objects::StoredMirror;
use super::status::WriteSchedule;

/// One mirror object and its ledger.
#[derive(Debug)]
pub(super) struct MirrorState {
    pub(super) object: StoredMirror,
    pub(super) ledger: Ledger,
    /// Images in use by its Pods, in order.
    pub(super) used: Vec<Used>,
    /// Shards whose objects the watch has shown as they were last written: if one is missing then, another client
    /// deleted it.
    pub(super) witnessed: HashSet<ShardId>,
    /// Shards that were written and that the watch has not shown since.
    pub(super) unseen: HashMap<ShardId, Instant>,
    /// Copies that may not be made, since another source owns their place.
    pub(super) refused: Vec<RefusedCopy>,
    /// What the last plan could not do.
    pub(super) problems: Vec<String>,
    /// Registries that tasks wait for, and why.
    pub(super) waiting: Vec<AwaitedRegistry>,
    /// Copies that stay because of other clusters, by the reason.
    pub(super) withheld: BTreeMap<String, usize>,
    /// Originals to be opened on behalf of namespaces that have not proven their access.
    pub(super) to_prove: Vec<access::Attempt>,
    /// Deletions wait until the usage lists of other clusters were read.
    pub(super) lists_wanted: bool,
    /// When a retention ends.
    pub(super) next: Option<Timestamp>,
    /// Since when this replica has known that the object is going.
    pub(super) leaving_since: Option<Timestamp>,
    /// The object is going, and this is what is left to do.
    pub(super) finalization: Option<Finalization>,
    /// Why the last removal of a copy failed.
    pub(super) failing: Option<String>,
    pub(super) writes: WriteSchedule,
}

impl MirrorState {
    pub(super) fn new(
        object: StoredMirror,
        mut ledger: Ledger,
        manner: &LedgerManner,
        now: Timestamp,
    ) -> Self {
        if let Some(status) = object.stored.status().filter(|_| ledger.is_empty()) {
            let changes = mirroring::adopt(&ledger, status, now);
            ledger.apply(changes);
        }
        // Objects being deleted are skipped.
        if object.deleting.is_none() {
            let outdated = ledger.adopt_manner(manner);
            let changes = mirroring::make_again(&ledger, &outdated, now);
            ledger.apply(changes);
            if !outdated.is_empty() {
                tracing::info!(
                    mirror = %ledger.owner().name, images = outdated.len(),
                    "copies are made again: the configuration asks for other platforms or for referrers"
                );
            }
        }
        Self {
            object,
            ledger,
            used: Vec::new(),
            witnessed: HashSet::new(),
            unseen: HashMap::new(),
            refused: Vec::new(),
            problems: Vec::new(),
            waiting: Vec::new(),
            withheld: BTreeMap::new(),
            to_prove: Vec::new(),
            lists_wanted: false,
            next: None,
            leaving_since: None,
            finalization: None,
            failing: None,
            writes: WriteSchedule::default(),
        }
    }

    /// Notes what came of a task, or of a part of it.
    pub(super) fn record(&mut self, task: &Task, finding: Finding, now: Timestamp) {
        let Task { source, destination, .. } = task;
        let change = mirroring::record(&self.ledger, source, Some(destination), finding, now);
        self.ledger.apply(change);
        self.writes.touch();
    }

    /// The object as planning sees it.
    pub(super) fn planned(&self) -> MirrorObject<'_> {
        MirrorObject {
            ledger: &self.ledger,
            policy: self.object.policy.as_deref(),
            used: &self.used,
            leaving: self.object.deleting.is_some(),
        }
    }

    /// On whose behalf registries are asked.
    pub(super) fn principal(&self) -> Principal {
        Principal::of_namespace(self.object.owner.namespace.as_ref())
    }

    /// The clusters that share a mirror, as the status remembers them.
    pub(super) fn sharing_clusters(&self, place: &Location) -> Vec<SeenCluster> {
        let listed = self.object.stored.status().map(|status| &*status.shared_with).unwrap_or_default();
        let here = listed.iter().filter(|one| one.mirror == place.as_str());
        let seen =
            here.map(|one| SeenCluster { cluster: one.cluster.as_str().into(), last_seen: one.last_seen.0 });
        seen.collect()
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&Reference, &Entry)> {
        self.ledger.iter()
    }
}
