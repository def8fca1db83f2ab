//! The mirror objects of the cluster as they are at one moment.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fairlead_api::kuik::{ClusterImageSetMirror, ImageSetMirror, MirrorSetStatus};
use fairlead_api::names::kuik::{MIRROR_CLEANUP, SECRET_CLEANUP};
use fairlead_plan::ledger::{Owner, OwnerKind};
use fairlead_plan::routing::{Index, Policy, PolicyKind};
use jiff::Timestamp;
use kube::api::ObjectMeta;

use crate::cluster::state::{Key, Malformed, Snapshot};
use crate::cluster::watch::Resources;

/// An object of either kind.
#[derive(Debug, Clone)]
pub(super) enum MirrorResource {
    Cluster(Arc<ClusterImageSetMirror>),
    Namespaced(Arc<ImageSetMirror>),
}

impl MirrorResource {
    pub(super) fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Cluster(object) => &object.metadata,
            Self::Namespaced(object) => &object.metadata,
        }
    }

    pub(super) fn status(&self) -> Option<&MirrorSetStatus> {
        match self {
            Self::Cluster(object) => object.status.as_ref(),
            Self::Namespaced(object) => object.status.as_ref(),
        }
    }

    fn compile(&self) -> Option<Arc<Policy>> {
        let compiled = catch_unwind(AssertUnwindSafe(|| match self {
            Self::Cluster(object) => Policy::cluster_mirror(object),
            Self::Namespaced(object) => Policy::mirror(object),
        }));
        compiled.ok()?.ok().map(Arc::new)
    }
}

/// One mirror object.
#[derive(Debug, Clone)]
pub(super) struct StoredMirror {
    pub(super) owner: Owner,
    pub(super) stored: MirrorResource,
    /// `None`: it is invalid, and nothing is done for it until it is corrected.
    pub(super) policy: Option<Arc<Policy>>,
    pub(super) deleting: Option<Timestamp>,
}

impl StoredMirror {
    fn new(kind: OwnerKind, stored: MirrorResource, compiled: &BTreeMap<&str, &Arc<Policy>>) -> Option<Self> {
        let metadata = stored.metadata();
        let owner = Owner {
            kind,
            namespace: metadata.namespace.as_deref().map(Arc::from),
            name: metadata.name.as_deref()?.into(),
            uid: metadata.uid.as_deref()?.into(),
        };
        let deleting = metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let policy = match deleting {
            // Routing does not use it any more; what it says about clean-up still counts.
            Some(_) => stored.compile(),
            None => compiled.get(&*owner.uid).map(|policy| Arc::clone(policy)),
        };
        Some(Self { owner, stored, policy, deleting })
    }

    pub(super) fn generation(&self) -> Option<i64> {
        self.stored.metadata().generation
    }

    pub(super) fn has_finalizer(&self, name: &str) -> bool {
        self.stored.metadata().finalizers.iter().flatten().any(|one| one == name)
    }
}

/// Every mirror object, by UID. Those that cannot be read are only known to be there.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) readable: BTreeMap<Arc<str>, StoredMirror>,
    unreadable: Vec<String>,
    /// Those that cannot be read, are being deleted, and are held by finalizers of ours.
    pub(super) stuck: Vec<Stuck>,
}

/// What an object that cannot be read may be held by.
pub(super) const OWN_FINALIZERS: [&str; 2] = [MIRROR_CLEANUP, SECRET_CLEANUP];

/// An object that cannot go by itself.
#[derive(Debug, Clone)]
pub(super) struct Stuck {
    pub(super) owner: Owner,
    pub(super) resource_version: String,
    pub(super) finalizers: Vec<String>,
    /// Names the field that cannot be read.
    pub(super) error: String,
}

impl Stuck {
    fn new(kind: OwnerKind, key: &Key, object: &Malformed) -> Option<Self> {
        let is_held = object.finalizers.iter().any(|name| OWN_FINALIZERS.contains(&name.as_str()));
        if !object.deleting || !is_held {
            return None;
        }
        Some(Self {
            owner: Owner {
                kind,
                namespace: (!kind.is_cluster_scoped()).then(|| Arc::clone(&key.namespace)),
                name: Arc::clone(&key.name),
                uid: object.uid.as_str().into(),
            },
            resource_version: object.resource_version.clone(),
            finalizers: object.finalizers.clone(),
            error: object.error.clone(),
        })
    }
}

impl Objects {
    pub(super) fn gather(resources: &Resources, index: &Index) -> Self {
        let mirrors = index.policies().filter(|policy| {
            matches!(policy.id().kind, PolicyKind::ClusterImageSetMirror | PolicyKind::ImageSetMirror)
        });
        let compiled: BTreeMap<&str, &Arc<Policy>> =
            mirrors.map(|policy| (&*policy.id().uid, policy)).collect();
        let mut objects = Self::default();
        let (cluster, own) = (OwnerKind::ClusterImageSetMirror, OwnerKind::ImageSetMirror);
        objects.add(cluster, &resources.cluster_image_set_mirrors.snapshot(), |object| {
            StoredMirror::new(cluster, MirrorResource::Cluster(object), &compiled)
        });
        objects.add(own, &resources.image_set_mirrors.snapshot(), |object| {
            StoredMirror::new(own, MirrorResource::Namespaced(object), &compiled)
        });
        objects
    }

    fn add<K>(
        &mut self,
        kind: OwnerKind,
        snapshot: &Snapshot<K>,
        read: impl Fn(Arc<K>) -> Option<StoredMirror>,
    ) {
        let read = snapshot.objects.values().filter_map(|object| read(Arc::clone(object)));
        self.readable.extend(read.map(|object| (Arc::clone(&object.owner.uid), object)));
        self.unreadable.extend(snapshot.malformed.values().map(|object| object.uid.clone()));
        self.stuck
            .extend(snapshot.malformed.iter().filter_map(|(key, object)| Stuck::new(kind, key, object)));
    }

    /// Whether there is such an object, readable or not.
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.readable.contains_key(uid) || self.unreadable.iter().any(|one| one == uid)
    }
}
