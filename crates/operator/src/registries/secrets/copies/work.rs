//! One term's work on copies: what was seen, and the steps of the plan.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use fairlead_api::{
    kuik::{ClusterImageSetMirror, ClusterReplicatedImageSet},
    names::kuik::SECRET_CLEANUP,
};
use fairlead_plan::certificates::WallTime;
use fairlead_plan::pull_secrets::{Action, Copy, Found, Place, Sighting, View, plan_copies};
use fairlead_plan::routing::{PolicyId, PolicyKind, SecretUse};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;

use super::{
    Copies, CopyError, State,
    observe::{Held, Observed},
    put::LIMIT,
};
use crate::cluster::watch::Resources;
use crate::platform::api_error::{Class, Failure, within};
use crate::platform::leader::Term;
use crate::registries::secrets::Read;

const FIELD_MANAGER: &str = "fairlead-pull-secrets";

/// Between the starts of two requests: whatever there is to do, the API server hardly notices.
pub(super) const PACE: Duration = Duration::from_millis(20);

/// Requests before everything is looked at anew.
const MOST_PER_PASS: usize = 200;

/// What failed is not tried again before.
const RETRY: Duration = Duration::from_secs(30);

pub(super) struct Work {
    pub(super) client: Client,
    pub(super) copies: Copies,
    resources: Resources,
    pub(super) sightings: BTreeMap<Place, Sighting>,
    /// Names of copies that were looked for in all namespaces, and when that began.
    pub(super) searched: BTreeMap<Arc<str>, WallTime>,
    /// Policies under deletion by UID, and since when that is known.
    deleting: HashMap<Arc<str>, WallTime>,
    /// What failed, and when to try again.
    failed: HashMap<String, Instant>,
}

impl Work {
    pub(super) fn new(client: Client, copies: Copies, resources: Resources) -> Self {
        Self {
            client,
            copies,
            resources,
            sightings: BTreeMap::new(),
            searched: BTreeMap::new(),
            deleting: HashMap::new(),
            failed: HashMap::new(),
        }
    }

    pub(super) async fn pass(&mut self, term: &Term) {
        let observed = Observed::new(&self.resources, &self.copies, &mut self.deleting);
        let places = observed.used.iter().chain(self.sightings.keys());
        let namespaces = &self.copies.shared.namespaces;
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
            now: self.copies.shared.now(),
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
                self.copies.shared.tell(&of, &place, &error);
            }
            Action::Release { owner } => {
                if let Some(held) = observed.held.get(&owner.uid) {
                    self.release(&owner, held).await?;
                }
            }
        }
        Ok(())
    }

    async fn look(&mut self, place: Place, observed: &Observed) -> Result<(), Failure> {
        tokio::time::sleep(PACE).await;
        let found = self.copies.shared.look(&place, observed.owner_of(&place)).await?;
        self.saw(place, found);
        Ok(())
    }

    async fn apply(&mut self, place: Place, of: &SecretUse, why: &'static str) -> Result<(), Trouble> {
        let Some(Read::Keys(keys)) = self.copies.shared.secrets.cached(&of.secret) else { return Ok(()) };
        if let State::Failed(_) = self.copies.shared.state(&place, &keys) {
            return Err(Trouble(None));
        }
        tokio::time::sleep(PACE).await;
        tracing::debug!(policy = %of.by, secret = %of.secret, copy = %place, why, "renewing a copy");
        match self.copies.shared.put(of, &keys, &place).await {
            Ok(copy) => self.saw(place, Found::Copy(copy)),
            Err(CopyError::Foreign { .. }) => self.saw(place, Found::Foreign),
            Err(_) => return Err(Trouble(None)),
        }
        Ok(())
    }

    async fn delete(
        &mut self,
        place: Place,
        copy: &Copy,
        why: &'static str,
        observed: &Observed,
    ) -> Result<(), Failure> {
        tokio::time::sleep(PACE).await;
        match self.copies.shared.delete(&place, copy).await {
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

    pub(super) fn saw(&mut self, place: Place, found: Found) {
        self.sightings.insert(place, Sighting { found, at: self.copies.shared.now() });
    }

    /// Takes kube-image-keeper's finalizer off, and no other.
    async fn release(&self, owner: &PolicyId, held: &Held) -> Result<(), Failure> {
        let outcome = match owner.kind {
            PolicyKind::ClusterImageSetMirror => self.unfinalize::<ClusterImageSetMirror>(owner, held).await,
            PolicyKind::ClusterReplicatedImageSet => {
                self.unfinalize::<ClusterReplicatedImageSet>(owner, held).await
            }
            PolicyKind::ImageSetMirror | PolicyKind::ReplicatedImageSet => return Ok(()),
        };
        match outcome {
            Ok(()) => {
                tracing::info!(policy = %owner, finalizer = SECRET_CLEANUP, "copies are gone; the policy may go");
                Ok(())
            }
            Err(failure) if matches!(failure.class, Class::Absent | Class::Conflict) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    async fn unfinalize<K>(&self, owner: &PolicyId, held: &Held) -> Result<(), Failure>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        let patch = json!({"metadata": {
            "resourceVersion": held.resource_version,
            "finalizers": held.other_finalizers,
        }});
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let api = Api::<K>::all(self.client.clone());
        within(LIMIT, api.patch_metadata(&owner.name, &params, &Patch::Merge(patch))).await.map(drop)
    }
}

/// A step did not succeed. What is told already is not told again.
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
