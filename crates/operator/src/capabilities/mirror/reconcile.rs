//! Compares what should be in mirrors with what the ledgers say, for all mirror objects at once.
//!
//! It reads every Pod and every ledger, so it runs beside the threads that serve requests, and not more often than it
//! is worth.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fairlead_api::fairlead::{CopyState, LedgerManner};
use fairlead_domain::reference::Reference;
use fairlead_plan::access;
use fairlead_plan::ledger::{Ledger, Owner};
use fairlead_plan::mirroring::{self, Claims, Farewell, Inputs, Leaving, Loops, Reconciled};
use fairlead_plan::routing::{Index, Policy};
use fairlead_plan::usage::DirectUses;
use fairlead_plan::usage_list::{ForeignMirrors, NameHash};
use jiff::{SignedDuration, Timestamp};

use super::metrics::{States, place_of};
use super::object_state::Desk;
use super::objects::Objects;
use super::usage_lists::Shared;
use crate::cluster::state::PodEntry;
use crate::cluster::usage::{self, Ignored};

/// Everything that a look depends on, owned.
pub(super) struct Look {
    pub(super) objects: Objects,
    pub(super) index: Arc<Index>,
    pub(super) pods: Vec<Arc<PodEntry>>,
    pub(super) ignored: Ignored,
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

/// The desks as they are afterwards.
pub(super) struct Looked {
    pub(super) desks: BTreeMap<Arc<str>, Desk>,
    /// Objects that are gone.
    pub(super) gone: Vec<Arc<str>>,
    pub(super) states: States,
    /// What this cluster uses of each mirror.
    pub(super) shared: BTreeMap<Arc<str>, Shared>,
}

impl Look {
    /// `shelved` are ledgers of objects that have no desk yet.
    pub(super) fn run(
        self,
        mut desks: BTreeMap<Arc<str>, Desk>,
        shelved: &mut HashMap<Owner, Ledger>,
    ) -> Looked {
        let gone: Vec<_> = desks.keys().filter(|uid| !self.objects.contains(uid)).cloned().collect();
        for uid in &gone {
            desks.remove(uid);
        }
        for (uid, object) in &self.objects.readable {
            if let Some(desk) = desks.get_mut(uid) {
                desk.object = object.clone();
            } else {
                let ledger =
                    shelved.remove(&object.owner).unwrap_or_else(|| Ledger::new(object.owner.clone()));
                desks.insert(Arc::clone(uid), Desk::new(object.clone(), ledger, &self.manner, self.now));
            }
        }
        self.use_images(&mut desks);
        let direct = usage::direct(&self.pods);
        self.plan(&mut desks, &direct);
        let (states, shared) = (count(&desks), self.share(&desks, &direct));
        Looked { desks, gone, states, shared }
    }

    fn use_images(&self, desks: &mut BTreeMap<Arc<str>, Desk>) {
        let policies: Vec<(Arc<str>, Arc<Policy>)> = desks
            .iter()
            .filter(|(_, desk)| desk.object.deleting.is_none())
            .filter_map(|(uid, desk)| Some((Arc::clone(uid), Arc::clone(desk.object.policy.as_ref()?))))
            .collect();
        let chosen: Vec<_> =
            policies.iter().filter_map(|(uid, policy)| Some((uid, policy.selection()?))).collect();
        let selections: Vec<_> = chosen.iter().map(|(_, selection)| *selection).collect();
        // Freed first, so that the old list and the new one are never in memory at once.
        for (uid, _) in &chosen {
            if let Some(desk) = desks.get_mut(*uid) {
                desk.used = Vec::new();
            }
        }
        let used = usage::gather(&self.pods, &self.ignored, &selections);
        for ((uid, _), used) in chosen.iter().zip(used) {
            if let Some(desk) = desks.get_mut(*uid) {
                desk.used = used;
                mirroring::share_sources(&desk.ledger, &mut desk.used);
            }
        }
    }

    /// What this cluster uses of each mirror. Where several objects name one, a cluster-scoped object gives the Secret.
    fn share(&self, desks: &BTreeMap<Arc<str>, Desk>, direct: &DirectUses) -> BTreeMap<Arc<str>, Shared> {
        let mut desks: Vec<&Desk> = desks.values().collect();
        desks.sort_by_key(|desk| desk.object.owner.namespace.is_some());
        let mut mirrors: BTreeMap<Arc<str>, Shared> = BTreeMap::new();
        for desk in desks {
            let Some(policy) = desk.object.policy.as_deref() else { continue };
            for target in policy.targets() {
                let key: Arc<str> = target.place.key().as_str().into();
                mirrors.entry(key).or_insert_with(|| Shared {
                    place: target.place.clone(),
                    secret: target.push_secret.cloned(),
                    cause: desk.principal().cause(),
                    used: Vec::new(),
                    seen: desk.sharing_clusters(target.place),
                });
            }
            // Its mirrors are looked at until its copies are gone, but it uses none of them any more.
            if desk.object.deleting.is_some() {
                continue;
            }
            for (place, copy) in mirroring::kept_copies(&desk.ledger, policy, self.now) {
                if let Some(shared) = mirrors.get_mut(place.key().as_str()) {
                    shared.used.push(NameHash::of(copy));
                }
            }
        }
        for shared in mirrors.values_mut() {
            let named = direct.images().filter(|image| shared.place.contains(image));
            shared.used.extend(named.map(NameHash::of));
        }
        mirrors
    }

    fn plan(&self, desks: &mut BTreeMap<Arc<str>, Desk>, direct: &DirectUses) {
        let loops = Loops::of(&self.index);
        let objects: Vec<_> = desks.values().map(Desk::planned).collect();
        let claims = Claims::gather(&objects, &loops, direct, self.now);
        let other_clusters = |copy: &Reference| self.foreign.permit_deletion(copy, self.now);
        for desk in desks.values_mut() {
            let namespace = desk.object.owner.namespace.clone();
            let replicas = |one: &Reference, other: &Reference| {
                self.index.are_replicas(one, other, namespace.as_deref())
            };
            let Desk { object, ledger, used, failing, waiting, .. } = desk;
            match (&object.policy, object.deleting) {
                (policy, Some(since)) => {
                    // Nothing is tried at a registry that is down; that it is says enough.
                    let awaited = waiting.first().map(|awaited| &awaited.reason);
                    let held_back = self.held_back.as_ref();
                    let failing = held_back.or(failing.as_ref()).or(awaited).map(String::as_str);
                    let leaving = Leaving {
                        policy: policy.as_deref(),
                        claims: &claims,
                        direct,
                        other_clusters: &other_clusters,
                        deletion: since,
                        failing,
                        now: self.now,
                    };
                    let (farewell, changes) = mirroring::farewell(ledger, &leaving);
                    ledger.apply(changes);
                    desk.lists_wanted = matches!(farewell, Farewell::Clean { lists_wanted: true, .. });
                    desk.farewell = Some(farewell);
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
                    (desk.next, desk.refused, desk.problems) = (next, refused, problems);
                    (desk.withheld, desk.lists_wanted) = (withheld, lists_wanted);
                    let access = policy.access();
                    let review = access::review_ledger(ledger, used, access, self.proof_lifetime, self.now);
                    for (source, proofs) in review.changed {
                        ledger.edit(&source, |entry| entry.access = proofs);
                    }
                    desk.to_prove = review.to_try;
                }
                // Until it is corrected, everything stays as it is.
                (None, None) => desk.next = None,
            }
        }
    }
}

fn count(desks: &BTreeMap<Arc<str>, Desk>) -> States {
    let mut states = States::default();
    let copies = desks.values().flat_map(Desk::entries).flat_map(|(_, entry)| &entry.copies);
    for state in copies.map(|copy| copy.state) {
        let state: CopyState = state;
        if let Some(number) = states.get_mut(place_of(state)) {
            *number += 1;
        }
    }
    states
}
