//! Where the events of a watch go.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Resource;

use super::pod::LeanPod;
use super::{Tolerant, Unreadable};
use crate::cluster::state::{Key, Malformed, PodListing, Pods, Snapshot, Store};

/// How many objects are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) objects: usize,
    pub(crate) malformed: usize,
    pub(crate) images: Option<usize>,
}

/// Takes the events of one kind.
pub(crate) trait Sink<K>: Send + Sync + 'static {
    /// A list begins; what it brings replaces everything once it is complete.
    fn begin(&mut self);
    fn listed(&mut self, object: Tolerant<K>);
    fn finish(&mut self);
    fn applied(&mut self, object: Tolerant<K>);
    fn deleted(&mut self, object: Tolerant<K>);
    /// Makes what was taken in visible to readers.
    fn publish(&mut self) -> Counts;
}

/// The objects of one kind that cannot be read. Each is logged once for every version in which it is stored.
#[derive(Debug)]
pub(crate) struct Faults {
    kind: &'static str,
    current: BTreeMap<Key, Arc<Malformed>>,
    fresh: Option<BTreeMap<Key, Arc<Malformed>>>,
}

impl Faults {
    pub(crate) fn new(kind: &'static str) -> Self {
        Self { kind, current: BTreeMap::new(), fresh: None }
    }

    pub(crate) fn begin(&mut self) {
        self.fresh = Some(BTreeMap::new());
    }

    pub(crate) fn note(&mut self, unreadable: Unreadable) {
        let key = Key::of(&unreadable.metadata);
        let malformed = Malformed {
            uid: unreadable.metadata.uid.unwrap_or_default(),
            generation: unreadable.metadata.generation,
            resource_version: unreadable.metadata.resource_version.unwrap_or_default(),
            error: unreadable.error,
            conditions: unreadable.conditions,
            finalizers: unreadable.metadata.finalizers.unwrap_or_default(),
            deleting: unreadable.metadata.deletion_timestamp.is_some(),
        };
        // A status that is written about it makes another version, and no news.
        let same = |known: &Arc<Malformed>| known.uid == malformed.uid && known.error == malformed.error;
        if !self.current.get(&key).is_some_and(same) {
            tracing::warn!(
                kind = self.kind, object = %key, resource_version = malformed.resource_version, error = malformed.error,
                "stored object cannot be read and is ignored; correct or delete it"
            );
        }
        self.fresh.as_mut().unwrap_or(&mut self.current).insert(key, Arc::new(malformed));
    }

    pub(crate) fn finish(&mut self) {
        if let Some(fresh) = self.fresh.take() {
            self.current = fresh;
        }
    }

    /// The object can be read again, or is gone.
    pub(crate) fn mended(&mut self, key: &Key) {
        self.current.remove(key);
    }

    pub(crate) fn len(&self) -> usize {
        self.current.len()
    }
}

/// Custom resources, kept as they are.
#[derive(Debug)]
pub(super) struct ObjectSink<K> {
    store: Store<K>,
    objects: BTreeMap<Key, Arc<K>>,
    fresh: Option<BTreeMap<Key, Arc<K>>>,
    faults: Faults,
}

impl<K> ObjectSink<K> {
    pub(super) fn new(kind: &'static str, store: Store<K>) -> Self {
        Self { store, objects: BTreeMap::new(), fresh: None, faults: Faults::new(kind) }
    }
}

impl<K: Resource + Send + Sync + 'static> Sink<K> for ObjectSink<K> {
    fn begin(&mut self) {
        self.fresh = Some(BTreeMap::new());
        self.faults.begin();
    }

    fn listed(&mut self, object: Tolerant<K>) {
        match object.0 {
            Ok(object) => {
                self.fresh.get_or_insert_default().insert(Key::of(object.meta()), Arc::new(object));
            }
            Err(unreadable) => self.faults.note(unreadable),
        }
    }

    fn finish(&mut self) {
        if let Some(fresh) = self.fresh.take() {
            self.objects = fresh;
        }
        self.faults.finish();
    }

    fn applied(&mut self, object: Tolerant<K>) {
        let key = Key::of(object.meta());
        match object.0 {
            Ok(object) => {
                self.faults.mended(&key);
                self.objects.insert(key, Arc::new(object));
            }
            Err(unreadable) => {
                self.objects.remove(&key);
                self.faults.note(unreadable);
            }
        }
    }

    fn deleted(&mut self, object: Tolerant<K>) {
        let key = Key::of(object.meta());
        self.objects.remove(&key);
        self.faults.mended(&key);
    }

    fn publish(&mut self) -> Counts {
        let counts = Counts { objects: self.objects.len(), malformed: self.faults.len(), images: None };
        self.store
            .replace(Snapshot { objects: self.objects.clone(), malformed: self.faults.current.clone() });
        counts
    }
}

/// Pods, trimmed and indexed. They become visible one by one, and a list as a whole.
#[derive(Debug)]
pub(super) struct PodSink {
    pods: Pods,
    listing: PodListing,
    faults: Faults,
}

impl PodSink {
    pub(super) fn new(kind: &'static str, pods: Pods) -> Self {
        Self { listing: PodListing::new(pods.clone()), pods, faults: Faults::new(kind) }
    }
}

impl Sink<LeanPod> for PodSink {
    fn begin(&mut self) {
        self.listing.begin();
        self.faults.begin();
    }

    fn listed(&mut self, object: Tolerant<LeanPod>) {
        match object.0 {
            Ok(pod) => self.listing.listed(&pod),
            Err(unreadable) => self.faults.note(unreadable),
        }
    }

    fn finish(&mut self) {
        self.listing.finish();
        self.faults.finish();
    }

    fn applied(&mut self, object: Tolerant<LeanPod>) {
        match object.0 {
            Ok(pod) => {
                self.faults.mended(&Key::of(&pod.metadata));
                self.listing.applied(&pod);
            }
            Err(unreadable) => {
                self.listing.deleted(&unreadable.metadata);
                self.faults.note(unreadable);
            }
        }
    }

    fn deleted(&mut self, object: Tolerant<LeanPod>) {
        self.listing.deleted(object.meta());
        self.faults.mended(&Key::of(object.meta()));
    }

    fn publish(&mut self) -> Counts {
        Counts {
            objects: self.pods.len(),
            malformed: self.faults.len(),
            images: Some(self.pods.image_count()),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn object(name: &str, version: &str, value: &serde_json::Value) -> Tolerant<ConfigMap> {
        let metadata = json!({"name": name, "namespace": "shop", "resourceVersion": version});
        serde_json::from_str(&json!({"metadata": metadata, "data": {"key": value}}).to_string())
            .expect("an object")
    }

    fn names<T>(map: &BTreeMap<Key, T>) -> Vec<String> {
        map.keys().map(Key::to_string).collect()
    }

    #[test]
    fn an_object_that_breaks_is_taken_out_and_comes_back_when_it_is_mended() {
        let store = Store::<ConfigMap>::default();
        let mut sink = ObjectSink::new("ConfigMap", store.clone());
        sink.begin();
        sink.listed(object("a", "1", &json!("x")));
        sink.listed(object("b", "1", &json!(7)));
        sink.finish();
        assert_eq!(sink.publish(), Counts { objects: 1, malformed: 1, images: None });
        let before = store.snapshot();
        assert_eq!(
            (names(&before.objects), names(&before.malformed)),
            (vec!["shop/a".into()], vec!["shop/b".into()])
        );

        sink.applied(object("a", "2", &json!(7)));
        sink.applied(object("b", "2", &json!("x")));
        sink.publish();
        let after = store.snapshot();
        assert_eq!(
            (names(&after.objects), names(&after.malformed)),
            (vec!["shop/b".into()], vec!["shop/a".into()])
        );
        assert_eq!(names(&before.objects), ["shop/a"], "a snapshot in use does not change");

        sink.deleted(object("a", "3", &json!(7)));
        assert_eq!(sink.publish(), Counts { objects: 1, malformed: 0, images: None });
    }

    #[test]
    fn a_list_that_breaks_off_leaves_everything_as_it_was() {
        let store = Store::<ConfigMap>::default();
        let mut sink = ObjectSink::new("ConfigMap", store.clone());
        sink.begin();
        sink.listed(object("a", "1", &json!("x")));
        sink.finish();
        sink.publish();
        sink.begin();
        sink.publish();
        assert_eq!(names(&store.snapshot().objects), ["shop/a"]);
        sink.begin();
        sink.listed(object("b", "1", &json!("x")));
        sink.finish();
        sink.publish();
        assert_eq!(names(&store.snapshot().objects), ["shop/b"]);
    }
}
