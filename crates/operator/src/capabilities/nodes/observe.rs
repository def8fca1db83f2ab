//! Policies, nodes and reports as they are now.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fairlead_api::conditions::Condition;
use fairlead_api::fairlead::NodeMirrorReport;
use fairlead_api::openshift::MirrorPolicyStatus;
use fairlead_plan::node::Node;
use fairlead_plan::node_config::status::{AgentPod, is_selected};
use fairlead_plan::node_config::{MirrorPolicy, PolicyId, PolicyKind};
use jiff::Timestamp;
use kube::Resource;

use crate::cluster::state::{Key, Store};
use crate::cluster::watch::Resources;
use crate::controller::status::{Manner, ObjectId};
use crate::platform::install::AGENT_NAMESPACE;

/// The kinds of policies, and what is reported about them.
pub(super) const KINDS: [&str; 6] = [
    "ImageSourceDigestPolicy",
    "ImageSourceTagPolicy",
    "ImageDigestMirrorSet",
    "ImageTagMirrorSet",
    "ImageContentSourcePolicy",
    "NodeMirrorReport",
];

/// One object.
pub(super) struct Policy {
    pub(super) id: PolicyId,
    pub(super) object: ObjectId,
    pub(super) generation: Option<i64>,
    pub(super) stored: MirrorPolicyStatus,
    /// What it says, or why it cannot be read.
    pub(super) content: Result<MirrorPolicy, String>,
    /// How its status is written.
    pub(super) manner: Manner,
}

/// Whether there is no policy at all.
pub(super) fn has_none(resources: &Resources) -> bool {
    fn is_empty<K>(store: &Store<K>) -> bool {
        let snapshot = store.snapshot();
        snapshot.objects.is_empty() && snapshot.malformed.is_empty()
    }
    is_empty(&resources.image_content_source_policies)
        && is_empty(&resources.image_digest_mirror_sets)
        && is_empty(&resources.image_source_digest_policies)
        && is_empty(&resources.image_source_tag_policies)
        && is_empty(&resources.image_tag_mirror_sets)
}

pub(super) fn policies(resources: &Resources) -> Vec<Policy> {
    let mut all = Vec::new();
    macro_rules! gather {
        ($($store:ident: $kind:ident),+ $(,)?) => {
            $(gather(&resources.$store, PolicyKind::$kind, |object| object.status.as_ref(), &mut all);)+
        };
    }
    gather! {
        image_content_source_policies: ImageContentSourcePolicy,
        image_digest_mirror_sets: ImageDigestMirrorSet,
        image_source_digest_policies: ImageSourceDigestPolicy,
        image_source_tag_policies: ImageSourceTagPolicy,
        image_tag_mirror_sets: ImageTagMirrorSet,
    }
    all
}

fn gather<K: Resource<DynamicType = ()> + Clone + Into<MirrorPolicy>>(
    store: &Store<K>,
    kind: PolicyKind,
    status: impl Fn(&K) -> Option<&MirrorPolicyStatus>,
    all: &mut Vec<Policy>,
) {
    let snapshot = store.snapshot();
    let id = |key: &Key| PolicyId { kind, name: key.name.to_string() };
    all.extend(snapshot.objects.iter().map(|(key, object)| Policy {
        id: id(key),
        object: ObjectId::of(&**object),
        generation: object.meta().generation,
        stored: status(object).cloned().unwrap_or_default(),
        content: Ok(K::clone(object).into()),
        manner: Manner::Apply,
    }));
    all.extend(snapshot.malformed.iter().map(|(key, malformed)| Policy {
        id: id(key),
        object: ObjectId::malformed::<K>(key, malformed),
        generation: malformed.generation,
        stored: MirrorPolicyStatus { conditions: malformed.conditions.clone(), observed_generation: None },
        content: Err(malformed.error.clone()),
        manner: Manner::Replace { version: malformed.resource_version.clone() },
    }));
}

impl Policy {
    /// Conditions that others have set.
    pub(super) fn others(&self, ours: &[Condition]) -> Vec<Condition> {
        let is_ours = |one: &Condition| ours.iter().any(|own| own.type_ == one.type_);
        self.stored.conditions.iter().filter(|one| !is_ours(one)).cloned().collect()
    }
}

/// Nodes that should have an agent, by name.
pub(super) struct AgentNodes {
    pub(super) nodes: BTreeMap<Arc<str>, AgentPod>,
    pub(super) reports: HashMap<Arc<str>, Arc<NodeMirrorReport>>,
}

/// Since when nodes have no Pod of an agent, as far as this term knows.
pub(super) type Missing = HashMap<Arc<str>, Timestamp>;

/// `None`: no agents are installed.
pub(super) fn nodes(resources: &Resources, missing: &mut Missing, now: Timestamp) -> Option<AgentNodes> {
    let agents = resources.agents.snapshot();
    let (_, agents) = agents.objects.iter().find(|(key, _)| &*key.namespace == AGENT_NAMESPACE)?;
    let selected = |node: &Arc<Node>| is_selected(node, &agents.node_selector, &agents.tolerations);
    let selected = resources.nodes.all().into_iter().map(|(node, _)| node).filter(selected);
    let mut pods: HashMap<Arc<str>, AgentPod> = HashMap::new();
    for pod in resources.pods.select(|pod| pod.agent.is_some() && &*pod.key.namespace == AGENT_NAMESPACE) {
        let (Some(node), Some((is_ready, since))) = (&pod.node, pod.agent) else { continue };
        let since = Timestamp::from_second(if since == 0 { pod.created } else { since }).unwrap_or(now);
        let state = if is_ready { AgentPod::Ready } else { AgentPod::NotReady { since } };
        // While one takes over from another, one that is ready is enough.
        let best = pods.entry(node.clone()).or_insert(state);
        *best = best.better(state);
    }
    let nodes: BTreeMap<Arc<str>, AgentPod> = selected
        .map(|node| {
            let pod = pods.get(&node.name).copied().unwrap_or_else(|| AgentPod::NotReady {
                since: *missing.entry(node.name.clone()).or_insert(now),
            });
            (node.name.clone(), pod)
        })
        .collect();
    missing.retain(|node, _| nodes.contains_key(node) && !pods.contains_key(node));
    let reports = resources.node_mirror_reports.snapshot();
    let reports = reports.objects.iter().map(|(key, report)| (key.name.clone(), report.clone())).collect();
    Some(AgentNodes { nodes, reports })
}
