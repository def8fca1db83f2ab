//! Treats one Pod: asks registries, then patches the Pod, evicts it, or leaves it as it is.

use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::verdict::Verdict;
use fairlead_plan::heal::evict::{Allowed, Evictions, NotEvicted, Subject};
use fairlead_plan::heal::{
    Background, Candidate, Choice, FailingContainer, FailingPod, FailingVolume, Repair, candidates, choose,
    repair,
};
use fairlead_plan::pod_record::{Place, Record};
use fairlead_plan::routing::judge;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, Preconditions};
use kube::core::PartialObjectMeta;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::observe::{plan, view};
use super::{HealSetup, report};
use crate::cluster::state::PodEntry;
use crate::controller::events::Notice;
use crate::controller::rate_limit::Pace;
use crate::platform::api_error::{Class, Failure, within};
use crate::platform::leader::Term;
use crate::registries::node_failures::pull_secrets;
use crate::registries::secrets::Keys;

/// Time for all candidates of a Pod.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for one request to the API server.
const LIMIT: Duration = Duration::from_secs(10);

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
    Failed,
    /// The Pod is not as it was; it is looked at anew.
    Changed,
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
        let keys = pull_secrets(&self.setup.context, &pod, deadline).await;
        let record = failing.written.record();
        let mut choices = Vec::with_capacity(self.due.len());
        for position in &self.due {
            let Some(container) = failing.containers.get(*position) else { continue };
            let choice = self.choose(&failing, record.as_ref(), container, &keys, deadline).await;
            choices.push((*position, choice));
        }
        let outcome = match repair(&failing, &choices, Timestamp::now()) {
            Some(repair) => self.patch(&repair).await,
            None if self.unpatchable.is_empty() => {
                Outcome::Waits { notice: report::hopeless(&pod, &failing, record.as_ref(), &choices) }
            }
            None => self.evict(&failing, record.as_ref(), &keys, deadline).await,
        };
        self.setup.metrics.took(&pod.key.namespace, begun.elapsed());
        outcome
    }

    async fn choose(
        &self,
        failing: &FailingPod<'_>,
        record: Option<&Record>,
        container: &FailingContainer<'_>,
        keys: &[Arc<Keys>],
        deadline: Instant,
    ) -> Choice {
        let HealSetup { context, rules, .. } = &*self.setup;
        let route = failing.route(record, &container.place, container.image);
        let asked = route.map_or(&**container.image, |route| &route.asked);
        let planned = plan(context, rules, &self.pod, &container.place, asked, route.is_some());
        let (tried, upstreams) = (failing.written.tried(), failing.written.upstreams());
        let patched = failing.written.patched_containers();
        let candidates = candidates(
            container,
            &Background {
                route,
                planned: planned.as_ref(),
                upstream: upstreams.get(container.name()).map(String::as_str),
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
    async fn ask(&self, candidate: &Candidate, keys: &[Arc<Keys>], deadline: Instant) -> Verdict {
        let HealSetup { context, rules, .. } = &*self.setup;
        let Candidate { reference, cause, is_original, .. } = candidate;
        let credentials = Keys::lookup(keys.iter().map(Arc::as_ref), &reference.repository());
        let namespace = &self.pod.key.namespace;
        let verdicts = context.verdicts.caused_by(*cause);
        let verdict = verdicts.ask(reference, &credentials, namespace, deadline).await;
        let trusted = rules.trust.trust_node_credentials(&reference.host());
        let verdict = judge(*is_original, verdict, !credentials.is_empty(), trusted);
        context.node_failures.judge(reference, namespace, &credentials, verdict)
    }

    async fn patch(&self, repair: &Repair) -> Outcome {
        let HealSetup { context, metrics, .. } = &*self.setup;
        let key = &self.pod.key;
        self.pace.lock().await.turn().await;
        if !self.term.holds() || !self.is_current() {
            return Outcome::Changed;
        }
        let patch = serde_json::to_value(&repair.operations).and_then(serde_json::from_value);
        let Ok(patch) = patch else { return Outcome::Failed };
        let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(context.client.clone(), &key.namespace);
        let (params, patch) = (PatchParams::default(), Patch::Json::<()>(patch));
        match within(LIMIT, pods.patch(&key.name, &params, &patch)).await {
            Ok(_) => {
                report::healed(&context.events, &self.pod, repair);
                metrics.patched(&self.pod, repair, Timestamp::now());
                Outcome::Patched
            }
            Err(failure) => self.failed(&failure),
        }
    }

    fn failed(&self, failure: &Failure) -> Outcome {
        let pod = &self.pod;
        match failure.class {
            // The Pod is gone.
            Class::Absent => Outcome::Patched,
            // It is not as it was any more. The watch shows how it is, and if that is the same, there is time.
            Class::Conflict | Class::Rejected if !self.is_current() => Outcome::Changed,
            _ => {
                tracing::warn!(pod = %pod.key, %failure, "a Pod could not be healed; it is tried again in 15 s");
                self.setup.metrics.failed(pod, Timestamp::now());
                Outcome::Failed
            }
        }
    }

    /// Whether the watch shows the Pod as it was when the decision was made.
    fn is_current(&self) -> bool {
        let current = self.setup.context.resources.pods.get(&self.pod.key);
        current.is_some_and(|current| Arc::ptr_eq(&current, &self.pod))
    }

    /// Evicts the Pod if that is allowed and of use; or reports what to do.
    async fn evict(
        &self,
        failing: &FailingPod<'_>,
        record: Option<&Record>,
        keys: &[Arc<Keys>],
        deadline: Instant,
    ) -> Outcome {
        let HealSetup { context, .. } = &*self.setup;
        let mut volumes = self.unpatchable.iter().filter_map(|position| failing.containers.get(*position));
        let Some((container, volume)) = volumes.find_map(|one| Some((one, one.volume?))) else {
            return Outcome::Waits { notice: None };
        };
        let controller = self.pod.owner.as_ref().map(|owner| owner.controller());
        let has_other_place = self.has_other_place(failing, record, &volume, keys, deadline).await;
        let subject = Subject { controller, started: self.pod.started, has_other_place };
        let heal = &context.config.heal;
        let allowed = Allowed { unpatchable: heal.evict_unpatchable, jobs: heal.evict_jobs };
        let decided = self.evictions.lock().decide(&subject, allowed, Timestamp::now());
        if let Err(why) = decided {
            let quiet = matches!(why, NotEvicted::Later(_));
            let notice = report::not_evicted(&self.pod, container, &volume, &why);
            return Outcome::Waits { notice: (!quiet).then_some(notice) };
        }
        self.pace.lock().await.turn().await;
        if !self.term.holds() || !self.is_current() {
            return Outcome::Changed;
        }
        if let Some(controller) = controller {
            self.evictions.lock().evicted(controller.uid, Timestamp::now());
        }
        let key = &self.pod.key;
        let pods: Api<Pod> = Api::namespaced(context.client.clone(), &key.namespace);
        let preconditions = Preconditions { uid: Some(self.pod.uid.to_string()), resource_version: None };
        let delete_options = Some(DeleteParams::default().preconditions(preconditions));
        let params = EvictParams { delete_options, ..EvictParams::default() };
        match within(LIMIT, pods.evict(&key.name, &params)).await {
            Ok(_) => {
                report::evicted(&context.events, &self.pod, container, &volume);
                Outcome::Patched
            }
            Err(failure) => self.failed(&failure),
        }
    }

    /// Whether admission would give a new Pod another image than the one that failed, and that one can be pulled.
    async fn has_other_place(
        &self,
        failing: &FailingPod<'_>,
        record: Option<&Record>,
        volume: &FailingVolume<'_>,
        keys: &[Arc<Keys>],
        deadline: Instant,
    ) -> bool {
        let HealSetup { context, rules, .. } = &*self.setup;
        let place = Place::Volume(volume.name);
        let route = failing.route(record, &place, volume.image);
        let asked = route.map_or(volume.image, |route| &route.asked);
        let Some(planned) = plan(context, rules, &self.pod, &place, asked, route.is_some()) else {
            return false;
        };
        let places: Vec<_> = planned.list().iter().map(Candidate::offered).collect();
        let verdicts = join_all(places.iter().map(|one| self.ask(one, keys, deadline))).await;
        let first = places.iter().zip(&verdicts).find(|(_, verdict)| verdict.is_usable());
        first.is_some_and(|(place, _)| place.image != volume.image)
    }
}
