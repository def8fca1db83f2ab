//! Rounds against a cluster that does what it is asked.

mod batch;
mod gating;
mod leaders;
mod nodes;
mod pace;
mod places;
mod pods;
mod properties;
mod restarts;
mod scale;
mod states;
mod statuses;
mod targeting;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::drop::{CachedImage, CachedImageSpec, CachedImageStatus, PullPolicy, PullPolicySpec};
use fairlead_api::fairlead::WarmLedger;
use fairlead_api::names::fairlead::PULLS;
use fairlead_domain::reference::Reference;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};

use super::pacing::Caps;
use super::pod_state::{Phase, PullContainer, PullPod};
use super::pull_pod::pull_pod;
use super::record::Record;
use super::time::after;
use super::*;
use crate::node::{ImageList, Node, Taint};
use crate::pull_failure::PullFailure;

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

pub(super) fn reference(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

/// What becomes of a pull.
#[derive(Debug, Clone)]
pub(super) enum Fate {
    Pulled,
    /// The kubelet says nothing about the Pod.
    Hangs,
    /// The kubelet says this.
    Waits(&'static str, &'static str),
}

pub(super) struct Sim {
    pub(super) warming: Warming,
    pub(super) settings: WarmSettings,
    pub(super) now: Timestamp,
    pub(super) images: Vec<Arc<CachedImage>>,
    pub(super) policies: Vec<Arc<PullPolicy>>,
    pub(super) coming_gates: Vec<CachedImageSpec>,
    pub(super) nodes: BTreeMap<String, (Arc<Node>, Timestamp)>,
    pub(super) pods: BTreeMap<Arc<str>, Arc<PullPod>>,
    pub(super) routed: HashMap<Arc<str>, Routed>,
    pub(super) troubles: HashMap<Arc<str>, Trouble>,
    pub(super) ledgers: BTreeMap<String, Arc<WarmLedger>>,
    /// How long a pull takes.
    pub(super) pull_time: Duration,
    /// By name of the node; the others pull.
    pub(super) fates: HashMap<String, Fate>,
    /// Every Pod that was created: when, on which node, and what it pulls.
    pub(super) created: Vec<(Timestamp, String, Arc<Record>)>,
    pub(super) events: Vec<Event>,
    pub(super) released: Vec<(String, super::gate::Release)>,
    pub(super) writes: usize,
    /// How often it was asked again what an image is pulled as.
    pub(super) routes: usize,
    pub(super) look_again: Option<Timestamp>,
    /// Nothing is stored.
    pub(super) api_is_down: bool,
    /// How long a pull takes to fail, if that is another time.
    pub(super) failure_time: Option<Duration>,
    /// Writes of Pods that wait to be sent, if they do.
    pub(super) queue: Option<Vec<Action>>,
}

pub(super) fn settings() -> WarmSettings {
    WarmSettings {
        namespace: "fairlead".into(),
        batch: false,
        caps: Caps { per_node: 100, total: None },
        pull_deadline: Duration::from_mins(30),
        gate_deadline: Duration::from_mins(10),
        runner: None,
    }
}

impl Sim {
    pub(super) fn new(settings: WarmSettings) -> Self {
        Self {
            warming: Warming::new(settings.clone(), []),
            settings,
            now: at(0),
            images: Vec::new(),
            policies: Vec::new(),
            coming_gates: Vec::new(),
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            routed: HashMap::new(),
            troubles: HashMap::new(),
            ledgers: BTreeMap::new(),
            pull_time: Duration::from_secs(2),
            fates: HashMap::new(),
            created: Vec::new(),
            events: Vec::new(),
            released: Vec::new(),
            writes: 0,
            routes: 0,
            look_again: None,
            api_is_down: false,
            failure_time: None,
            queue: None,
        }
    }

    /// One image `web` with a policy that sets no pace to speak of, and nodes `n0`, `n1`, …
    pub(super) fn simple(nodes: usize) -> Self {
        let mut sim = Self::new(settings());
        sim.policy("fast", &json!({"maxConcurrentNodes": 1000, "minDelayBetweenPulls": "1ms"}));
        sim.image("web", &json!({"image": "r.io/web", "tag": "1", "policyRef": {"name": "fast"}}));
        (0..nodes).for_each(|number| sim.node(&format!("n{number}"), |_| {}));
        sim
    }

    pub(super) fn policy(&mut self, name: &str, spec: &Value) {
        let spec: PullPolicySpec = serde_json::from_value(spec.clone()).unwrap();
        self.policies.retain(|policy| policy.metadata.name.as_deref() != Some(name));
        self.policies.push(Arc::new(PullPolicy::new(name, spec)));
    }

    /// Creates an image, or edits it.
    pub(super) fn image(&mut self, name: &str, spec: &Value) {
        let spec: CachedImageSpec = serde_json::from_value(spec.clone()).unwrap();
        let uid: Arc<str> = format!("uid-{name}").into();
        let reference = asked(&spec.image, spec.tag.as_deref(), spec.digest.as_deref());
        let reference = reference.map_err(|error| error.to_string().into());
        self.routed.insert(
            Arc::clone(&uid),
            Routed {
                reference,
                places: [].into(),
                platforms: [].into(),
                pull_secrets: [].into(),
                secret_problem: None,
                planned_at: self.now,
            },
        );
        let mut object = CachedImage::new(name, spec);
        object.metadata.uid = Some(uid.to_string());
        object.metadata.generation = Some(1);
        if let Some(place) = self.images.iter().position(|image| image.metadata.name.as_deref() == Some(name))
        {
            let before = self.images.remove(place);
            object.metadata.generation = before.metadata.generation.map(|generation| generation + 1);
            object.status.clone_from(&before.status);
        }
        self.images.push(Arc::new(object));
    }

    /// Adds a node, or changes it.
    pub(super) fn node(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        let known = self.nodes.get(name).map(|(node, _)| Node::clone(node));
        let mut node = known.unwrap_or_else(|| Node {
            name: name.into(),
            uid: format!("uid-{name}").into(),
            created: self.now,
            labels: [].into(),
            taints: [].into(),
            unschedulable: false,
            ready: true,
            disk_pressure: false,
            os: "linux".into(),
            architecture: "amd64".into(),
            runtime: "containerd://2.2.0".into(),
            images: Arc::default(),
        });
        change(&mut node);
        self.nodes.insert(name.to_owned(), (Arc::new(node), self.now));
    }

    /// The node lists these images, and maybe others.
    pub(super) fn lists(&mut self, name: &str, images: &[&str]) {
        let hashes = images.iter().map(|image| ImageList::hash(&reference(image))).collect();
        self.node(name, |node| node.images = Arc::new(ImageList::new(hashes, false)));
    }

    /// Plans and acts once. `false`: there was nothing to do.
    pub(super) fn round(&mut self) -> bool {
        let nodes: Vec<_> = self.nodes.values().cloned().collect();
        let pods: Vec<_> = self.pods.values().cloned().collect();
        let plan = self.warming.round(&Snapshot {
            now: self.now,
            images: &self.images,
            policies: &self.policies,
            coming_gates: &self.coming_gates,
            nodes: &nodes,
            pods: &pods,
            routed: &self.routed,
            troubles: &self.troubles,
        });
        self.look_again = plan.look_again;
        let busy = !plan.actions.is_empty();
        plan.actions.into_iter().for_each(|action| self.act(action));
        busy
    }

    pub(super) fn act(&mut self, action: Action) {
        let is_of_pod = matches!(action, Action::Create(_) | Action::Delete { .. });
        if let Some(queue) = self.queue.as_mut().filter(|_| is_of_pod) {
            queue.push(action);
            return;
        }
        match action {
            Action::Create(Creation { name, order }) => {
                let pod = pull_pod(&order);
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap();
                let pod = observed(&pod, self.now);
                assert_eq!(pod.name, name);
                self.created.push((self.now, node, pod.record.clone()));
                // The name of a Pod that is there is an answer, too.
                self.pods.entry(Arc::clone(&name)).or_insert_with(|| Arc::new(pod));
                self.warming.created(&name, self.now);
            }
            Action::Route { image } => {
                self.routes += 1;
                if let Some(routed) = self.routed.get_mut(&image) {
                    routed.planned_at = self.now;
                }
            }
            Action::Delete { pod } => {
                assert!(self.pods.remove(&pod).is_some(), "{pod} is deleted twice");
                self.warming.deleted(&pod, self.now);
            }
            Action::Store { image, draft } => self.store(&image, *draft),
            Action::Report { name, status, .. } => self.report(&name, *status),
            Action::Release { node, why, .. } => {
                self.released.push((node.to_string(), why));
                self.node(&node, |node| node.taints = [].into());
            }
            Action::Tell(event) => self.events.push(event),
        }
    }

    fn report(&mut self, name: &str, status: CachedImageStatus) {
        let image =
            self.images.iter_mut().find(|image| image.metadata.name.as_deref() == Some(name)).unwrap();
        let mut object = CachedImage::clone(image);
        object.status = Some(status);
        *image = Arc::new(object);
    }

    fn store(&mut self, image: &Arc<str>, draft: super::memory::Draft) {
        if self.api_is_down {
            return self.warming.not_written(image, draft.shard, super::memory::Found::Unknown, self.now);
        }
        self.writes += 1;
        let stored =
            self.ledgers.get(&draft.name).and_then(|ledger| ledger.metadata.resource_version.clone());
        assert_eq!(stored, draft.version, "{}", draft.name);
        let version = draft.content.map(|(spec, status)| {
            assert!(spec.nodes.len() <= fairlead_api::fairlead::MAX_WARMED_NODES);
            let mut ledger = WarmLedger::new(&draft.name, spec);
            ledger.status = Some(status);
            ledger.metadata.resource_version = Some(self.writes.to_string());
            let owner = OwnerReference { uid: image.to_string(), ..OwnerReference::default() };
            ledger.metadata.owner_references = Some(vec![owner]);
            self.ledgers.insert(draft.name.clone(), Arc::new(ledger));
            self.writes.to_string()
        });
        if version.is_none() {
            self.ledgers.remove(&draft.name);
        }
        self.warming.written(image, draft.shard, draft.ticket, version);
    }

    /// Lets kubelets work and rounds happen, second by second, for so long.
    pub(super) fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.step(Duration::from_secs(1));
        }
    }

    pub(super) fn step(&mut self, span: Duration) {
        self.now = after(self.now, span);
        self.kubelets();
        while self.round() {}
    }

    pub(super) fn kubelets(&mut self) {
        let nodes: HashMap<_, _> = self.nodes.values().map(|(node, _)| (&node.uid, node)).collect();
        for pod in self.pods.values_mut().filter(|pod| pod.phase == Phase::Pending) {
            let Some(node) = nodes.get(&pod.record.node) else { continue };
            let fate = self.fates.get(&*node.name).cloned().unwrap_or(Fate::Pulled);
            if !matches!(fate, Fate::Hangs) && node.ready && !pod.is_acknowledged() {
                let creating = |one: &mut PullContainer| one.waiting = Some("ContainerCreating".into());
                end(pod, Phase::Pending, creating);
            }
            let time = self.failure_time.filter(|_| matches!(fate, Fate::Waits(..)));
            if after(pod.created, time.unwrap_or(self.pull_time)) > self.now {
                continue;
            }
            match fate {
                Fate::Pulled => end(pod, Phase::Succeeded, |container| {
                    container.image_id = Some(format!("r.io/web@sha256:{}", "a".repeat(64)).into());
                    container.terminated = Some("Completed".into());
                }),
                Fate::Hangs => {}
                Fate::Waits(reason, message) => waits(pod, reason, message),
            }
        }
    }

    /// Sends what waited, and what comes now is not kept waiting.
    pub(super) fn send(&mut self) -> usize {
        let queue = self.queue.take().unwrap_or_default();
        let count = queue.len();
        for action in queue {
            self.act(action);
        }
        count
    }

    /// The process dies, and another one takes over with what is stored and what the cluster shows.
    pub(super) fn restart(&mut self) {
        self.warming = Warming::new(self.settings.clone(), self.ledgers.values().cloned());
    }

    pub(super) fn status(&self, name: &str) -> CachedImageStatus {
        let image = self.images.iter().find(|image| image.metadata.name.as_deref() == Some(name)).unwrap();
        image.status.clone().unwrap_or_default()
    }

    pub(super) fn ready(&self, name: &str) -> String {
        self.status(name).ready.unwrap_or_default()
    }

    /// Reason of the condition `Ready`.
    pub(super) fn reason(&self, name: &str) -> String {
        self.condition(name, "Ready").0
    }

    /// Reason and message.
    pub(super) fn condition(&self, name: &str, type_: &str) -> (String, String) {
        let status = self.status(name);
        let condition = fairlead_api::conditions::find(&status.conditions, type_).unwrap();
        (condition.reason.clone(), condition.message.clone())
    }

    /// Nodes on which Pods were created, in order.
    pub(super) fn pulled(&self) -> Vec<&str> {
        self.created.iter().map(|(_, node, _)| node.as_str()).collect()
    }

    /// The only pull Pod on a node.
    pub(super) fn pod_on(&self, node: &str) -> Arc<PullPod> {
        let uid = format!("uid-{node}");
        let pods: Vec<_> = self.pods.values().filter(|pod| *pod.record.node == *uid).collect();
        assert_eq!(pods.len(), 1, "{pods:?}");
        Arc::clone(pods[0])
    }

    pub(super) fn change_pod(&mut self, node: &str, change: impl FnOnce(&mut PullPod)) {
        let mut pod = PullPod::clone(&self.pod_on(node));
        change(&mut pod);
        self.pods.insert(Arc::clone(&pod.name), Arc::new(pod));
        while self.round() {}
    }
}

/// A Pod as it is seen after it was created.
fn observed(pod: &k8s_openapi::api::core::v1::Pod, now: Timestamp) -> PullPod {
    let (meta, spec) = (&pod.metadata, pod.spec.as_ref().unwrap());
    let name = meta.name.clone().unwrap();
    let owners: Vec<Arc<str>> =
        meta.owner_references.iter().flatten().map(|owner| owner.uid.as_str().into()).collect();
    let record = &meta.annotations.as_ref().unwrap()[PULLS];
    PullPod {
        record: Arc::new(Record::read(record, &name, &owners).unwrap()),
        name: name.into(),
        created: now,
        phase: Phase::Pending,
        reason: None,
        volumes: spec.volumes.iter().flatten().count(),
        containers: spec
            .containers
            .iter()
            .map(|container| PullContainer {
                name: container.name.as_str().into(),
                ..PullContainer::default()
            })
            .collect(),
    }
}

fn end(pod: &mut Arc<PullPod>, phase: Phase, mut change: impl FnMut(&mut PullContainer)) {
    let pod = Arc::make_mut(pod);
    pod.phase = phase;
    pod.containers.iter_mut().for_each(&mut change);
}

fn waits(pod: &mut Arc<PullPod>, reason: &str, message: &str) {
    let problem = PullFailure::classify(reason, message).map(|failure| (failure, message.into()));
    let container = PullContainer { waiting: Some(reason.into()), problem, ..pod.containers[0].clone() };
    if pod.containers[0] != container {
        Arc::make_mut(pod).containers = [container].into();
    }
}

pub(super) fn taint(key: &str, value: &str, effect: &str) -> Taint {
    Taint { key: key.into(), value: value.into(), effect: effect.into() }
}
