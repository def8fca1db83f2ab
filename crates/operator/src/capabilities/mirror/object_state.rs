//! What is kept about one mirror object while this replica leads.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use fairlead_api::fairlead::LedgerManner;
use fairlead_api::kuik::AwaitedRegistry;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{Location, Reference};
use fairlead_plan::access;
use fairlead_plan::credentials::Principal;
use fairlead_plan::ledger::{Copy, Entry, Ledger, ShelfId};
use fairlead_plan::mirroring::{self, Farewell, Refusal, Task};
use fairlead_plan::routing::SecretName;
use fairlead_plan::usage::{Holder, Used};
use fairlead_plan::usage_list::SeenCluster;
use jiff::Timestamp;
use tokio::time::Instant;

use super::objects::Object;
use super::write::Turn;

/// One mirror object and its ledger.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) object: Object,
    pub(super) ledger: Ledger,
    /// Images in use by its Pods, in order.
    pub(super) used: Vec<Used>,
    /// Shelves whose objects the watch has shown as they were last written: if one is missing then, another client
    /// deleted it.
    pub(super) witnessed: HashSet<ShelfId>,
    /// Shelves that were written and that the watch has not shown since.
    pub(super) unseen: HashMap<ShelfId, Instant>,
    /// Copies that may not be made, since another source owns their place.
    pub(super) refused: Vec<Refusal>,
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
    /// The object is going, and this is what is left to do.
    pub(super) farewell: Option<Farewell>,
    /// Why the last removal of a copy failed.
    pub(super) failing: Option<String>,
    pub(super) turn: Turn,
}

impl Desk {
    pub(super) fn new(object: Object, mut ledger: Ledger, manner: &LedgerManner, now: Timestamp) -> Self {
        if let Some(status) = object.stored.status().filter(|_| ledger.is_empty()) {
            mirroring::adopt(&mut ledger, status, now);
        }
        // What goes is not made better first.
        if object.deleting.is_none() {
            let outdated = mirroring::adopt_manner(&mut ledger, manner, now);
            if outdated > 0 {
                tracing::info!(
                    mirror = %ledger.owner().name, images = outdated,
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
            farewell: None,
            failing: None,
            turn: Turn::default(),
        }
    }

    /// The tasks that may be worked on now.
    pub(super) fn tasks(&self) -> Vec<Task> {
        match &self.farewell {
            None => {
                let Some(policy) = &self.object.policy else { return Vec::new() };
                let mut tasks = mirroring::tasks(&self.ledger, policy, &self.used);
                // Whoever takes over after a crash must know of everything that may be in a registry.
                tasks.retain(|task| self.keeps(&task.destination) && self.ledger.is_stored(&task.source));
                tasks
            }
            // A removal adds nothing to a registry, so it need not be stored first.
            Some(Farewell::Clean { tasks, .. }) => tasks.clone(),
            Some(Farewell::Done { .. }) => Vec::new(),
        }
    }

    pub(super) fn holders(&self, source: &Reference) -> Arc<[Holder]> {
        self.use_of(source).map(|used| Arc::clone(&used.holders)).unwrap_or_default()
    }

    /// On whose behalf registries are asked.
    pub(super) fn principal(&self) -> Principal {
        Principal::of_namespace(self.object.owner.namespace.as_ref())
    }

    /// What nodes say that they run of an image.
    pub(super) fn running(&self, source: &Reference) -> Option<Digest> {
        self.use_of(source)?.running
    }

    fn use_of(&self, source: &Reference) -> Option<&Used> {
        let at = self.used.binary_search_by(|used| used.image.cmp(source)).ok()?;
        self.used.get(at)
    }

    /// Whether a copy lies in one of the object's mirrors. What its ledger says of others leads to nothing.
    pub(super) fn keeps(&self, copy: &Reference) -> bool {
        self.object.policy.as_ref().is_some_and(|policy| policy.keeps(copy))
    }

    /// The Secret to write or remove a copy with: that of the mirror it lies in.
    pub(super) fn secret_for(&self, copy: &Reference) -> Option<&SecretName> {
        self.object.policy.as_ref()?.push_secret(copy)
    }

    /// The Secret that Pods pull a copy with, and that the watch looks at it with.
    pub(super) fn pull_secret(&self, copy: &Reference) -> Option<SecretName> {
        self.object.policy.as_ref()?.pull_secret(copy).cloned()
    }

    /// The clusters that share a mirror, as the status remembers them.
    pub(super) fn sharing_clusters(&self, place: &Location) -> Vec<SeenCluster> {
        let listed = self.object.stored.status().map(|status| &*status.shared_with).unwrap_or_default();
        let here = listed.iter().filter(|one| one.mirror == place.as_str());
        let seen =
            here.map(|one| SeenCluster { cluster: one.cluster.as_str().into(), last_seen: one.last_seen.0 });
        seen.collect()
    }

    /// The row of a copy.
    pub(super) fn copy(&self, source: &Reference, destination: &Reference) -> Option<&Copy> {
        self.ledger.get(source)?.copy_at(destination)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&Reference, &Entry)> {
        self.ledger.iter()
    }
}
