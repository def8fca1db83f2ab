//! Compares what should be in mirrors with what the ledgers say, for all mirror objects at once.
//!
//! It reads every Pod and every ledger, so it runs beside the threads that serve requests, and not more often than it
//! is worth.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fairlead_api::fairlead::{CopyState, LedgerManner};
use fairlead_domain::reference::Reference;
use fairlead_plan::access;
use fairlead_plan::exclusions::Exclusions;
use fairlead_plan::ledger::{Ledger, Owner};
use fairlead_plan::mirroring::{
    self, DeletedMirror, DestinationOwners, Finalization, Inputs, Loops, Reconciled,
};
use fairlead_plan::routing::{Index, Policy};
use fairlead_plan::usage::DirectUses;
use fairlead_plan::usage_list::{ForeignMirrors, NameHash};
use jiff::{SignedDuration, Timestamp};

use super::metrics::{States, place_of};
use super::object_state::MirrorState;
use super::objects::Objects;
use super::usage_lists::MirrorUsage;
use crate::cluster::state::PodEntry;
use crate::cluster::usage;

/// Everything that a look depends on, owned.
pub(super) struct Reconciliation {
    pub(super) objects: Objects,
    pub(super) index: Arc<Index>,
    pub(super) pods: Vec<Arc<PodEntry>>,
    pub(super) exclusions: Exclusions,
    /// How copies are to be made.
    pub(super) manner: Arc<LedgerManner>,
    /// What other clusters use.
    pub(super) foreign: ForeignMirrors,
    pub(super) now: Timestamp,
    /// Why nothing is removed.
    pub(super) held_back: Option<String>,
    /// How long proof of access counts.
    pub(super) proof_lifetime: SignedDuration,
}

/// The mirrors as they are afterwards.
pub(super) struct ReconciledMirrors {
    pub(super) mirrors: BTreeMap<Arc<str>, MirrorState>,
    /// Objects that are gone.
    pub(super) gone: Vec<Arc<str>>,
    pub(super) states: States,
    /// What this cluster uses of each mirror.
    pub(super) shared: BTreeMap<Arc<str>, MirrorUsage>,
}

impl Reconciliation {
    /// `unclaimed` are ledgers of objects that have no mirror yet.
    pub(super) fn run(
        self,
        mut mirrors: BTreeMap<Arc<str>, MirrorState>,
        unclaimed: &mut HashMap<Owner, Ledger>,
    ) -> ReconciledMirrors {
        let gone: Vec<_> = mirrors.keys().filter(|uid| !self.objects.contains(uid)).cloned().collect();
        for uid in &gone {
            mirrors.remove(uid);
        }
        for (uid, object) in &self.objects.readable {
            if let Some(mirror) = mirrors.get_mut(uid) {
                mirror.object = object.clone();
            } else {
                let ledger =
                    unclaimed.remove(&object.owner).unwrap_or_else(|| Ledger::new(object.owner.clone()));
                mirrors.insert(
                    Arc::clone(uid),
                    MirrorState::new(object.clone(), ledger, &self.manner, self.now),
                );
            }
        }
        self.use_images(&mut mirrors);
        let direct = usage::direct(&self.pods);
        self.plan(&mut mirrors, &direct);
        let (states, shared) = (count(&mirrors), self.share(&mirrors, &direct));
        ReconciledMirrors { mirrors, gone, states, shared }
    }

    fn use_images(&self, mirrors: &mut BTreeMap<Arc<str>, MirrorState>) {
        let policies: Vec<(Arc<str>, Arc<Policy>)> = mirrors
            .iter()
            .filter(|(_, mirror)| mirror.object.deleting.is_none())
            .filter_map(|(uid, mirror)| Some((Arc::clone(uid), Arc::clone(mirror.object.policy.as_ref()?))))
            .collect();
        let chosen: Vec<_> =
            policies.iter().filter_map(|(uid, policy)| Some((uid, policy.selection()?))).collect();
        let selections: Vec<_> = chosen.iter().map(|(_, selection)| *selection).collect();
        // Freed first, so that the old list and the new one are never in memory at once.
        for (uid, _) in &chosen {
            if let Some(mirror) = mirrors.get_mut(*uid) {
                mirror.used = Vec::new();
            }
        }
        let used = usage::gather(&self.pods, &self.exclusions, &selections);
        for ((uid, _), used) in chosen.iter().zip(used) {
            if let Some(mirror) = mirrors.get_mut(*uid) {
                mirror.used = used;
                mirroring::share_sources(&mirror.ledger, &mut mirror.used);
            }
        }
    }

    /// What this cluster uses of each mirror. Where several objects name one, a cluster-scoped object gives the Secret.
    fn share(
        &self,
        mirrors: &BTreeMap<Arc<str>, MirrorState>,
        direct: &DirectUses,
    ) -> BTreeMap<Arc<str>, MirrorUsage> {
        let mut mirrors: Vec<&MirrorState> = mirrors.values().collect();
        mirrors.sort_by_key(|mirror| mirror.object.owner.namespace.is_some());
        let mut shared: BTreeMap<Arc<str>, MirrorUsage> = BTreeMap::new();
        for mirror in mirrors {
            let Some(policy) = mirror.object.policy.as_deref() else { continue };
            for target in policy.targets() {
                let key: Arc<str> = target.place.key().as_str().into();
                shared.entry(key).or_insert_with(|| MirrorUsage {
                    place: target.place.clone(),
                    secret: target.push_secret.cloned(),
                    cause: mirror.principal().cause(),
                    used: Vec::new(),
                    seen: mirror.sharing_clusters(target.place),
                });
            }
            // Its mirrors are looked at until its copies are gone, but it uses none of them any more.
            if mirror.object.deleting.is_some() {
                continue;
            }
            for (place, copy) in mirroring::kept_copies(&mirror.ledger, policy, self.now) {
                if let Some(usage) = shared.get_mut(place.key().as_str()) {
                    usage.used.push(NameHash::of(copy));
                }
            }
        }
        for usage in shared.values_mut() {
            let named = direct.images().filter(|image| usage.place.contains(image));
            usage.used.extend(named.map(NameHash::of));
        }
        shared
    }

    fn plan(&self, mirrors: &mut BTreeMap<Arc<str>, MirrorState>, direct: &DirectUses) {
        let loops = Loops::of(&self.index);
        let objects: Vec<_> = mirrors.values().map(MirrorState::planned).collect();
        let claims = DestinationOwners::gather(&objects, &loops, direct, self.now);
        let other_clusters = |copy: &Reference| self.foreign.permit_deletion(copy, self.now);
        for mirror in mirrors.values_mut() {
            let namespace = mirror.object.owner.namespace.clone();
            let replicas = |one: &Reference, other: &Reference| {
                self.index.are_replicas(one, other, namespace.as_deref())
            };
            let MirrorState { object, ledger, used, failing, waiting, leaving_since, .. } = mirror;
            match (&object.policy, object.deleting) {
                (policy, Some(since)) => {
                    // Nothing is tried at a registry that is down; that it is says enough.
                    let awaited = waiting.first().map(|awaited| &awaited.reason);
                    let held_back = self.held_back.as_ref();
                    let failing = held_back.or(failing.as_ref()).or(awaited).map(String::as_str);
                    let leaving = DeletedMirror {
                        policy: policy.as_deref(),
                        claims: &claims,
                        direct,
                        other_clusters: &other_clusters,
                        deletion: since,
                        tried_since: *leaving_since.get_or_insert(self.now),
                        failing,
                        now: self.now,
                    };
                    let (finalization, changes) = mirroring::finalization(ledger, &leaving);
                    ledger.apply(changes);
                    mirror.lists_wanted =
                        matches!(finalization, Finalization::Clean { lists_wanted: true, .. });
                    mirror.finalization = Some(finalization);
                }
                (Some(policy), None) => {
                    let inputs = Inputs {
                        policy,
                        used,
                        loops: &loops,
                        claims: &claims,
                        direct,
                        other_clusters: &other_clusters,
                        replicas: &replicas,
                        now: self.now,
                    };
                    let Reconciled { changes, next, refused, problems, withheld, lists_wanted } =
                        mirroring::reconcile(ledger, &inputs);
                    ledger.apply(changes);
                    (mirror.next, mirror.refused, mirror.problems) = (next, refused, problems);
                    (mirror.withheld, mirror.lists_wanted) = (withheld, lists_wanted);
                    let access = policy.access();
                    let review = access::review_ledger(ledger, used, access, self.proof_lifetime, self.now);
                    ledger.apply(review.changes);
                    mirror.to_prove = review.to_try;
                }
                // Until it is corrected, everything stays as it is.
                (None, None) => mirror.next = None,
            }
        }
    }
}

fn count(mirrors: &BTreeMap<Arc<str>, MirrorState>) -> States {
    let mut states = States::default();
    let copies = mirrors.values().flat_map(MirrorState::entries).flat_map(|(_, entry)| &entry.copies);
    for state in copies.map(|copy| copy.state) {
        let state: CopyState = state;
        if let Some(number) = states.get_mut(place_of(state)) {
            *number += 1;
        }
    }
    states
}
