//! The controller of `CachedImage` objects: shows the cluster to the planner and carries out what it decides.

mod events;
mod observe;
mod routing;
mod writes;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::drop::{CachedImage, CachedImageSpec, CachedImageStatus};
use fairlead_plan::warm::memory::Found;
use fairlead_plan::warm::pacing::Caps;
use fairlead_plan::warm::sets::coming_gate;
use fairlead_plan::warm::{Action, Refusal, Snapshot, WarmSettings, Warming};
use jiff::Timestamp;
use serde_json::json;
use tokio::time::Instant;

use self::events::News;
use self::observe::{PullPods, troubles};
use self::routing::Routes;
use self::writes::{Done, Write, Writes};
use super::sets::policy_of;
use super::{FIELD_MANAGER, WarmSetup};
use crate::cluster::state::{Changes, Key};
use crate::cluster::watch::Resources;
use crate::context::Context;
use crate::controller::status::{Draft, Manner, ObjectId, StatusWriter};
use crate::controller::{Broken, Controller, wake_at};
use crate::platform::config::{Warm, WarmMethod};
use crate::platform::leader::Term;

/// Writes that end within this time are taken up by one round.
const GATHERING: Duration = Duration::from_millis(25);
/// What metrics show is brought up to date this often.
const SHOWN: Duration = Duration::from_millis(500);

/// What must be listed before anything is planned: what is not there must not be taken for something that is gone.
const KINDS: [&str; 5] = ["CachedImage", "PullPolicy", "WarmLedger", "Node", "Pod"];

/// What decides about references and gates besides; kinds that are not installed count as listed.
const BESIDES: [&str; 6] = [
    "ClusterImageSetMirror",
    "ClusterReplicatedImageSet",
    "ProxyCache",
    "ImageLedger",
    "CachedImageSet",
    "DiscoveryPolicy",
];

/// The controller.
pub struct ImageWarming {
    setup: Arc<WarmSetup>,
    namespace: Arc<str>,
    warming: Warming,
    pods: PullPods,
    routes: Routes,
    writes: Writes,
    /// What ended during the last round.
    ended: Vec<Done>,
    statuses: StatusWriter,
    news: News,
    shown: Option<Instant>,
    /// Something could not be written since the last round.
    failed: bool,
}

impl fmt::Debug for ImageWarming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageWarming").field("warming", &self.warming).finish_non_exhaustive()
    }
}

/// The namespace of pull Pods.
pub(super) fn namespace(context: &Context) -> &str {
    context.config.warm.namespace.as_deref().unwrap_or(&context.namespace)
}

fn settings(context: &Context) -> WarmSettings {
    let Warm { method, max_pulls_per_node, max_pulls, pull_deadline, gate_deadline, runner, .. } =
        &context.config.warm;
    WarmSettings {
        namespace: namespace(context).into(),
        batch: *method == WarmMethod::Batch,
        caps: Caps { per_node: *max_pulls_per_node as usize, total: max_pulls.map(|most| most as usize) },
        pull_deadline: pull_deadline.as_std(),
        gate_deadline: gate_deadline.as_std(),
        runner: runner.as_deref().map(Into::into),
    }
}

/// Images with a gate that their sets are about to create.
fn coming_gates(resources: &Resources, images: &[Arc<CachedImage>], now: Timestamp) -> Vec<CachedImageSpec> {
    let (sets, policies) = (resources.cached_image_sets.snapshot(), resources.discovery_policies.snapshot());
    let coming = sets.objects.values().filter(|set| set.spec.gate).filter_map(|set| {
        coming_gate(set, policy_of(set, &policies), images.iter().map(|image| &**image), now)
    });
    coming.collect()
}

impl Controller for ImageWarming {
    const NAME: &'static str = "warming";
    const DEBOUNCE: Duration = Duration::from_millis(50);
    type Setup = WarmSetup;

    /// Nodes are watched from here on: a node may wait behind its taint although there is no image to warm.
    fn waits_for(setup: &WarmSetup) -> Option<String> {
        let Context { board, policies, resources, .. } = &*setup.context;
        let served = board.awaits_served(&["CachedImage"]);
        if served.is_none() {
            setup.nodes.lock().get_or_insert_with(|| resources.nodes.keep_watched());
        }
        let uncompiled = || (!policies.is_up_to_date()).then(|| "policies are being compiled".to_owned());
        served
            .or_else(|| board.awaits_served(&KINDS))
            .or_else(|| board.awaits_pods_and(&BESIDES))
            .or_else(uncompiled)
    }

    fn changes(setup: &WarmSetup) -> Vec<Changes> {
        let Context { resources, policies, .. } = &*setup.context;
        vec![
            resources.cached_images.changes(),
            resources.cached_image_sets.changes(),
            resources.pull_policies.changes(),
            resources.nodes.changes(),
            resources.pods.pulling_changes(),
            resources.warm_ledgers.changes(),
            policies.changes(),
        ]
    }

    async fn begin(setup: &Arc<WarmSetup>, _term: &Term) -> Result<Self, Broken> {
        let context = &setup.context;
        let writes = Writes::new(context.client.clone(), namespace(context), &context.namespace);
        // Read anew: what another lease holder wrote a moment ago may not have come through the watch yet.
        let ledgers = writes.ledgers().await?;
        Ok(Self {
            namespace: namespace(context).into(),
            warming: Warming::new(settings(context), ledgers),
            pods: PullPods::default(),
            routes: Routes::new(context.clone()),
            writes,
            ended: Vec::new(),
            statuses: StatusWriter::new(context.client.clone(), FIELD_MANAGER),
            news: News::default(),
            shown: None,
            failed: false,
            setup: setup.clone(),
        })
    }

    async fn round(&mut self, term: &Term) -> Result<Instant, Broken> {
        let (begun, now) = (Instant::now(), Timestamp::now());
        let resources = &self.setup.context.resources;
        let images = resources.cached_images.snapshot();
        let images: Vec<_> = images.objects.values().cloned().collect();
        let policies: Vec<_> = resources.pull_policies.snapshot().objects.values().cloned().collect();
        let coming_gates = coming_gates(resources, &images, now);
        self.routes.observe(&images, now);
        let troubles = troubles(&self.setup.context, self.routes.sources(), now);
        let ledgers = resources.warm_ledgers.snapshot();
        let is_there = |name: &str| {
            let key = Key { namespace: self.setup.context.namespace.as_str().into(), name: name.into() };
            ledgers.objects.contains_key(&key) || ledgers.malformed.contains_key(&key)
        };
        self.warming.miss_ledgers(is_there, now);
        let plan = self.warming.round(&Snapshot {
            now,
            images: &images,
            policies: &policies,
            coming_gates: &coming_gates,
            nodes: &resources.nodes.all(),
            pods: self.pods.observe(&resources.pods, &self.namespace),
            routed: self.routes.decided(),
            troubles: &troubles,
        });
        let mut reports = BTreeMap::new();
        for action in plan.actions {
            self.take(action, &mut reports);
        }
        self.writes.begin(term);
        self.report(&images, reports, term, begun).await;
        self.news.tell(&self.setup.context.events, now);
        let due = self.shown.map(|at| at + SHOWN).filter(|due| *due > begun);
        if due.is_none() {
            self.setup.metrics.show(&self.warming);
            self.shown = Some(begun);
        }
        self.setup.metrics.reconciled("cachedimage", !std::mem::take(&mut self.failed));
        let look_again = [plan.look_again, self.news.next()].into_iter().flatten().min();
        let wake = self.statuses.next_due(begun, wake_at(look_again, now, begun));
        // A round that shows nothing is followed by one that does.
        Ok(due.map_or(wake, |due| due.min(wake)))
    }

    async fn progress(&mut self) -> bool {
        let mut news = false;
        for done in std::mem::take(&mut self.ended) {
            news |= self.done(done);
        }
        if news {
            return true;
        }
        tokio::select! {
            done = self.writes.next() => {
                if !self.done(done) {
                    return false;
                }
            }
            () = self.routes.next() => return true,
        }
        // One round takes up what ends within a moment.
        let gathered = tokio::time::sleep(GATHERING);
        tokio::pin!(gathered);
        loop {
            tokio::select! {
                done = self.writes.next() => {
                    self.done(done);
                }
                () = &mut gathered => return true,
            }
        }
    }

    fn end(setup: &WarmSetup) {
        setup.nodes.lock().take();
        setup.metrics.rest();
        setup.context.copies.keep_for_pulls([].into());
    }
}

impl ImageWarming {
    /// Takes up what came of a write, and tells whether the planner has to know.
    fn done(&mut self, done: Done) -> bool {
        let now = Timestamp::now();
        match done {
            Done::Nothing => return false,
            // What is seen of them counts, not that they were sent.
            Done::Created { pod } => {
                self.warming.created(&pod, now);
                return false;
            }
            Done::Deleted { pod } => {
                self.warming.deleted(&pod, now);
                return false;
            }
            Done::MaybeCreated { pod, reason, message } => {
                self.failed |= reason == "Unavailable";
                self.warming.maybe_created(&pod, Refusal { reason, message: &message }, now);
            }
            Done::NotCreated { pod, reason, message } => {
                self.failed = true;
                self.warming.not_created(&pod, Refusal { reason, message: &message }, now);
            }
            Done::Stored { image, shard, ticket, version } => {
                self.warming.written(&image, shard, ticket, version);
            }
            Done::NotStored { image, shard, found } => {
                self.failed |= found == Found::Unknown;
                self.warming.not_written(&image, shard, found, now);
            }
        }
        true
    }

    fn take(&mut self, action: Action, reports: &mut BTreeMap<Arc<str>, Box<CachedImageStatus>>) {
        match action {
            Action::Create(creation) => self.writes.push(Write::Create(creation)),
            Action::Delete { pod } => {
                let uid = self.pods.uid(&pod);
                self.writes.push(Write::Delete { pod, uid });
            }
            Action::Store { image, draft } => self.writes.push(Write::Store { image, draft }),
            Action::Release { node, uid, why } => {
                let found = self.setup.context.resources.nodes.get(&node).filter(|found| found.uid == uid);
                if let Some(found) = found {
                    self.writes.push(Write::Release { node: found, why });
                }
            }
            Action::Route { image } => self.routes.decide_again(&image),
            Action::Report { image, status, .. } => _ = reports.insert(image, status),
            Action::Tell(event) => {
                self.setup.metrics.count(&event, self.warming.image_of(&event.image));
                self.news.add(event);
            }
        }
    }

    async fn report(
        &mut self,
        images: &[Arc<CachedImage>],
        mut reports: BTreeMap<Arc<str>, Box<CachedImageStatus>>,
        term: &Term,
        begun: Instant,
    ) {
        let drafted: HashSet<_> = reports.keys().cloned().collect();
        // A status names up to a thousand nodes.
        let drafts = images.iter().filter_map(|object| {
            let mut status = reports.remove(object.metadata.uid.as_deref().unwrap_or_default())?;
            let conditions = std::mem::take(&mut status.conditions);
            let manner = Manner::ApplyList("cachedNodes");
            Some(Draft::new(ObjectId::of(&**object), manner, json!(status), &conditions, &[]))
        });
        let writing = self.statuses.write_each(&drafted, drafts, term, begun);
        tokio::pin!(writing);
        // Pods and ledgers do not wait for statuses.
        let (written, failed) = loop {
            tokio::select! {
                result = &mut writing => break result,
                done = self.writes.next() => self.ended.push(done),
            }
        };
        for uid in drafted.iter().filter(|uid| !written.contains(*uid)) {
            self.warming.not_reported(uid);
        }
        self.failed |= failed;
    }
}

#[cfg(test)]
mod tests {
    use fairlead_plan::routing::PolicyKind;

    use super::*;

    #[test]
    fn every_policy_that_may_route_a_pull_is_waited_for() {
        for kind in PolicyKind::ALL.into_iter().filter(|kind| kind.is_cluster_scoped()) {
            assert!(BESIDES.contains(&kind.name()), "{kind}");
        }
    }
}
