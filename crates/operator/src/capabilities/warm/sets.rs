//! The controller of `CachedImageSet` and `PullPolicy` objects: keeps the children of sets, and says in both kinds how
//! things stand.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::conditions::Condition;
use fairlead_api::drop::{CachedImage, CachedImageSet, CachedImageSetStatus, PullPolicyStatus};
use fairlead_plan::warm::sets::{SetPlan, plan};
use fairlead_plan::warm::status::policy_statuses;
use jiff::Timestamp;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{FIELD_MANAGER, WarmSetup};
use crate::cluster::state::Changes;
use crate::context::Context;
use crate::controller::backoff::{Backoff, Retry};
use crate::controller::status::{Draft, Manner, ObjectId, StatusWriter};
use crate::controller::{Broken, Controller};
use crate::platform::api_error::{Class, Failure, within};
use crate::platform::leader::Term;

/// One request never holds up the next for longer.
const LIMIT: Duration = Duration::from_secs(10);
const LONGEST_SLEEP: Duration = Duration::from_mins(1);
/// After a child could not be written.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1)).with_jitter(0.5);

/// The controller.
pub struct SetKeeper {
    setup: Arc<WarmSetup>,
    children: Api<CachedImage>,
    statuses: StatusWriter,
    retry: Retry,
    not_before: Instant,
    /// Failures that were logged.
    logged: HashSet<String>,
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
            retry: Retry::new(RETRY),
            not_before: Instant::now(),
            logged: HashSet::new(),
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
        let mut open = HashSet::new();
        for draft in drafts {
            open.insert(draft.object.uid.clone());
            if self.statuses.may(&draft, begun) && term.holds() {
                // A failure is logged, and tried again with back-off.
                drop(self.statuses.write(&draft).await);
            }
        }
        self.statuses.keep(|uid| open.contains(uid));
        let latest = if self.not_before > begun { self.not_before } else { begun + LONGEST_SLEEP };
        Ok(self.statuses.next_due(begun, latest))
    }
}

impl SetKeeper {
    /// Writes children that differ from what their sets say, and returns the statuses of the sets.
    async fn keep_children(&mut self, term: &Term, begun: Instant, now: Timestamp) -> Vec<Draft> {
        let Context { resources, .. } = &*self.setup.context;
        let (sets, images) = (resources.cached_image_sets.snapshot(), resources.cached_images.snapshot());
        let policies = resources.discovery_policies.snapshot();
        let mut drafts = Vec::new();
        let mut failed = false;
        for set in sets.objects.values() {
            let name = set.spec.discovery_policy_ref.as_ref().map(|policy| policy.name.as_str());
            let policy = policies.objects.values().find(|policy| policy.metadata.name.as_deref() == name);
            let policy = policy.filter(|_| name.is_some()).map(|policy| &**policy);
            let plan = plan(set, policy, images.objects.values().map(|image| &**image), now);
            if begun >= self.not_before {
                let written = self.write_children(&plan, term).await;
                failed |= !written;
                self.setup.metrics.reconciled("cachedimageset", written);
            }
            drafts.extend(plan.status.map(|status| draft_of_set(set, &status)));
        }
        if failed {
            self.not_before = Instant::now() + self.retry.failed();
        } else if begun >= self.not_before {
            self.retry.reset();
            self.logged.clear();
        }
        drafts
    }

    /// `false`: something has to be tried again.
    async fn write_children(&mut self, plan: &SetPlan, term: &Term) -> bool {
        let mut done = true;
        let creating = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let patching =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        for child in plan.create.iter().take_while(|_| term.holds()) {
            let created = within(LIMIT, self.children.create(&creating, child)).await;
            done &= self.went_well("create", child.metadata.name.as_deref().unwrap_or_default(), created);
        }
        for (name, version, spec) in plan.update.iter().take_while(|_| term.holds()) {
            // A field that is left out of the new spec has to go.
            let patch = json!([
                {"op": "test", "path": "/metadata/resourceVersion", "value": version},
                {"op": "replace", "path": "/spec", "value": spec},
            ]);
            let Ok(patch) = serde_json::from_value(patch) else { continue };
            let patched =
                within(LIMIT, self.children.patch(name, &patching, &Patch::<()>::Json(patch))).await;
            done &= self.went_well("update", name, patched);
        }
        for (name, uid) in plan.delete.iter().take_while(|_| term.holds()) {
            let preconditions = Preconditions { uid: uid.clone(), resource_version: None };
            let params = DeleteParams::default().preconditions(preconditions);
            let deleted = within(LIMIT, self.children.delete(name, &params)).await;
            done &= self.went_well("delete", name, deleted);
        }
        done
    }

    fn went_well<T>(&mut self, verb: &str, name: &str, result: Result<T, Failure>) -> bool {
        match result {
            Ok(_) => true,
            // The watch will show it as it is.
            Err(failure) if matches!(failure.class, Class::Conflict | Class::Absent) => true,
            Err(failure) => {
                if self.logged.insert(format!("{verb} {name}")) {
                    tracing::warn!(
                        image = name, error = %failure, "cannot {verb} the CachedImage of a set; trying again"
                    );
                }
                false
            }
        }
    }

    fn policies(&self, now: Timestamp) -> Vec<Draft> {
        let resources = &self.setup.context.resources;
        let (policies, images) = (resources.pull_policies.snapshot(), resources.cached_images.snapshot());
        let policies: Vec<_> = policies.objects.values().cloned().collect();
        let images: Vec<_> = images.objects.values().cloned().collect();
        self.setup.metrics.reconciled("pullpolicy", true);
        let statuses = policy_statuses(&policies, &images, now);
        let drafts = statuses.into_iter().filter_map(|(name, status)| {
            let policy = policies.iter().find(|policy| policy.metadata.name.as_deref() == Some(&*name))?;
            let body = json!(PullPolicyStatus { conditions: Vec::new(), ..status.clone() });
            Some(draft(ObjectId::of(&**policy), Manner::ApplyList("users"), body, &status.conditions))
        });
        drafts.collect()
    }
}

fn draft_of_set(set: &CachedImageSet, status: &CachedImageSetStatus) -> Draft {
    let body = json!(CachedImageSetStatus { conditions: Vec::new(), ..status.clone() });
    draft(ObjectId::of(set), Manner::Apply, body, &status.conditions)
}

fn draft(object: ObjectId, manner: Manner, status: Value, conditions: &[Condition]) -> Draft {
    Draft::new(object, manner, status, conditions, &[])
}
