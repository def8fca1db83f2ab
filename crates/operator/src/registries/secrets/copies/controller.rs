//! Renews and removes copies while this replica leads: what was seen, and the steps of the plan.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::kuik::{ClusterImageSetMirror, ClusterReplicatedImageSet};
use fairlead_api::names::kuik::SECRET_CLEANUP;
use fairlead_plan::certificates::WallTime;
use fairlead_plan::pull_secrets::{Action, Copy, CopyPlace, FoundSecret, Sighting, View, plan_copies};
use fairlead_plan::routing::{PolicyId, PolicyKind, SecretUse};
use kube::core::ApiResource;
use tokio::time::Instant;

use super::observe::{HeldPolicy, Observed};
use super::{CopiesInner, CopyError, CopyStanding};
use crate::cluster::state::Changes;
use crate::context::Context;
use crate::controller::finalizers::{self, Finalized};
use crate::controller::status::ObjectId;
use crate::controller::{Broken, Controller};
use crate::platform::api_error::{Class, Failure};
use crate::platform::leader::Term;
use crate::registries::secrets::Read;

const FIELD_MANAGER: &str = "fairlead-pull-secrets";

/// How often policies and Pods are compared with what is known of the copies.
const LOOK: Duration = Duration::from_secs(2);

/// Kinds whose objects use or own copies.
const NEEDED: [&str; 3] = ["Pod", "ClusterImageSetMirror", "ClusterReplicatedImageSet"];
/// The same for clusters that have it: many have no Harbor.
const OPTIONAL: [&str; 1] = ["ProxyCache"];
/// Kinds that say where copies may be. They are watched only while there is copying.
const SELECTING: [&str; 2] = ["Namespace", "MutatingWebhookConfiguration"];

/// Between the starts of two requests: whatever there is to do, the API server hardly notices.
pub(super) const PACE: Duration = Duration::from_millis(20);

/// Requests before everything is looked at anew.
const MOST_PER_PASS: usize = 200;

/// What failed is not tried again before.
const RETRY: Duration = Duration::from_secs(30);

/// The controller: renews and removes copies, and lets go of policies whose copies are gone.
#[derive(Debug)]
pub struct CopyKeeper {
    pub(super) context: Arc<Context>,
    pub(super) sightings: BTreeMap<CopyPlace, Sighting>,
    /// Names of copies that were looked for in all namespaces, and when that began.
    pub(super) searched: BTreeMap<Arc<str>, WallTime>,
    /// Policies under deletion by UID, and since when that is known.
    deleting: HashMap<Arc<str>, WallTime>,
    /// What failed, and when to try again.
    failed: HashMap<String, Instant>,
}

impl Controller for CopyKeeper {
    const NAME: &'static str = "pull secrets";
    type Setup = Context;

    /// A policy whose kind is not served just now is not gone, and its copies are not orphans.
    fn waits_for(context: &Context) -> Option<String> {
        let selecting: &[&str] = if context.copies.enabled() { &SELECTING } else { &[] };
        let board = &context.board;
        board.awaits_served(&[&NEEDED, selecting].concat()).or_else(|| board.awaits_pods_and(&OPTIONAL))
    }

    /// No watch shows Secrets, so time alone wakes it.
    fn changes(_context: &Context) -> Vec<Changes> {
        Vec::new()
    }

    async fn begin(context: &Arc<Context>, _term: &Term) -> Result<Self, Broken> {
        Ok(Self {
            context: context.clone(),
            sightings: BTreeMap::new(),
            searched: BTreeMap::new(),
            deleting: HashMap::new(),
            failed: HashMap::new(),
        })
    }

    async fn round(&mut self, term: &Term) -> Result<Instant, Broken> {
        self.pass(term).await;
        Ok(Instant::now() + LOOK)
    }
}

impl CopyKeeper {
    /// What copies share with admission.
    pub(super) fn shared(&self) -> &CopiesInner {
        &self.context.copies.shared
    }

    async fn pass(&mut self, term: &Term) {
        let context = self.context.clone();
        let observed = Observed::new(&context.resources, &context.copies, &mut self.deleting);
        let places = observed.used.iter().chain(self.sightings.keys());
        let namespaces = &self.shared().namespaces;
        let selection =
            places.map(|place| (place.namespace.clone(), namespaces.selection(&place.namespace))).collect();
        let plan = plan_copies(&View {
            owners: &observed.owners,
            unreadable: &observed.unreadable,
            used: &observed.used,
            sources: &observed.sources,
            sightings: &self.sightings,
            searched: &self.searched,
            selection: &selection,
            now: self.shared().now(),
        });
        for place in &plan.forget {
            self.sightings.remove(place);
        }
        self.failed.retain(|_, retry| *retry > Instant::now());
        let mut requests = 0;
        for action in plan.actions {
            let key = key(&action);
            if self.failed.contains_key(&key) {
                continue;
            }
            // What happened meanwhile is planned for before there is more; a search alone takes long enough.
            if requests >= MOST_PER_PASS || !term.holds() {
                return;
            }
            requests += match &action {
                Action::Refuse { .. } => 0,
                Action::Search { .. } => MOST_PER_PASS,
                _ => 1,
            };
            if let Err(Trouble(told)) = self.carry_out(action, &observed).await {
                if let Some(failure) = told {
                    tracing::warn!(step = key, error = %failure, "cannot look after a pull secret's copies; trying again");
                }
                self.failed.insert(key, Instant::now() + RETRY);
            }
        }
    }

    async fn carry_out(&mut self, action: Action, observed: &Observed) -> Result<(), Trouble> {
        match action {
            Action::Look { place } => self.look(place, observed).await?,
            Action::Apply { place, of, why } => self.apply(place, &of, why).await?,
            Action::Delete { place, copy, why } => self.delete(place, &copy, why, observed).await?,
            Action::Search { name, of } => self.search(name, &of).await?,
            Action::Refuse { place, of } => {
                let error = CopyError::Foreign { of: of.clone(), place: place.clone() };
                self.shared().tell(&of, &place, &error);
            }
            Action::Release { owner } => {
                if let Some(held) = observed.held.get(&owner.uid) {
                    self.release(&owner, held).await?;
                }
            }
        }
        Ok(())
    }

    async fn look(&mut self, place: CopyPlace, observed: &Observed) -> Result<(), Failure> {
        tokio::time::sleep(PACE).await;
        let found = self.shared().look(&place, observed.owner_of(&place)).await?;
        self.saw(place, found);
        Ok(())
    }

    async fn apply(&mut self, place: CopyPlace, of: &SecretUse, why: &'static str) -> Result<(), Trouble> {
        let Some(Read::Keys(keys)) = self.shared().secrets.cached(&of.secret) else { return Ok(()) };
        if let CopyStanding::Failed(_) = self.shared().state(&place, &keys) {
            return Err(Trouble(None));
        }
        tokio::time::sleep(PACE).await;
        tracing::debug!(policy = %of.by, secret = %of.secret, copy = %place, why, "renewing a copy");
        match self.shared().put(of, &keys, &place).await {
            Ok(copy) => self.saw(place, FoundSecret::Copy(copy)),
            Err(CopyError::Foreign { .. }) => self.saw(place, FoundSecret::Foreign),
            Err(_) => return Err(Trouble(None)),
        }
        Ok(())
    }

    async fn delete(
        &mut self,
        place: CopyPlace,
        copy: &Copy,
        why: &'static str,
        observed: &Observed,
    ) -> Result<(), Failure> {
        tokio::time::sleep(PACE).await;
        match self.shared().delete(&place, copy).await {
            Ok(()) => {
                tracing::info!(copy = %place, why, "copy of a pull secret removed");
                self.sightings.remove(&place);
                Ok(())
            }
            // It is not what it was.
            Err(failure) if failure.class == Class::Conflict => self.look(place, observed).await,
            Err(failure) => Err(failure),
        }
    }

    pub(super) fn saw(&mut self, place: CopyPlace, found: FoundSecret) {
        self.sightings.insert(place, Sighting { found, at: self.shared().now() });
    }

    /// Takes kube-image-keeper's finalizer off, and no other.
    async fn release(&self, owner: &PolicyId, held: &HeldPolicy) -> Result<(), Failure> {
        let resource = match owner.kind {
            PolicyKind::ClusterImageSetMirror => ApiResource::erase::<ClusterImageSetMirror>(&()),
            PolicyKind::ClusterReplicatedImageSet => ApiResource::erase::<ClusterReplicatedImageSet>(&()),
            // The first two live in a namespace, the third never had that finalizer.
            PolicyKind::ImageSetMirror | PolicyKind::ReplicatedImageSet | PolicyKind::ProxyCache => {
                return Ok(());
            }
        };
        let PolicyId { name, uid, .. } = owner;
        let object = ObjectId { resource, namespace: "".into(), name: name.clone(), uid: uid.clone() };
        let seen = (held.resource_version.as_deref(), &*held.finalizers);
        let client = &self.context.client;
        let written = finalizers::set(client, FIELD_MANAGER, &object, seen, &[SECRET_CLEANUP], false).await?;
        if written == Finalized::Done {
            tracing::info!(policy = %owner, finalizer = SECRET_CLEANUP, "copies are gone; the policy may go");
        }
        Ok(())
    }
}

/// A step did not succeed. What was logged already is not logged again.
struct Trouble(Option<Failure>);

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self(Some(failure))
    }
}

/// What an action is about, for people and for telling what failed apart.
fn key(action: &Action) -> String {
    match action {
        Action::Look { place } => format!("look at {place}"),
        Action::Apply { place, .. } => format!("apply {place}"),
        Action::Delete { place, .. } => format!("remove {place}"),
        Action::Search { name, .. } => format!("search for {name}"),
        Action::Refuse { place, .. } => format!("leave {place}"),
        Action::Release { owner } => format!("let go of {owner}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_that_may_own_copies_is_waited_for() {
        let waited_for = [&NEEDED[..], &OPTIONAL].concat();
        for kind in PolicyKind::ALL.into_iter().filter(|kind| kind.is_cluster_scoped()) {
            assert!(waited_for.contains(&kind.name()), "{kind}");
        }
    }
}
