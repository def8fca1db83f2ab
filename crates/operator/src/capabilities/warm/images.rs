//! The controller of `CachedImage` objects: shows the cluster to the planner and carries out what it decides.

mod events;
mod observe;
mod routing;
mod writes;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::drop::{CachedImage, CachedImageStatus};
use fairlead_plan::warm::pacing::Caps;
use fairlead_plan::warm::{Action, Refusal, Settings, Snapshot, Warming};
use jiff::Timestamp;
use serde_json::json;
use tokio::time::Instant;

use self::events::News;
use self::observe::{PullPods, troubles};
use self::routing::Routes;
use self::writes::{Done, Write, Writes};
use super::{FIELD_MANAGER, WarmSetup};
use crate::cluster::state::{Changes, Key};
use crate::context::Context;
use crate::controller::status::{Draft, Manner, ObjectId, StatusWriter};
use crate::controller::{Broken, Controller};
use crate::platform::config::{Warm, WarmMethod};
use crate::platform::leader::Term;

/// Writes that end within this time are taken up by one round.
const GATHERING: Duration = Duration::from_millis(25);
/// What metrics show is brought up to date this often.
const SHOWN: Duration = Duration::from_millis(500);
/// Longest time between two looks at the clock, which may be set.
const LONGEST_SLEEP: Duration = Duration::from_mins(1);

/// What must be listed before anything is planned: what is not there must not be taken for something that is gone.
const KINDS: [&str; 5] = ["CachedImage", "PullPolicy", "WarmLedger", "Node", "Pod"];

/// What decides about references besides; kinds that are not installed count as listed.
const ROUTING: [&str; 3] = ["ClusterImageSetMirror", "ClusterReplicatedImageSet", "ImageLedger"];

/// The controller.
pub struct ImageWarming {
    setup: Arc<WarmSetup>,
    namespace: Arc<str>,
    warming: Warming,
    pods: PullPods,
    routes: Routes,
    writes: Writes,
    statuses: StatusWriter,
    news: News,
    shown: Option<Instant>,
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

fn settings(context: &Context) -> Settings {
    let Warm { method, max_pulls_per_node, max_pulls, pull_deadline, gate_deadline, runner, .. } =
        &context.config.warm;
    Settings {
        namespace: namespace(context).into(),
        batch: *method == WarmMethod::Batch,
        caps: Caps { per_node: *max_pulls_per_node as usize, total: max_pulls.map(|most| most as usize) },
        pull_deadline: pull_deadline.as_std(),
        gate_deadline: gate_deadline.as_std(),
        runner: runner.as_deref().map(Into::into),
    }
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
            .or_else(|| board.awaits_pods_and(&ROUTING))
            .or_else(uncompiled)
    }

    fn changes(setup: &WarmSetup) -> Vec<Changes> {
        let Context { resources, policies, .. } = &*setup.context;
        vec![
            resources.cached_images.changes(),
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
            statuses: StatusWriter::new(context.client.clone(), FIELD_MANAGER),
            news: News::default(),
            shown: None,
            setup: setup.clone(),
        })
    }

    async fn round(&mut self, term: &Term) -> Result<Instant, Broken> {
        let (begun, now) = (Instant::now(), Timestamp::now());
        let resources = &self.setup.context.resources;
        let images = resources.cached_images.snapshot();
        let images: Vec<_> = images.objects.values().cloned().collect();
        let policies: Vec<_> = resources.pull_policies.snapshot().objects.values().cloned().collect();
        self.routes.observe(&images, now);
        let registries = troubles(&self.setup.context, self.routes.hosts(), now);
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
            nodes: &resources.nodes.all(),
            pods: self.pods.observe(&resources.pods, &self.namespace),
            routed: self.routes.decided(),
            registries: &registries,
        });
        let mut reports = BTreeMap::new();
        for action in plan.actions {
            self.take(action, &mut reports);
        }
        self.writes.go_on(term);
        self.report(&images, reports, term, begun).await;
        self.news.tell(&self.setup.context.events, now);
        if self.shown.is_none_or(|at| at + SHOWN <= begun) {
            self.setup.metrics.show(&self.warming);
            self.shown = Some(begun);
        }
        self.setup.metrics.reconciled("cachedimage", true);
        let look_again = [plan.look_again, self.news.next()].into_iter().flatten().min();
        let wait = look_again.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        Ok(begun + wait.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP))
    }

    async fn progress(&mut self) -> bool {
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
            Done::NotCreated { pod, reason, message } => {
                let refusal = Refusal { reason: &reason, message: &message };
                self.warming.not_created(&pod, refusal, now);
            }
            Done::Stored { image, shard, ticket, version } => {
                self.warming.written(&image, shard, ticket, version);
            }
            Done::NotStored { image, shard, found } => self.warming.not_written(&image, shard, found, now),
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
            Action::Store { image, draft } => {
                self.writes.push(Write::Store { image, draft: Box::new(draft) });
            }
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
        reports: BTreeMap<Arc<str>, Box<CachedImageStatus>>,
        term: &Term,
        begun: Instant,
    ) {
        for object in images {
            let uid = object.metadata.uid.as_deref().unwrap_or_default();
            let Some(status) = reports.get(uid) else { continue };
            let body = json!(CachedImageStatus { conditions: Vec::new(), ..(**status).clone() });
            let object = ObjectId::of(&**object);
            let draft = Draft::new(object, Manner::ApplyList("cachedNodes"), body, &status.conditions, &[]);
            let written =
                self.statuses.may(&draft, begun) && term.holds() && self.statuses.write(&draft).await.is_ok();
            if !written {
                self.warming.not_reported(uid);
            }
        }
        self.statuses.keep(|uid| reports.contains_key(uid));
    }
}
