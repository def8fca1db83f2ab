//! All Pods of the cluster, trimmed.
//!
//! A list builds a second index beside the present one and replaces it whole, so readers see either the old or the new
//! cluster, never half of it. Entries that did not change are shared by both, so a new list costs little memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use kube::api::ObjectMeta;
use parking_lot::{Mutex, RwLock};

use crate::cluster::watch::pod::LeanPod;

use super::changes::{Bell, Changes};
use super::entry::PodInterner;
use super::{Key, Owners, PodEntry};

/// Pods whose pulls failed and that wait to be looked at, at most. What overflows is seen when it fails again.
const MOST_FAILED: usize = 4096;

#[derive(Debug, Default)]
struct PodIndex {
    pods: HashMap<Key, Arc<PodEntry>>,
    /// How often each image is named.
    images: HashMap<Arc<str>, usize>,
    /// Those that pull images onto nodes.
    pulling: HashMap<Key, Arc<PodEntry>>,
    /// Others that wait for an image which cannot be pulled.
    failing: HashMap<Key, Arc<PodEntry>>,
}

impl PodIndex {
    fn insert(&mut self, entry: &Arc<PodEntry>) {
        let before = self.pods.insert(entry.key.clone(), entry.clone());
        if let Some(before) = before {
            self.forget(&before);
        }
        if entry.pulls.is_some() {
            self.pulling.insert(entry.key.clone(), entry.clone());
        } else if entry.is_failing() {
            self.failing.insert(entry.key.clone(), entry.clone());
        }
        for image in entry.images() {
            *self.images.entry(image.clone()).or_default() += 1;
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(before) = self.pods.remove(key) {
            self.forget(&before);
        }
    }

    fn forget(&mut self, entry: &PodEntry) {
        if entry.pulls.is_some() {
            self.pulling.remove(&entry.key);
        } else if entry.is_failing() {
            self.failing.remove(&entry.key);
        }
        for image in entry.images() {
            if let Some(uses) = self.images.get_mut(image) {
                *uses -= 1;
                if *uses == 0 {
                    self.images.remove(image);
                }
            }
        }
    }
}

/// The index that readers share. Written by the Pod watch alone.
#[derive(Debug, Clone, Default)]
pub struct Pods {
    index: Arc<RwLock<PodIndex>>,
    changed: Arc<Bell>,
    pulling_changed: Arc<Bell>,
    failing_changed: Arc<Bell>,
    /// As each was when its pull failed: a moment later it may have another image.
    failed: Arc<Mutex<VecDeque<Arc<PodEntry>>>>,
    owners: Owners,
}

impl Pods {
    pub fn len(&self) -> usize {
        self.read(|index| index.pods.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many different images the specifications of all Pods name.
    pub fn image_count(&self) -> usize {
        self.read(|index| index.images.len())
    }

    /// Every Pod, in no order.
    pub fn all(&self) -> Vec<Arc<PodEntry>> {
        self.read(|index| index.pods.values().cloned().collect())
    }

    pub fn get(&self, key: &Key) -> Option<Arc<PodEntry>> {
        self.read(|index| index.pods.get(key).cloned())
    }

    /// The Pods that `wanted` chooses, in no order. It is asked about every Pod of the cluster and must be quick.
    pub fn select(&self, wanted: impl Fn(&PodEntry) -> bool) -> Vec<Arc<PodEntry>> {
        self.read(|index| index.pods.values().filter(|entry| wanted(entry)).cloned().collect())
    }

    /// The Pods that pull images onto nodes, in no order.
    pub fn pulling(&self) -> Vec<Arc<PodEntry>> {
        self.read(|index| index.pulling.values().cloned().collect())
    }

    /// The Pods that wait for an image which cannot be pulled, in no order. Those that pull images onto nodes are not
    /// among them.
    pub fn failing(&self) -> Vec<Arc<PodEntry>> {
        self.read(|index| index.failing.values().cloned().collect())
    }

    /// The Pods whose pulls failed since the last call.
    pub fn take_failed(&self) -> VecDeque<Arc<PodEntry>> {
        std::mem::take(&mut *self.failed.lock())
    }

    fn note_failed(&self, pod: &Arc<PodEntry>) {
        let mut failed = self.failed.lock();
        if pod.pulls.is_none() && pod.is_failing() && failed.len() < MOST_FAILED {
            failed.push_back(Arc::clone(pod));
        }
    }

    /// What the coming and going of Pods tells about their controllers.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Word of every change that follows. To miss none, listen first and look then.
    pub fn changes(&self) -> Changes {
        self.changed.listen()
    }

    /// The same for Pods that pull images onto nodes.
    pub fn pulling_changes(&self) -> Changes {
        self.pulling_changed.listen()
    }

    /// The same for Pods that wait for an image which cannot be pulled.
    pub fn failing_changes(&self) -> Changes {
        self.failing_changed.listen()
    }

    fn read<T>(&self, look: impl FnOnce(&PodIndex) -> T) -> T {
        look(&self.index.read())
    }

    fn write(&self, change: impl FnOnce(&mut PodIndex)) {
        change(&mut self.index.write());
        self.changed.ring();
    }
}

/// The writing side of [`Pods`].
#[derive(Debug, Default)]
pub struct PodListing {
    pods: Pods,
    shared: PodInterner,
    /// The index that a list under way builds.
    fresh: Option<PodIndex>,
}

impl PodListing {
    pub fn new(pods: Pods) -> Self {
        Self { pods, ..Self::default() }
    }

    pub fn begin(&mut self) {
        self.fresh = Some(PodIndex::default());
    }

    pub fn listed(&mut self, pod: &LeanPod) {
        let entry = self.shared.entry(pod);
        let known =
            self.pods.read(|index| index.pods.get(&entry.key).filter(|known| ***known == entry).cloned());
        let entry = known.unwrap_or_else(|| Arc::new(entry));
        self.fresh.get_or_insert_default().insert(&entry);
    }

    pub fn finish(&mut self) {
        let Some(fresh) = self.fresh.take() else { return };
        let mut before = fresh;
        self.pods.write(|index| std::mem::swap(index, &mut before));
        self.pods.pulling_changed.ring();
        self.pods.read(|index| index.failing.values().for_each(|pod| self.pods.note_failed(pod)));
        self.pods.failing_changed.ring();
        self.pods.read(|index| {
            for gone in before.pods.values() {
                self.pods.owners.changed(Some(gone), index.pods.get(&gone.key).map(|pod| &**pod));
            }
            for new in index.pods.values().filter(|pod| !before.pods.contains_key(&pod.key)) {
                self.pods.owners.changed(None, Some(new));
            }
        });
        drop(before);
        self.shared.sweep();
    }

    pub fn applied(&mut self, pod: &LeanPod) {
        let entry = Arc::new(self.shared.entry(pod));
        let before = self.pods.get(&entry.key);
        self.pods.write(|index| index.insert(&entry));
        self.pods.note_failed(&entry);
        if entry.pulls.is_some() || before.as_ref().is_some_and(|before| before.pulls.is_some()) {
            self.pods.pulling_changed.ring();
        } else if entry.is_failing() || before.as_ref().is_some_and(|before| before.is_failing()) {
            self.pods.failing_changed.ring();
        }
        self.pods.owners.changed(before.as_deref(), Some(&entry));
    }

    pub fn deleted(&mut self, metadata: &ObjectMeta) {
        let key = self.shared.key(metadata);
        let before = self.pods.get(&key);
        self.pods.write(|index| index.remove(&key));
        if before.as_ref().is_some_and(|before| before.pulls.is_some()) {
            self.pods.pulling_changed.ring();
        } else if before.as_ref().is_some_and(|before| before.is_failing()) {
            self.pods.failing_changed.ring();
        }
        self.pods.owners.changed(before.as_deref(), None);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, image: &str) -> LeanPod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "1"},
            "spec": {"containers": [{"name": "main", "image": image}]},
        }))
        .expect("a Pod")
    }

    fn names(entries: &[Arc<PodEntry>]) -> Vec<&str> {
        entries.iter().map(|entry| &*entry.key.name).collect()
    }

    /// The Pods that name an image, by name.
    fn using(pods: &Pods, image: &str) -> Vec<Arc<PodEntry>> {
        let mut users = pods.select(|entry| entry.images().any(|named| &**named == image));
        users.sort_by(|one, other| one.key.cmp(&other.key));
        users
    }

    #[test]
    fn pods_are_found_by_image_as_they_come_change_and_go() {
        let pods = Pods::default();
        let mut listing = PodListing::new(pods.clone());
        listing.begin();
        listing.listed(&pod("b", "nginx"));
        listing.listed(&pod("a", "nginx"));
        assert!(pods.is_empty(), "a list counts when it is complete");
        listing.finish();
        assert_eq!(names(&using(&pods, "nginx")), ["a", "b"]);
        assert_eq!(pods.image_count(), 1);

        listing.applied(&pod("b", "redis"));
        assert_eq!((names(&using(&pods, "nginx")), names(&using(&pods, "redis"))), (vec!["a"], vec!["b"]));
        listing.deleted(&pod("a", "nginx").metadata);
        assert_eq!((pods.len(), pods.image_count()), (1, 1));
        assert!(using(&pods, "nginx").is_empty());
    }

    #[test]
    fn readers_hear_of_changes_and_find_them() {
        let pods = Pods::default();
        let mut changes = pods.changes();
        let mut listing = PodListing::new(pods.clone());
        listing.begin();
        listing.listed(&pod("a", "nginx"));
        assert_eq!(changes.next().now_or_never(), None, "readers do not see it yet");
        listing.finish();
        listing.applied(&pod("b", "redis"));
        assert_eq!(changes.next().now_or_never(), Some(()));
        assert_eq!(changes.next().now_or_never(), None, "both were told at once");
        assert_eq!(names(&pods.select(|entry| entry.images().any(|image| &**image == "redis"))), ["b"]);
        listing.deleted(&pod("b", "redis").metadata);
        assert_eq!(changes.next().now_or_never(), Some(()));
        assert_eq!(pods.get(&Key { namespace: "shop".into(), name: "b".into() }), None);
    }

    #[test]
    fn a_new_list_replaces_everything_and_shares_what_is_unchanged() {
        let pods = Pods::default();
        let mut listing = PodListing::new(pods.clone());
        listing.begin();
        listing.listed(&pod("stays", "nginx"));
        listing.listed(&pod("goes", "nginx"));
        listing.finish();
        let before = using(&pods, "nginx");

        listing.begin();
        listing.listed(&pod("stays", "nginx"));
        assert_eq!(pods.len(), 2, "the old index serves until the new one is complete");
        // The connection broke, and the list starts again.
        listing.begin();
        listing.listed(&pod("stays", "nginx"));
        listing.listed(&pod("new", "redis"));
        listing.finish();
        assert_eq!(pods.len(), 2);
        let after = using(&pods, "nginx");
        assert_eq!(names(&after), ["stays"]);
        assert!(before.iter().any(|entry| Arc::ptr_eq(entry, &after[0])));
    }
}
