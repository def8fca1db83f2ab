//! Treats one Pod: asks registries, then patches the Pod, evicts it, or leaves it as it is.

use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::verdict::Verdict;
use fairlead_plan::heal::evict::{Allowed, Evictions, NotEvicted, Subject, has_other_place, needs_new_pod};
use fairlead_plan::heal::{
    Background, Candidate, Choice, FailingContainer, FailingPod, Repair, candidates, carried_over, choose,
    repair,
};
use fairlead_plan::pod_record::{Record, Route};
use fairlead_plan::pull_secrets::Receiver;
use fairlead_plan::routing::Alternative;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, Preconditions};
use kube::core::PartialObjectMeta;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::observe::{plan, view};
use super::{HealSetup, report};
use crate::cluster::state::PodEntry;
use crate::controller::events::Notice;
use crate::controller::rate_limit::Pace;
use crate::platform::api_error::{Class, Failure, LIMIT, within};
use crate::platform::leader::Term;
use crate::registries::ask::Question;
use crate::registries::secrets::PullKeys;

/// Time for all candidates of a Pod.
const PATIENCE: Duration = Duration::from_secs(10);
/// How far the watch may be behind the API server. What a patch was refused for is seen by then.
const WATCH_DELAY: Duration = Duration::from_secs(1);

/// A Pod to be treated.
pub(super) struct Treatment {
    pub(super) setup: Arc<HealSetup>,
    pub(super) term: Term,
    pub(super) pod: Arc<PodEntry>,
    /// Positions of containers, as the planner counts them.
    pub(super) due: Vec<usize>,
    pub(super) unpatchable: Vec<usize>,
    pub(super) pace: Arc<tokio::sync::Mutex<Pace>>,
    pub(super) evictions: Arc<Mutex<Evictions>>,
}

/// What became of it.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Patched, evicted, or gone.
    Patched,
    Failed {
        notice: Option<Notice>,
    },
    /// The API server did not answer. The watch shows whether it has applied the patch all the same.
    Unanswered(Arc<PodEntry>, Box<Repair>, Notice),
    /// The Pod is not as it was; it is looked at anew.
    Changed,
    /// The same, and the API server refused a patch or an eviction for it.
    Overtaken {
        notice: Option<Notice>,
    },
    /// There is nothing to do for now.
    Waits {
        notice: Option<Notice>,
    },
}

impl Treatment {
    pub(super) async fn run(self) -> Outcome {
        let begun = Instant::now();
        let pod = Arc::clone(&self.pod);
        let failing = view(&pod);
        let deadline = begun + PATIENCE;
        let keys = self.setup.context.secrets.of_pod(&pod, deadline).await;
        let record = failing.written.record();
        let mut choices = Vec::with_capacity(self.due.len());
        for position in &self.due {
            let Some(container) = failing.containers.get(*position) else { continue };
            let choice = self.choose(&failing, record.as_ref(), container, &keys, deadline).await;
            choices.push((*position, choice));
        }
        let outcome = match repair(&failing, &choices, Timestamp::now()) {
            Some(repair) => self.patch(&failing, &choices, repair).await,
            None => match needs_new_pod(&failing, &self.unpatchable, &choices) {
                Some(container) => self.evict(&failing, record.as_ref(), container, &keys, deadline).await,
                None => {
                    Outcome::Waits { notice: report::hopeless(&pod, &failing, record.as_ref(), &choices) }
                }
            },
        };
        self.setup.metrics.took(&pod.key.namespace, begun.elapsed());
        outcome
    }

    async fn choose(
        &self,
        failing: &FailingPod<'_>,
        record: Option<&Record>,
        container: &FailingContainer<'_>,
        keys: &PullKeys,
        deadline: Instant,
    ) -> Choice {
        let HealSetup { context, rules, .. } = &*self.setup;
        let route = failing.route(record, &container.place, container.image);
        let asked = route.map_or(&**container.image, |route| &route.asked);
        let mut planned = plan(context, rules, &self.pod, &container.place, asked, route.is_some());
        if let (Some(digest), Some(planned)) = (route.and_then(Route::pin), &mut planned) {
            planned.hold(&digest);
        }
        let (tried, upstreams) = (failing.tried(), failing.written.upstreams());
        let upstream = upstreams.get(container.name()).map(String::as_str);
        let of_original = upstream
            .filter(|_| route.is_none())
            .and_then(|original| plan(context, rules, &self.pod, &container.place, original, false));
        let patched = failing.written.patched_containers();
        let candidates = candidates(
            container,
            &Background {
                route,
                planned: planned.as_ref(),
                upstream,
                of_original: of_original.as_ref(),
                tried: &tried,
                patched: patched.iter().any(|name| name == container.name()),
                namespace: &self.pod.key.namespace,
                pull_secrets: &self.pod.pull_secrets,
            },
        );
        let verdicts = join_all(candidates.ask.iter().map(|one| self.ask(one, keys, deadline))).await;
        choose(candidates, &verdicts)
    }

    /// Asks about a candidate as the kubelet will: with the pull secrets of the Pod.
    async fn ask(&self, candidate: &Candidate, keys: &PullKeys, deadline: Instant) -> Verdict {
        let Candidate { reference, cause, is_original, .. } = candidate;
        let (cause, is_original, credentials) = (*cause, *is_original, keys.credentials(reference));
        let question = Question { reference, is_original, cause, credentials };
        self.setup.context.ask(&question, &self.pod.key.namespace, deadline).await
    }

    async fn patch(&self, failing: &FailingPod<'_>, choices: &[(usize, Choice)], repair: Repair) -> Outcome {
        let HealSetup { context, metrics, .. } = &*self.setup;
        self.pace.lock().await.turn().await;
        let Some((pod, repair)) = self.as_it_is_now(failing, choices, repair).filter(|_| self.term.holds())
        else {
            return Outcome::Changed;
        };
        let patch = serde_json::to_value(&repair.operations).and_then(serde_json::from_value);
        let Ok(patch) = patch else { return Outcome::Failed { notice: None } };
        let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(context.client.clone(), &pod.key.namespace);
        let (params, patch) = (PatchParams::default(), Patch::Json::<()>(patch));
        match within(LIMIT, pods.patch(&pod.key.name, &params, &patch)).await {
            Ok(_) => {
                report::healed(&context.events, &pod, &repair);
                metrics.patched(&pod, &repair, Timestamp::now());
                Outcome::Patched
            }
            Err(failure) => match self.failed(&pod, &failure).await {
                Outcome::Failed { .. } if failure.class == Class::Unavailable => {
                    let notice = report::refused(&pod, &repair, &failure);
                    Outcome::Unanswered(pod, Box::new(repair), notice)
                }
                Outcome::Failed { .. } => {
                    Outcome::Failed { notice: Some(report::refused(&pod, &repair, &failure)) }
                }
                Outcome::Overtaken { .. } => {
                    Outcome::Overtaken { notice: Some(report::refused(&pod, &repair, &failure)) }
                }
                outcome => outcome,
            },
        }
    }

    /// The Pod as the watch shows it now, with the repair for that; none if what was decided does not hold any more.
    fn as_it_is_now(
        &self,
        failing: &FailingPod<'_>,
        choices: &[(usize, Choice)],
        repair: Repair,
    ) -> Option<(Arc<PodEntry>, Repair)> {
        let current = self.setup.context.resources.pods.get(&self.pod.key)?;
        if Arc::ptr_eq(&current, &self.pod) {
            return Some((current, repair));
        }
        if !self.setup.rules.covers(&current) {
            return None;
        }
        let (now, choices) = carried_over(failing, view(&current), choices)?;
        let renewed = self::repair(&now, &choices, Timestamp::now())?;
        Some((current.clone(), renewed))
    }

    async fn failed(&self, pod: &Arc<PodEntry>, failure: &Failure) -> Outcome {
        match failure.class {
            // The Pod is gone.
            Class::Absent => Outcome::Patched,
            // The watch may be behind what the API server has stored.
            Class::Conflict | Class::Rejected if self.changes(pod).await => {
                tracing::info!(pod = %pod.key, %failure, "a Pod has changed before it could be healed");
                Outcome::Overtaken { notice: None }
            }
            _ => {
                tracing::warn!(pod = %pod.key, %failure, "a Pod could not be healed; it is tried again in 15 s");
                self.setup.metrics.failed(pod, Timestamp::now());
                Outcome::Failed { notice: None }
            }
        }
    }

    /// Whether the watch shows the Pod as it was when the decision was made.
    fn is_current(&self, pod: &Arc<PodEntry>) -> bool {
        let current = self.setup.context.resources.pods.get(&pod.key);
        current.is_some_and(|current| Arc::ptr_eq(&current, pod))
    }

    /// Whether the watch shows the Pod otherwise, now or in a moment.
    async fn changes(&self, pod: &Arc<PodEntry>) -> bool {
        let mut changes = self.setup.context.resources.pods.changes();
        let until = Instant::now() + WATCH_DELAY;
        while self.is_current(pod) {
            if timeout_at(until, changes.next()).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Evicts the Pod if that is allowed and of use; or reports what to do.
    async fn evict(
        &self,
        failing: &FailingPod<'_>,
        record: Option<&Record>,
        container: &FailingContainer<'_>,
        keys: &PullKeys,
        deadline: Instant,
    ) -> Outcome {
        let HealSetup { context, .. } = &*self.setup;
        let controller = self.pod.owner.as_ref().map(|owner| owner.controller());
        let has_other_place = self.has_other_place(failing, record, container, keys, deadline).await;
        let subject = Subject { controller, in_use: self.pod.in_use, has_other_place };
        let heal = &context.config.heal;
        let allowed = Allowed { unpatchable: heal.evict_unpatchable, jobs: heal.evict_jobs };
        let now = Timestamp::now();
        let decided = self.evictions.lock().decide(&subject, allowed, now);
        if let Err(why) = decided {
            let quiet = matches!(why, NotEvicted::Later(_));
            let notice = report::not_evicted(&self.pod, container, &why);
            return Outcome::Waits { notice: (!quiet).then_some(notice) };
        }
        let undo = || self.evictions.lock().undo(controller.map_or("", |controller| controller.uid), now);
        self.pace.lock().await.turn().await;
        if !self.term.holds() || !self.is_current(&self.pod) {
            undo();
            return Outcome::Changed;
        }
        let key = &self.pod.key;
        let pods: Api<Pod> = Api::namespaced(context.client.clone(), &key.namespace);
        let preconditions = Preconditions { uid: Some(self.pod.uid.to_string()), resource_version: None };
        let delete_options = Some(DeleteParams::default().preconditions(preconditions));
        let params = EvictParams { delete_options, ..EvictParams::default() };
        match within(LIMIT, pods.evict(&key.name, &params)).await {
            Ok(_) => {
                report::evicted(&context.events, &self.pod, container);
                Outcome::Patched
            }
            Err(failure) => {
                undo();
                self.failed(&self.pod, &failure).await
            }
        }
    }

    /// Asks about all places that admission would have for a new Pod, with the pull secrets that it would give it.
    async fn has_other_place(
        &self,
        failing: &FailingPod<'_>,
        record: Option<&Record>,
        container: &FailingContainer<'_>,
        keys: &PullKeys,
        deadline: Instant,
    ) -> bool {
        let HealSetup { context, rules, .. } = &*self.setup;
        let (place, image) = container.at_fault();
        let route = failing.route(record, &place, image);
        let asked = route.map_or(image, |route| &route.asked);
        let Some(mut planned) = plan(context, rules, &self.pod, &place, asked, route.is_some()) else {
            return false;
        };
        if let Some(digest) = route.and_then(Route::pin) {
            planned.hold(&digest);
        }
        let verdicts = planned.list().iter().map(async |place| {
            let mut keys = keys.clone();
            self.add_secrets_of(place, &mut keys, deadline).await;
            self.ask(&Candidate::offered(place), &keys, deadline).await
        });
        has_other_place(image, &planned, &join_all(verdicts).await)
    }

    /// The pull secrets that admission would give the next Pod for a place.
    async fn add_secrets_of(&self, place: &Alternative, keys: &mut PullKeys, deadline: Instant) {
        let (HealSetup { context, .. }, pod) = (&*self.setup, &self.pod);
        let permitted = context.accounts.permitted(&pod.key.namespace, &pod.service_account);
        let next = Receiver { present: &pod.pull_secrets, exists: false, permitted: permitted.as_deref() };
        let offered = context.copies.offered(&place.secrets, &pod.key.namespace, &next);
        let given = offered.filter(|secret| secret.given.is_ok());
        let read = given.map(|secret| context.secrets.read(&secret.used.secret, deadline));
        for read in join_all(read).await {
            keys.push(&read);
        }
    }
}
