//! Rounds: what the lease holder knows, what changed in the cluster, and what follows from it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::drop::{CachedImage, CachedImageSpec, PullPolicy};
use fairlead_api::fairlead::WarmLedger;
use fairlead_api::names::fairlead::WARMING;
use jiff::Timestamp;

use super::actions::{Action, Creation, Plan};
use super::gate;
use super::image::{Image, KnownNode, Stance};
use super::memory::{Found, Memory, ShardId, Ticket, WritePace};
use super::pod_state::PullPod;
use super::snapshot::{Routed, Snapshot, WarmSettings};
use super::status;
use super::targets::Targets;
use super::time::{after, earliest};

/// An action whose effect is not seen this long after it was answered is asked for again.
pub(super) const UNSEEN: Duration = Duration::from_secs(10);
/// Time between two statuses of an image, unless its phase changes: for each node that should hold it, since a status
/// lists them, and at least.
const STATUS_INTERVAL_OF_NODE: Duration = Duration::from_millis(5);
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Pieces of ledgers that are written at once. The others wait for one to end, and are written with what has come
/// meanwhile.
const MOST_STORES: usize = 8;

/// What is known from round to round.
pub struct Warming {
    pub(super) settings: WarmSettings,
    pub(super) images: BTreeMap<Arc<str>, Image>,
    pub(super) nodes: HashMap<Arc<str>, KnownNode>,
    pub(super) pods: HashMap<Arc<str>, SeenPod>,
    /// Pods that were asked for and have not been seen yet.
    pub(super) awaited: HashMap<Arc<str>, Awaited>,
    /// Pods that are to be deleted once their results are stored.
    pub(super) finished: BTreeSet<Arc<str>>,
    /// Pairs of image and node to be looked at when a time comes.
    pub(super) due: BTreeSet<(Timestamp, Arc<str>, Arc<str>)>,
    /// Nodes that Pods are held back from, and when their release was asked for.
    gated: BTreeMap<Arc<str>, Option<Timestamp>>,
    /// What was stored for images that have not been seen yet.
    stored: HashMap<String, Vec<Arc<WarmLedger>>>,
    /// When this lease holder first planned.
    pub(super) began: Option<Timestamp>,
    /// When the latest of all Pods was created of which a kubelet has said something.
    pub(super) acknowledged: Option<Timestamp>,
    pub(super) round: u64,
    /// Counts slots that were given.
    pub(super) turn: u64,
}

/// How an image stands, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures<'a> {
    /// Name of the `CachedImage`.
    pub name: &'a Arc<str>,
    pub image: &'a str,
    pub targeted: usize,
    pub ready: usize,
    /// The most that a node has had in a row.
    pub failures: u32,
}

#[derive(Debug)]
pub(super) struct SeenPod {
    pub(super) pod: Arc<PullPod>,
    /// When it was last seen.
    pub(super) round: u64,
    /// It has to be looked at although it has not changed: what is wanted of it has.
    pub(super) stale: bool,
    /// This lease holder has asked for it.
    pub(super) own: bool,
    pub(super) deletion: Deletion,
}

/// What was done to have a Pod deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deletion {
    Nothing,
    /// It was asked for, and has not been answered.
    Asked,
    Answered(Timestamp),
}

#[derive(Debug)]
pub(super) struct Awaited {
    pub(super) creation: Creation,
    /// None: the request waits, or is under way.
    pub(super) answered: Option<Timestamp>,
    /// How often in a row it was doubtful whether the API server has the Pod.
    pub(super) doubts: u32,
}

impl fmt::Debug for Warming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = (self.images.len(), self.nodes.len(), self.pods.len());
        f.debug_struct("Warming").field("images, nodes, pods", &counts).finish_non_exhaustive()
    }
}

impl Warming {
    /// With what earlier lease holders stored.
    pub fn new(settings: WarmSettings, ledgers: impl IntoIterator<Item = Arc<WarmLedger>>) -> Self {
        let mut stored = HashMap::<String, Vec<Arc<WarmLedger>>>::new();
        for ledger in ledgers {
            stored.entry(ledger.spec.owner.uid.clone()).or_default().push(ledger);
        }
        Self {
            settings,
            images: BTreeMap::new(),
            nodes: HashMap::new(),
            pods: HashMap::new(),
            awaited: HashMap::new(),
            finished: BTreeSet::new(),
            due: BTreeSet::new(),
            gated: BTreeMap::new(),
            stored,
            began: None,
            acknowledged: None,
            round: 0,
            turn: 0,
        }
    }

    /// Takes the cluster in and says what to do.
    pub fn round(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        self.round += 1;
        self.began.get_or_insert(snapshot.now);
        let mut plan = Plan::default();
        let changed = self.observe_nodes(snapshot);
        self.observe_images(snapshot);
        for node in &changed {
            let images: Vec<_> = self.images.keys().cloned().collect();
            for image in images {
                self.look(&image, node, snapshot.now);
            }
        }
        self.observe_pods(snapshot, &mut plan);
        self.pass_time(snapshot.now, &mut plan);
        self.delete_pods(snapshot.now, &mut plan);
        self.schedule(snapshot, &mut plan);
        self.open_gates(snapshot, &mut plan);
        self.store(snapshot.now, &mut plan);
        self.report(snapshot, &mut plan);
        plan.look_again = earliest(plan.look_again, self.due.first().map(|(at, _, _)| *at));
        plan
    }

    /// Nodes that are new or changed.
    fn observe_nodes(&mut self, snapshot: &Snapshot<'_>) -> Vec<Arc<str>> {
        let mut changed = Vec::new();
        for (node, reported_at) in snapshot.nodes {
            if let Some(known) = self.nodes.get_mut(&node.uid).filter(|known| known.node == *node) {
                known.reported_at = *reported_at;
                continue;
            }
            let gated = node.taints.iter().any(|taint| &*taint.key == WARMING);
            let known = KnownNode { node: Arc::clone(node), reported_at: *reported_at, gated };
            self.nodes.insert(Arc::clone(&node.uid), known);
            if gated {
                self.gated.entry(Arc::clone(&node.uid)).or_default();
            } else {
                self.gated.remove(&node.uid);
            }
            changed.push(Arc::clone(&node.uid));
        }
        if self.nodes.len() > snapshot.nodes.len() {
            let present: BTreeSet<&Arc<str>> = snapshot.nodes.iter().map(|(node, _)| &node.uid).collect();
            let gone: Vec<_> = self.nodes.keys().filter(|uid| !present.contains(uid)).cloned().collect();
            for uid in gone {
                let Some(known) = self.nodes.remove(&uid) else { continue };
                self.gated.remove(&uid);
                let pods = self.images.values_mut().filter_map(|image| image.forget(&known.node));
                let pods: Vec<_> = pods.collect();
                for pod in pods {
                    self.settle(&pod.pod);
                }
            }
        }
        changed
    }

    fn observe_images(&mut self, snapshot: &Snapshot<'_>) {
        let policies: HashMap<&str, &Arc<PullPolicy>> = snapshot
            .policies
            .iter()
            .filter_map(|policy| Some((policy.metadata.name.as_deref()?, policy)))
            .collect();
        let mut present = BTreeSet::new();
        for object in snapshot.images {
            let uid = object.metadata.uid.as_deref().unwrap_or_default();
            if object.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let policy =
                object.spec.policy_ref.as_ref().and_then(|policy| policies.get(policy.name.as_str()));
            let uid: Arc<str> =
                self.images.get_key_value(uid).map_or_else(|| uid.into(), |(uid, _)| Arc::clone(uid));
            self.observe_image(&uid, object, policy.map(|policy| Arc::clone(policy)), snapshot);
            present.insert(uid);
        }
        let gone = self.images.keys().filter(|uid| !present.contains(*uid));
        let gone: Vec<_> = gone.cloned().collect();
        for image in gone.iter().filter_map(|uid| self.images.remove(uid)).collect::<Vec<_>>() {
            for pod in image.pods.into_values() {
                self.settle(&pod.pod);
            }
        }
    }

    fn observe_image(
        &mut self,
        uid: &Arc<str>,
        object: &Arc<CachedImage>,
        policy: Option<Arc<PullPolicy>>,
        snapshot: &Snapshot<'_>,
    ) {
        let nodes = &self.nodes;
        let is_new = !self.images.contains_key(uid);
        let image = self.images.entry(Arc::clone(uid)).or_insert_with(|| {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            let ledgers = self.stored.remove(&**uid).unwrap_or_default();
            let mut memory = Memory::load(name, uid, ledgers.iter().map(|ledger| &**ledger), snapshot.now);
            // A list without any node is one that has not arrived.
            if !nodes.is_empty() {
                let gone = memory.iter().map(|(node, _)| node).filter(|node| !nodes.contains_key(*node));
                let gone: Vec<_> = gone.cloned().collect();
                for node in gone {
                    memory.forget(&node);
                }
            }
            let mut image = Image::new(Arc::clone(object), memory, snapshot.now);
            image.inherited = self.began == Some(snapshot.now);
            image
        });
        let routed = snapshot.routed.get(uid);
        let same_policy = match (&image.policy, &policy) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one.spec == other.spec,
            (one, other) => one.is_none() && other.is_none(),
        };
        let same_object = Arc::ptr_eq(&image.object, object) || image.object.spec == object.spec;
        image.touched |= image.object.metadata.generation != object.metadata.generation;
        image.object = Arc::clone(object);
        let same_route = match (&image.routed, routed) {
            (Some(one), Some(other)) => one.is_same(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        if same_object && same_policy && same_route {
            if image.routed.as_ref() != routed {
                let problem = |routed: Option<&Routed>| routed?.secret_problem.clone();
                image.touched |= problem(image.routed.as_ref()) != problem(routed);
                image.routed = routed.cloned();
                image.route_asked = None;
            }
            return;
        }
        let same_source = match (&image.routed, routed) {
            (Some(one), Some(other)) => {
                one.pull_secrets == other.pull_secrets && one.reference == other.reference
            }
            _ => true,
        };
        if !(is_new || same_object && same_policy && same_source) {
            image.note_edit(snapshot.now);
        }
        image.renew(policy, routed.cloned(), snapshot.now);
        for seen in self.pods.values_mut() {
            seen.stale |= seen.pod.record.pulls.iter().any(|pull| pull.uid == *uid);
        }
        let outdated = image.pods.iter().filter(|(_, pod)| !image.accepts(&pod.reference));
        let outdated: Vec<_> = outdated.map(|(node, pod)| (Arc::clone(node), Arc::clone(&pod.pod))).collect();
        for (node, _) in &outdated {
            image.pods.remove(node);
        }
        for (_, pod) in outdated {
            self.settle(&pod);
        }
        let nodes: Vec<_> = self.nodes.keys().cloned().collect();
        for node in nodes {
            self.look(uid, &node, snapshot.now);
        }
    }

    /// Looks at one pair of image and node.
    pub(super) fn look(&mut self, image: &Arc<str>, node: &Arc<str>, now: Timestamp) {
        let (Some(found), Some(known)) = (self.images.get_mut(image), self.nodes.get(node)) else { return };
        if let Some(again) = found.look(known, now) {
            self.due.insert((again, Arc::clone(image), Arc::clone(node)));
        }
        // Where the image does not belong any more, its pull is not waited for.
        let lasting = matches!(found.stance(node), Some(Stance::Skipped(skip)) if skip.is_lasting());
        if lasting && let Some(pod) = found.pods.remove(node) {
            self.settle(&pod.pod);
        }
    }

    /// Looks at what is due.
    fn pass_time(&mut self, now: Timestamp, plan: &mut Plan) {
        while let Some((at, image, node)) = self.due.pop_first() {
            if at > now {
                self.due.insert((at, image, node));
                break;
            }
            self.give_up(&image, &node, now, plan);
            self.look(&image, &node, now);
        }
    }

    fn open_gates(&mut self, snapshot: &Snapshot<'_>, plan: &mut Plan) {
        let now = snapshot.now;
        let policy_of = |spec: &CachedImageSpec| {
            let name = spec.policy_ref.as_ref().map(|policy| policy.name.as_str());
            let named = |policy: &&Arc<PullPolicy>| policy.metadata.name.as_deref() == name;
            snapshot.policies.iter().find(named).filter(|_| name.is_some()).map(|policy| &policy.spec)
        };
        let coming: Vec<_> =
            snapshot.coming_gates.iter().map(|spec| Targets::new(spec, policy_of(spec), &[])).collect();
        // What is no image can never be there.
        let can_come = |image: &&Image| image.routed.as_ref().is_none_or(|routed| routed.reference.is_ok());
        let gating = self.images.values().filter(|image| image.object.spec.gate).filter(can_come);
        let gating: Vec<&Image> = gating.collect();
        for (uid, asked) in &mut self.gated {
            let Some(known) = self.nodes.get(uid) else { continue };
            let may_come =
                |targets: &Targets<'_>| targets.skip(&known.node).is_none_or(|skip| !skip.is_lasting());
            let coming = coming.iter().any(may_come).then_some(None);
            let stances = gating.iter().map(|image| image.stance(uid)).chain(coming);
            match gate::release(stances, known.node.created, self.settings.gate_deadline, now) {
                Err(deadline) => plan.look_again = earliest(plan.look_again, Some(deadline)),
                Ok(_) if asked.is_some_and(|asked| after(asked, UNSEEN) > now) => {
                    plan.look_again = earliest(plan.look_again, asked.map(|asked| after(asked, UNSEEN)));
                }
                Ok(why) => {
                    *asked = Some(now);
                    plan.look_again = earliest(plan.look_again, Some(after(now, UNSEEN)));
                    let (node, uid) = (Arc::clone(&known.node.name), Arc::clone(uid));
                    plan.actions.push(Action::Release { node, uid, why });
                }
            }
        }
    }

    fn store(&mut self, now: Timestamp, plan: &mut Plan) {
        let underway: usize = self.images.values().map(|image| image.memory.in_flight()).sum();
        let mut room = MOST_STORES.saturating_sub(underway);
        let dirty = self.images.values().filter(|image| image.memory.is_dirty());
        let rows = dirty.map(|image| image.memory.node_count()).sum();
        for image in self.images.values_mut() {
            let pace = WritePace { rows, settled: image.is_settled() };
            let drafts = image.memory.drafts(now, room, pace);
            room -= drafts.len();
            plan.actions.extend(drafts.into_iter().map(|draft| {
                let (image, draft) = (Arc::clone(&image.uid), Box::new(draft));
                Action::Store { image, draft }
            }));
            // What is due already waits for room, and the end of every write brings a round.
            let later = image.memory.next_draft(pace).filter(|at| *at > now);
            plan.look_again = earliest(plan.look_again, later);
        }
    }

    fn report(&mut self, snapshot: &Snapshot<'_>, plan: &mut Plan) {
        for image in self.images.values_mut() {
            let trouble = snapshot.troubles.get(&image.uid);
            let why = trouble.map(|trouble| &trouble.what);
            if why != image.held_back.as_ref() {
                image.touched = true;
                image.held_back = why.cloned();
            }
            // Until it is decided what the image is pulled as, no node can be judged, and what the status says stands.
            let undecided = image.routed.is_none() && image.object.status.is_some();
            if !image.touched || undecided {
                continue;
            }
            let summary = status::summary(image, trouble);
            if let Some((at, phase)) = image.reported {
                let nodes = u32::try_from(image.tally.targeted).unwrap_or(u32::MAX);
                let next = after(at, STATUS_INTERVAL.max(STATUS_INTERVAL_OF_NODE.saturating_mul(nodes)));
                if next > snapshot.now && phase == summary.phase {
                    plan.look_again = earliest(plan.look_again, Some(next));
                    continue;
                }
            }
            image.touched = false;
            let status = status::image_status(image, &summary, snapshot.now);
            if image.object.status.as_ref() != Some(&status) {
                image.reported = Some((snapshot.now, summary.phase));
                let (uid, name) = (Arc::clone(&image.uid), Arc::clone(&image.name));
                plan.actions.push(Action::Report { image: uid, name, status: Box::new(status) });
            }
        }
    }

    /// A status could not be written.
    pub fn not_reported(&mut self, image: &str) {
        if let Some(image) = self.images.get_mut(image) {
            image.touched = true;
        }
    }

    /// The repository that an image is of, as its object has it.
    pub fn image_of(&self, image: &str) -> Option<&str> {
        self.images.get(image).map(|image| image.object.spec.image.as_str())
    }

    /// Forgets what was stored in ledgers that were deleted by hand, so that their nodes are warmed again.
    pub fn miss_ledgers(&mut self, is_there: impl Fn(&str) -> bool, now: Timestamp) {
        for image in self.images.values_mut() {
            for node in image.memory.miss(&is_there, now) {
                if let Some(known) = self.nodes.get(&node) {
                    let again = image.look(known, now);
                    self.due.extend(again.map(|again| (again, Arc::clone(&image.uid), node)));
                }
            }
        }
    }

    /// Pods that take slots.
    pub fn active_pulls(&self, now: Timestamp) -> usize {
        self.pods_under_way(self.clock(now)).filter(|(_, _, active)| *active).count()
    }

    /// How every image stands.
    pub fn figures(&self) -> impl Iterator<Item = Figures<'_>> {
        self.images.values().map(|image| Figures {
            name: &image.name,
            image: &image.object.spec.image,
            targeted: image.tally.targeted,
            ready: image.tally.ready.len(),
            failures: image.most_failures(),
        })
    }

    /// A draft was carried out: the object has this version now, or is deleted.
    pub fn written(&mut self, image: &str, shard: ShardId, ticket: Ticket, version: Option<String>) {
        if let Some(image) = self.images.get_mut(image) {
            image.memory.written(shard, ticket, version);
        }
    }

    /// A draft was not carried out.
    pub fn not_written(&mut self, image: &str, shard: ShardId, found: Found, now: Timestamp) {
        if let Some(image) = self.images.get_mut(image) {
            image.memory.not_written(shard, found, now);
        }
    }
}
