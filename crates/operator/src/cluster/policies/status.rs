//! Writes the conditions of each policy object, on the lease holder alone.
//!
//! `fairlead_plan::policy_status` decides; nothing is written that is stored already. Writes are paced, so that a
//! thousand new objects do not become a thousand requests at once; broken objects go first, since a person waits for
//! the reason.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::conditions::{Condition, ConditionStatus};
use fairlead_api::kuik::{
    ClusterImageSetMirror, ClusterReplicatedImageSet, ImageSetMirror, ReplicatedImageSet,
};
use fairlead_api::reef::ProxyCache;
use fairlead_plan::policy_status::{self, Compilation, Status, Stored};
use fairlead_plan::routing::{PolicyId, PolicyKind};
use jiff::Timestamp;
use kube::core::ApiResource;
use serde_json::json;
use tokio::time::Instant;

use super::compiled::{CompileState, CompiledPolicies, Name};
use super::kinds::{PolicyObject, Sources};
use crate::cluster::state::{Changes, Key, Store};
use crate::context::Context;
use crate::controller::backoff::Retry;
use crate::controller::rate_limit::{Pace, Rate};
use crate::controller::status::{Draft, Manner, ObjectId, StatusWriter};
use crate::controller::{Broken, Controller};
use crate::platform::api_error::Class;
use crate::platform::leader::Term;

const FIELD_MANAGER: &str = "fairlead-policies";

/// How fast statuses are written.
pub const RATE: Rate = Rate { per_second: 20, burst: 40 };

/// No watch shows when a Secret appears or goes; this is how long its absence stays in a status at most.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// Writes before all objects are looked at again, so that what broke meanwhile does not wait for everything before it.
const PART: usize = 100;

/// The Secrets of a policy that cannot be used: for each a text that names it, the reason and the remedy.
type SecretProblems = Arc<dyn Fn(&PolicyId) -> Vec<String> + Send + Sync>;

/// Places of one image that a policy offers and that hold different digests; none while that is not known.
type Differences = Arc<dyn Fn(&PolicyId) -> Option<Vec<String>> + Send + Sync>;

/// What statuses are made of.
pub struct Statuses {
    context: Arc<Context>,
    sources: Sources,
    secrets: SecretProblems,
    differences: Differences,
    rate: Rate,
}

impl std::fmt::Debug for Statuses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Statuses").field("rate", &self.rate).finish_non_exhaustive()
    }
}

/// The controller.
#[derive(Debug)]
pub struct PolicyStatus {
    setup: Arc<Statuses>,
    writer: StatusWriter,
    pace: Pace,
    retry: Retry,
}

impl Statuses {
    pub fn new(
        context: Arc<Context>,
        secrets: impl Fn(&PolicyId) -> Vec<String> + Send + Sync + 'static,
        differences: impl Fn(&PolicyId) -> Option<Vec<String>> + Send + Sync + 'static,
        rate: Rate,
    ) -> Self {
        let sources = Sources::from(&context.resources);
        Self { context, sources, secrets: Arc::new(secrets), differences: Arc::new(differences), rate }
    }

    /// Everything that is other than what is stored, broken objects first.
    fn drafts(&self) -> Vec<(Name, Draft)> {
        let compiled = self.context.policies.compiled();
        let all =
            compiled.entries.keys().filter_map(|name| Some((name.clone(), self.draft(&compiled, name)?)));
        let mut drafts: Vec<_> = all.collect();
        // The sort is stable, and keeps the order of kinds and names.
        drafts.sort_by_key(|(_, (_, is_bad_news))| !is_bad_news);
        drafts.into_iter().map(|(name, (draft, _))| (name, draft)).collect()
    }

    /// What should be written about one object, if it is other than what is stored, and whether it is bad news.
    fn draft(&self, compiled: &CompiledPolicies, name: &Name) -> Option<(Draft, bool)> {
        match name.kind {
            PolicyKind::ClusterImageSetMirror => self.draft_in(compiled, name, &self.sources.cluster_mirrors),
            PolicyKind::ImageSetMirror => self.draft_in(compiled, name, &self.sources.mirrors),
            PolicyKind::ClusterReplicatedImageSet => {
                self.draft_in(compiled, name, &self.sources.cluster_sets)
            }
            PolicyKind::ReplicatedImageSet => self.draft_in(compiled, name, &self.sources.sets),
            // Its own controller does.
            PolicyKind::ProxyCache => None,
        }
    }

    fn draft_in<K: PolicyObject>(
        &self,
        compiled: &CompiledPolicies,
        name: &Name,
        store: &Store<K>,
    ) -> Option<(Draft, bool)> {
        let snapshot = store.snapshot();
        let key: &Key = &name.key;
        let now = Timestamp::now();
        let entry = compiled.entries.get(name)?;
        if let Some(malformed) = snapshot.malformed.get(key) {
            if !entry.is_of(&malformed.uid, malformed.generation) {
                return None;
            }
            let conditions = &malformed.conditions;
            let stored = Stored { generation: malformed.generation, conditions, ..Stored::default() };
            let outcome = Compilation::Unreadable { error: &malformed.error };
            let status = policy_status::wanted(name.kind, &outcome, None, &stored, now)?;
            let manner = Manner::Replace { version: malformed.resource_version.clone() };
            let others = others(conditions, &status);
            return Some(draft(name, &malformed.uid, manner, &status, &others));
        }
        let object = snapshot.objects.get(key)?;
        let metadata = object.meta();
        let uid = metadata.uid.clone().unwrap_or_default();
        // One that is not compiled yet has its turn when it is.
        if !entry.is_of(&uid, metadata.generation) {
            return None;
        }
        let (mut secrets, differences) = match &entry.state {
            CompileState::Compiled(policy) => ((self.secrets)(policy.id()), (self.differences)(policy.id())),
            CompileState::Refused(_) | CompileState::Crashed => (Vec::new(), None),
            CompileState::Unreadable(_) => return None,
        };
        secrets.sort();
        let outcome = entry.state.outcome(&secrets);
        let status =
            policy_status::wanted(name.kind, &outcome, differences.as_deref(), &object.stored(), now)?;
        Some(draft(name, &uid, Manner::Apply, &status, &[]))
    }
}

impl Controller for PolicyStatus {
    const NAME: &'static str = "policy status";
    type Setup = Statuses;

    /// Objects that are not compiled yet have their turn when they are.
    fn waits_for(_setup: &Statuses) -> Option<String> {
        None
    }

    fn changes(setup: &Statuses) -> Vec<Changes> {
        let mut changes = setup.sources.changes();
        changes.push(setup.context.policies.changes());
        changes.push(setup.context.secrets.problems().changes());
        changes
    }

    async fn begin(setup: &Arc<Statuses>, _term: &Term) -> Result<Self, Broken> {
        let writer = StatusWriter::new(setup.context.client.clone(), FIELD_MANAGER);
        Ok(Self { setup: setup.clone(), writer, pace: Pace::new(setup.rate), retry: Retry::default() })
    }

    async fn round(&mut self, term: &Term) -> Result<Instant, Broken> {
        let begun = Instant::now();
        let mut drafts = self.setup.drafts();
        let open: HashSet<_> = drafts.iter().map(|(_, draft)| draft.object.uid.clone()).collect();
        self.writer.keep(|uid| open.contains(uid));
        drafts.retain(|(_, draft)| self.writer.may(draft, begun));
        for (name, _) in drafts.iter().take(PART) {
            self.pace.turn().await;
            // The object may have changed while others were written.
            let Some((draft, _)) = self.setup.draft(&self.setup.context.policies.compiled(), name) else {
                continue;
            };
            if !self.writer.may(&draft, Instant::now()) || !term.holds() {
                continue;
            }
            let result = self.writer.write(&draft).await;
            self.setup.context.policies.metrics().wrote(result.is_ok());
            if result.is_err_and(|failure| failure.class == Class::Unavailable) {
                return Ok(Instant::now() + self.retry.failed());
            }
        }
        self.retry.reset();
        let latest = if drafts.len() > PART { begun } else { begun + LOOK_AGAIN };
        Ok(self.writer.next_due(begun, latest))
    }
}

/// Conditions that are not ours.
fn others(conditions: &[Condition], status: &Status) -> Vec<Condition> {
    let ours = |type_: &str| status.conditions.iter().any(|own| own.type_ == type_);
    conditions.iter().filter(|condition| !ours(&condition.type_)).cloned().collect()
}

fn draft(name: &Name, uid: &str, manner: Manner, status: &Status, others: &[Condition]) -> (Draft, bool) {
    let Key { namespace, name: object } = &name.key;
    let resource = resource_of(name.kind);
    let object = ObjectId { resource, namespace: namespace.clone(), name: object.clone(), uid: uid.into() };
    let is_bad_news = status.conditions.iter().any(|one| one.status != ConditionStatus::True);
    (Draft::new(object, manner, json!(status), &status.conditions, others), is_bad_news)
}

fn resource_of(kind: PolicyKind) -> ApiResource {
    match kind {
        PolicyKind::ClusterImageSetMirror => ApiResource::erase::<ClusterImageSetMirror>(&()),
        PolicyKind::ImageSetMirror => ApiResource::erase::<ImageSetMirror>(&()),
        PolicyKind::ClusterReplicatedImageSet => ApiResource::erase::<ClusterReplicatedImageSet>(&()),
        PolicyKind::ReplicatedImageSet => ApiResource::erase::<ReplicatedImageSet>(&()),
        PolicyKind::ProxyCache => ApiResource::erase::<ProxyCache>(&()),
    }
}
