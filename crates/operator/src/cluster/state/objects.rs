//! The custom resources of one kind, as a snapshot that is replaced whole.
//!
//! Planners work on one consistent view, so a change makes a new snapshot and never touches one that is being read. An
//! object that cannot be decoded is left out of the objects and kept apart with the reason: it disables itself only.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use fairlead_api::conditions::Condition;

use super::Key;
use super::changes::{Bell, Changes};

/// An object as it is stored, which is not as its kind says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    pub uid: String,
    pub generation: Option<i64>,
    pub resource_version: String,
    /// Names the field that is wrong.
    pub error: String,
    /// What its status says, if that much can be read.
    pub conditions: Vec<Condition>,
    pub finalizers: Vec<String>,
    /// It is being deleted.
    pub deleting: bool,
}

/// Every object of one kind at one moment.
#[derive(Debug)]
pub struct Snapshot<K> {
    pub objects: BTreeMap<Key, Arc<K>>,
    pub malformed: BTreeMap<Key, Arc<Malformed>>,
}

impl<K> Default for Snapshot<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), malformed: BTreeMap::new() }
    }
}

impl<K> Clone for Snapshot<K> {
    fn clone(&self) -> Self {
        Self { objects: self.objects.clone(), malformed: self.malformed.clone() }
    }
}

/// Where the present snapshot of one kind is found. Written by the watch of that kind alone.
#[derive(Debug)]
pub struct Store<K> {
    current: Arc<ArcSwap<Snapshot<K>>>,
    changed: Arc<Bell>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self { current: self.current.clone(), changed: self.changed.clone() }
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self { current: Arc::new(ArcSwap::from_pointee(Snapshot::default())), changed: Arc::default() }
    }
}

impl<K> Store<K> {
    pub fn snapshot(&self) -> Arc<Snapshot<K>> {
        self.current.load_full()
    }

    /// Word of every snapshot that follows. To miss none, listen first and look then.
    pub fn changes(&self) -> Changes {
        self.changed.listen()
    }

    pub(crate) fn replace(&self, snapshot: Snapshot<K>) {
        self.current.store(Arc::new(snapshot));
        self.changed.ring();
    }
}
