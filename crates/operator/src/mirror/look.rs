//! Compares what should be in mirrors with what the ledgers say, for all mirror objects at once.
//!
//! It reads every Pod and every ledger, so it runs beside the threads that serve requests, and not more often than it is
//! worth.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fairlead_api::fairlead::{CopyState, LedgerManner};
use fairlead_domain::reference::Reference;
use fairlead_plan::ledger::{Ledger, Owner};
use fairlead_plan::mirroring::{self, Claims, Holding, Inputs, Loops, Reconciled};
use fairlead_plan::routing::{Index, Policy};
use jiff::Timestamp;

use super::desk::Desk;
use super::metrics::{States, place_of};
use super::objects::Objects;
use crate::state::PodEntry;
use crate::usage::{self, Ignored};

/// Everything that a look depends on, owned.
pub(super) struct Look {
    pub(super) objects: Objects,
    pub(super) index: Arc<Index>,
    pub(super) pods: Vec<Arc<PodEntry>>,
    pub(super) ignored: Ignored,
    /// How copies are to be made.
    pub(super) manner: Arc<LedgerManner>,
    pub(super) now: Timestamp,
    /// Why nothing is removed.
    pub(super) held_back: Option<String>,
}

/// The desks as they are afterwards.
pub(super) struct Looked {
    pub(super) desks: BTreeMap<Arc<str>, Desk>,
    /// Objects that are gone.
    pub(super) gone: Vec<Arc<str>>,
    pub(super) states: States,
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
        self.plan(&mut desks);
        let states = count(&desks);
        Looked { desks, gone, states }
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
        let used = usage::gather(&self.pods, &self.ignored, &selections);
        for ((uid, _), used) in chosen.iter().zip(used) {
            if let Some(desk) = desks.get_mut(*uid) {
                desk.used = used;
            }
        }
    }

    fn plan(&self, desks: &mut BTreeMap<Arc<str>, Desk>) {
        let loops = Loops::of(&self.index);
        let holdings: Vec<_> = desks
            .values()
            .map(|desk| Holding {
                ledger: &desk.ledger,
                policy: desk.object.policy.as_deref(),
                used: &desk.used,
                leaving: desk.object.deleting.is_some(),
            })
            .collect();
        let direct = usage::direct(&self.pods);
        let claims = Claims::gather(&holdings, &loops, &direct, self.now);
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
                    let policy = policy.as_deref();
                    let farewell =
                        mirroring::farewell(ledger, policy, &claims, &direct, since, failing, self.now);
                    desk.farewell = Some(farewell);
                }
                (Some(policy), None) => {
                    let inputs = Inputs {
                        policy,
                        used,
                        loops: &loops,
                        claims: &claims,
                        direct: &direct,
                        replicas: &replicas,
                        now: self.now,
                    };
                    let Reconciled { next, refused, problems } = mirroring::reconcile(ledger, &inputs);
                    (desk.next, desk.refused, desk.problems) = (next, refused, problems);
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
