//! Takes the events of the watch.

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_plan::node::{ImageList, Node, Taint};
use jiff::Timestamp;

use super::lean::LeanNode;
use super::{KnownNode, Nodes};
use crate::cluster::state::{Interner, Label};
use crate::cluster::watch::Tolerant;
use crate::cluster::watch::sink::{Counts, Faults, Sink};

type ByName = HashMap<Arc<str>, KnownNode>;

#[derive(Debug)]
pub(crate) struct NodeSink {
    nodes: Nodes,
    fresh: Option<ByName>,
    faults: Faults,
    texts: Interner<str>,
    labels: Interner<[Label]>,
}

impl NodeSink {
    pub(crate) fn new(kind: &'static str, nodes: Nodes) -> Self {
        Self {
            nodes,
            fresh: None,
            faults: Faults::new(kind),
            texts: Interner::default(),
            labels: Interner::default(),
        }
    }

    /// What is to be kept, sharing what did not change.
    fn read(&mut self, node: LeanNode) -> KnownNode {
        let condition = |kind: &str| {
            node.status.conditions.iter().any(|found| found.kind == kind && found.status == "True")
        };
        let heartbeats = node.status.conditions.iter().filter_map(|found| found.last_heartbeat_time.as_ref());
        let reported_at = heartbeats.map(|time| time.0).max().unwrap_or(Timestamp::UNIX_EPOCH);
        let (ready, disk_pressure) = (condition("Ready"), condition("DiskPressure"));
        let name = self.texts.get(node.metadata.name.as_deref().unwrap_or_default());
        let before = self.nodes.get(&name);
        let labels: Vec<Label> = node
            .metadata
            .labels
            .iter()
            .flatten()
            .map(|(key, value)| (self.texts.get(key), self.texts.get(value)))
            .collect();
        let taints = node.spec.taints.iter().map(|taint| Taint {
            key: self.texts.get(&taint.key),
            value: self.texts.get(&taint.value),
            effect: self.texts.get(&taint.effect),
        });
        let taints = taints.collect();
        let info = &node.status.node_info;
        let created = node.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let entry = Node {
            created,
            uid: self.texts.get(node.metadata.uid.as_deref().unwrap_or_default()),
            labels: self.labels.get(&labels),
            taints,
            unschedulable: node.spec.unschedulable,
            ready,
            disk_pressure,
            os: self.texts.get(&info.operating_system),
            architecture: self.texts.get(&info.architecture),
            runtime: self.texts.get(&info.container_runtime_version),
            images: shared(before.as_deref(), node.status.images.0),
            name,
        };
        let node = before.filter(|before| **before == entry).unwrap_or_else(|| Arc::new(entry));
        KnownNode { node, reported_at }
    }
}

fn shared(before: Option<&Node>, images: ImageList) -> Arc<ImageList> {
    match before {
        Some(before) if *before.images == images => Arc::clone(&before.images),
        _ => Arc::new(images),
    }
}

impl Sink<LeanNode> for NodeSink {
    fn begin(&mut self) {
        self.fresh = Some(HashMap::new());
        self.faults.begin();
    }

    fn listed(&mut self, object: Tolerant<LeanNode>) {
        match object.0 {
            Ok(node) => {
                let known = self.read(node);
                self.fresh.get_or_insert_default().insert(Arc::clone(&known.node.name), known);
            }
            Err(unreadable) => self.faults.note(unreadable),
        }
    }

    fn finish(&mut self) {
        if let Some(fresh) = self.fresh.take() {
            *self.nodes.known.write() = fresh;
            self.nodes.changed.ring();
        }
        self.faults.finish();
        self.labels.sweep();
        self.texts.sweep();
    }

    fn applied(&mut self, object: Tolerant<LeanNode>) {
        let key = crate::cluster::state::Key::of(kube::Resource::meta(&object));
        match object.0 {
            Ok(node) => {
                self.faults.mended(&key);
                let known = self.read(node);
                let entry = Arc::clone(&known.node);
                let before = self.nodes.known.write().insert(Arc::clone(&entry.name), known);
                if before.is_none_or(|before| !Arc::ptr_eq(&before.node, &entry)) {
                    self.nodes.changed.ring();
                }
            }
            Err(unreadable) => {
                self.faults.note(unreadable);
                self.forget(&key.name);
            }
        }
    }

    fn deleted(&mut self, object: Tolerant<LeanNode>) {
        let key = crate::cluster::state::Key::of(kube::Resource::meta(&object));
        self.faults.mended(&key);
        self.forget(&key.name);
    }

    fn publish(&mut self) -> Counts {
        let objects = self.nodes.known.read().len();
        Counts { objects, malformed: self.faults.len(), images: None }
    }
}

impl NodeSink {
    fn forget(&self, name: &str) {
        if self.nodes.known.write().remove(name).is_some() {
            self.nodes.changed.ring();
        }
    }
}
