//! The controller of `CachedImageSet` and `PullPolicy` objects: keeps the children of sets, and says in both kinds how
//! things stand.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::conditions::Condition;
use fairlead_api::drop::{
    CachedImage, CachedImageSet, CachedImageSetStatus, DiscoveryPolicy, PullPolicyStatus,
};
use fairlead_plan::warm::sets::{ChildUpdate, SetPlan, plan};
use fairlead_plan::warm::status::policy_statuses;
use jiff::Timestamp;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{SETS_FIELD_MANAGER as FIELD_MANAGER, WarmSetup};
use crate::cluster::state::{Changes, Snapshot};
use crate::context::Context;
use crate::controller::backoff::{Backoff, Retry};
use crate::controller::status::{Draft, Manner, ObjectId, StatusWriter};
use crate::controller::{Broken, Controller, LONGEST_SLEEP};
use crate::platform::api_error::{Class, Failure, LIMIT, within};
use crate::platform::leader::Term;

/// After a child could not be written.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1)).with_jitter(0.5);

/// The controller.
pub struct SetKeeper {
    setup: Arc<WarmSetup>,
    children: Api<CachedImage>,
    statuses: StatusWriter,
    /// Sets whose children cannot be written, by UID.
    refused: HashMap<String, Refused>,
}

/// Why a child of a set cannot be written.
#[derive(Debug)]
struct Refused {
    message: String,
    retry: Retry,
    not_before: Instant,
}

impl fmt::Debug for SetKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetKeeper").finish_non_exhaustive()
    }
}

impl Controller for SetKeeper {
    const NAME: &'static str = "sets of images to warm";
    type Setup = WarmSetup;

    /// A discovery policy whose kind is not served is as one that does not exist.
    fn waits_for(setup: &WarmSetup) -> Option<String> {
        let board = &setup.context.board;
        let kinds = ["CachedImage", "CachedImageSet", "PullPolicy", "DiscoveryPolicy"];
        board.awaits_served(&kinds)
    }

    fn changes(setup: &WarmSetup) -> Vec<Changes> {
        let resources = &setup.context.resources;
        vec![
            resources.cached_images.changes(),
            resources.cached_image_sets.changes(),
            resources.discovery_policies.changes(),
            resources.pull_policies.changes(),
        ]
    }

    async fn begin(setup: &Arc<WarmSetup>, _term: &Term) -> Result<Self, Broken> {
        let client = setup.context.client.clone();
        Ok(Self {
            children: Api::all(client.clone()),
            statuses: StatusWriter::new(client, FIELD_MANAGER),
            refused: HashMap::new(),
            setup: setup.clone(),
        })
    }

    async fn round(&mut self, term: &Term) -> Result<Instant, Broken> {
        let (begun, now) = (Instant::now(), Timestamp::now());
        let mut drafts = self.keep_children(term, begun, now).await;
        drafts.extend(self.policies(now));
        let resources = &self.setup.context.resources;
        drafts.extend(Draft::of_all_malformed(&resources.cached_images.snapshot()));
        drafts.extend(Draft::of_all_malformed(&resources.cached_image_sets.snapshot()));
        drafts.extend(Draft::of_all_malformed(&resources.pull_policies.snapshot()));
        let (_, failed) = self.statuses.write_all(drafts, term, begun).await;
        self.setup.metrics.reconciled("pullpolicy", !failed);
        let retries = self.refused.values().map(|refused| refused.not_before);
        let latest = retries.min().unwrap_or(begun + LONGEST_SLEEP).min(begun + LONGEST_SLEEP);
        Ok(self.statuses.next_due(begun, latest))
    }
}

impl SetKeeper {
    /// Writes children that differ from what their sets say, and returns the statuses of the sets.
    async fn keep_children(&mut self, term: &Term, begun: Instant, now: Timestamp) -> Vec<Draft> {
        let Context { resources, .. } = &*self.setup.context;
        let (sets, images) = (resources.cached_image_sets.snapshot(), resources.cached_images.snapshot());
        let policies = resources.discovery_policies.snapshot();
        self.refused.retain(|uid, _| sets.objects.values().any(|set| set.metadata.uid.as_ref() == Some(uid)));
        let mut drafts = Vec::new();
        for set in sets.objects.values() {
            let uid = set.metadata.uid.as_deref().unwrap_or_default();
            let plan = |refused: Option<&Refused>| {
                let all = images.objects.values().map(|image| &**image);
                plan(set, policy_of(set, &policies), all, refused.map(|refused| &*refused.message), now)
            };
            let mut planned = plan(self.refused.get(uid));
            if self.refused.get(uid).is_none_or(|refused| refused.not_before <= begun) {
                let written = self.write_children(&planned, term).await;
                self.setup.metrics.reconciled("cachedimageset", written.is_ok());
                if self.note(uid, written) {
                    planned = plan(self.refused.get(uid));
                }
            }
            drafts.extend(planned.status.map(|status| draft_of_set(set, &status)));
        }
        drafts
    }

    /// Takes note of how writing the children of a set went. `true`: there is something else to say about it.
    fn note(&mut self, set: &str, written: Result<(), String>) -> bool {
        let Err(message) = written else { return self.refused.remove(set).is_some() };
        let refused = self.refused.entry(set.to_owned()).or_insert_with(|| Refused {
            message: String::new(),
            retry: Retry::new(RETRY),
            not_before: Instant::now(),
        });
        refused.not_before = Instant::now() + refused.retry.failed();
        let is_news = refused.message != message;
        if is_news {
            tracing::warn!("{message}; trying again");
            refused.message = message;
        }
        is_news
    }

    /// The first problem, if something has to be tried again.
    async fn write_children(&self, plan: &SetPlan, term: &Term) -> Result<(), String> {
        let mut done = Ok(());
        let creating = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let patching =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        for child in plan.create.iter().take_while(|_| term.holds()) {
            let name = child.metadata.name.as_deref().unwrap_or_default();
            let created = within(LIMIT, self.children.create(&creating, child)).await;
            done = done.and(outcome("create", name, created));
        }
        for ChildUpdate { name, uid, generation, spec } in plan.update.iter().take_while(|_| term.holds()) {
            // A field that is left out of the new spec has to go.
            let patch = json!([
                {"op": "test", "path": "/metadata/uid", "value": uid},
                {"op": "test", "path": "/metadata/generation", "value": generation},
                {"op": "replace", "path": "/spec", "value": spec},
            ]);
            let Ok(patch) = serde_json::from_value(patch) else { continue };
            let patched =
                within(LIMIT, self.children.patch(name, &patching, &Patch::<()>::Json(patch))).await;
            done = done.and(outcome("update", name, patched));
        }
        for (name, uid) in plan.delete.iter().take_while(|_| term.holds()) {
            let preconditions = Preconditions { uid: uid.clone(), resource_version: None };
            let params = DeleteParams::default().preconditions(preconditions);
            let deleted = within(LIMIT, self.children.delete(name, &params)).await;
            done = done.and(outcome("delete", name, deleted));
        }
        done
    }

    fn policies(&self, now: Timestamp) -> Vec<Draft> {
        let resources = &self.setup.context.resources;
        let (policies, images) = (resources.pull_policies.snapshot(), resources.cached_images.snapshot());
        let policies: Vec<_> = policies.objects.values().cloned().collect();
        let images: Vec<_> = images.objects.values().cloned().collect();
        let statuses = policy_statuses(&policies, &images, now);
        let drafts = statuses.into_iter().filter_map(|(name, status)| {
            let policy = policies.iter().find(|policy| policy.metadata.name.as_deref() == Some(&*name))?;
            let body = json!(PullPolicyStatus { conditions: Vec::new(), ..status.clone() });
            Some(draft(ObjectId::of(&**policy), Manner::ApplyList("users"), body, &status.conditions))
        });
        drafts.collect()
    }
}

fn outcome<T>(verb: &str, name: &str, result: Result<T, Failure>) -> Result<(), String> {
    match result {
        // The watch will show it as it is.
        Err(failure) if !matches!(failure.class, Class::Conflict | Class::Absent) => {
            Err(format!("cannot {verb} CachedImage {name}: {failure}"))
        }
        _ => Ok(()),
    }
}

/// The discovery policy that a set names.
pub(super) fn policy_of<'a>(
    set: &CachedImageSet,
    policies: &'a Snapshot<DiscoveryPolicy>,
) -> Option<&'a DiscoveryPolicy> {
    let name = set.spec.discovery_policy_ref.as_ref()?.name.as_str();
    let named = |policy: &&Arc<DiscoveryPolicy>| policy.metadata.name.as_deref() == Some(name);
    policies.objects.values().find(named).map(|policy| &**policy)
}

fn draft_of_set(set: &CachedImageSet, status: &CachedImageSetStatus) -> Draft {
    let body = json!(CachedImageSetStatus { conditions: Vec::new(), ..status.clone() });
    draft(ObjectId::of(set), Manner::Apply, body, &status.conditions)
}

fn draft(object: ObjectId, manner: Manner, status: Value, conditions: &[Condition]) -> Draft {
    Draft::new(object, manner, status, conditions, &[])
}
