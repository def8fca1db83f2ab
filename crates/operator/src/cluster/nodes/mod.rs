//! The Nodes of the cluster, trimmed, watched only while a capability needs them.
//!
//! Heartbeats change nothing but the time of the latest report, which readers find and are not woken for.

mod lean;
mod sink;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_plan::node::Node;
use jiff::Timestamp;
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::cluster::state::{Bell, Changes};

pub(crate) use self::lean::LeanNode;
pub(crate) use self::sink::NodeSink;

/// A Node and when it last reported.
#[derive(Debug, Clone)]
struct KnownNode {
    node: Arc<Node>,
    /// The beginning of 1970: not known.
    reported_at: Timestamp,
}

/// The Nodes that readers share. Written by their watch alone.
#[derive(Debug, Clone)]
pub struct Nodes {
    known: Arc<RwLock<HashMap<Arc<str>, KnownNode>>>,
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
        Watched::new(&self.needed)
    }

    /// Every Node with the time of its last report, in no order. What it reports is not newer than that.
    pub fn all(&self) -> Vec<(Arc<Node>, Timestamp)> {
        self.known.read().values().map(|known| (Arc::clone(&known.node), known.reported_at)).collect()
    }

    pub fn get(&self, name: &str) -> Option<Arc<Node>> {
        self.known.read().get(name).map(|known| Arc::clone(&known.node))
    }

    /// When the Node last reported its status.
    pub fn reported_at(&self, name: &str) -> Option<Timestamp> {
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

/// A capability's need to have a kind watched.
#[derive(Debug)]
pub struct Watched(Arc<watch::Sender<usize>>);

impl Watched {
    /// One more capability needs it.
    pub(crate) fn new(needed: &Arc<watch::Sender<usize>>) -> Self {
        needed.send_modify(|count| *count += 1);
        Self(Arc::clone(needed))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
