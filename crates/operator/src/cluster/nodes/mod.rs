//! The Nodes of the cluster, trimmed, watched only while a capability needs them.
//!
//! Heartbeats change nothing but the time of the latest report, which readers find and are not woken for.

mod lean;
mod sink;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_domain::reference::Reference;
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::cluster::state::{Bell, Changes, Label};

pub(crate) use self::lean::LeanNode;
pub(crate) use self::sink::NodeSink;

/// What repels Pods from a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: Arc<str>,
    pub value: Arc<str>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: Arc<str>,
}

/// A Node, trimmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEntry {
    pub name: Arc<str>,
    pub uid: Arc<str>,
    pub labels: Arc<[Label]>,
    pub taints: Box<[Taint]>,
    pub unschedulable: bool,
    pub ready: bool,
    pub disk_pressure: bool,
    /// `linux`, for instance.
    pub os: Arc<str>,
    /// `amd64`, for instance.
    pub architecture: Arc<str>,
    /// `containerd://2.2.0`, for instance.
    pub runtime: Arc<str>,
    images: Arc<lean::LeanImages>,
}

impl NodeEntry {
    /// Whether the Node lists the image. If it does not, the image may still be there: see [`Self::lists_all_images`].
    pub fn lists_image(&self, image: &Reference) -> bool {
        self.images.hashes.binary_search(&lean::hash_of(image)).is_ok()
    }

    /// Whether the Node's list of images can be taken as complete. A kubelet that is configured to list fewer than 50
    /// cannot be recognised.
    pub fn lists_all_images(&self) -> bool {
        !self.images.may_be_truncated
    }
}

/// A Node and when it last reported.
#[derive(Debug, Clone)]
struct Known {
    node: Arc<NodeEntry>,
    /// In seconds since 1970. 0: not known.
    reported_at: i64,
}

/// The Nodes that readers share. Written by their watch alone.
#[derive(Debug, Clone)]
pub struct Nodes {
    known: Arc<RwLock<HashMap<Arc<str>, Known>>>,
    changed: Arc<Bell>,
    /// How many capabilities need Nodes to be watched.
    needed: Arc<watch::Sender<usize>>,
}

impl Default for Nodes {
    fn default() -> Self {
        Self { known: Arc::default(), changed: Arc::default(), needed: Arc::new(watch::Sender::new(0)) }
    }
}

impl Nodes {
    /// Has Nodes watched until what is returned is dropped. With the last one, they are forgotten.
    #[must_use]
    pub fn keep_watched(&self) -> Watched {
        self.needed.send_modify(|count| *count += 1);
        Watched(Arc::clone(&self.needed))
    }

    /// Every Node, in no order.
    pub fn all(&self) -> Vec<Arc<NodeEntry>> {
        self.known.read().values().map(|known| Arc::clone(&known.node)).collect()
    }

    pub fn get(&self, name: &str) -> Option<Arc<NodeEntry>> {
        self.known.read().get(name).map(|known| Arc::clone(&known.node))
    }

    /// When the Node last reported its status, in seconds since 1970. What it reports is not newer than that.
    pub fn reported_at(&self, name: &str) -> Option<i64> {
        self.known.read().get(name).map(|known| known.reported_at)
    }

    /// Wakes on every change but heartbeats. To miss none, listen first and look then.
    pub fn changes(&self) -> Changes {
        self.changed.listen()
    }

    pub(crate) fn needed(&self) -> watch::Receiver<usize> {
        self.needed.subscribe()
    }
}

/// A capability's need to have Nodes watched.
#[derive(Debug)]
pub struct Watched(Arc<watch::Sender<usize>>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
