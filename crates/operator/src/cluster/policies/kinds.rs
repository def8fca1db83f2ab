//! The kinds that routing follows, each as the same few questions.

use std::sync::Arc;

use fairlead_api::conditions::Condition;
use fairlead_api::kuik::{
    ClusterImageSetMirror, ClusterReplicatedImageSet, ImageSetMirror, MirrorSetStatus, ReplicatedImageSet,
    ReplicatedSetStatus,
};
use fairlead_api::reef::ProxyCache;
use fairlead_plan::policy_status::Stored;
use fairlead_plan::routing::{Policy, PolicyError, PolicyKind, serves};
use kube::Resource;

use crate::cluster::state::{Changes, Snapshot, Store};
use crate::cluster::watch::Resources;

/// An object that routing can compile.
pub(super) trait PolicyObject: Resource<DynamicType = ()> + Send + Sync + 'static {
    const KIND: PolicyKind;

    /// `pull_host` is what Pods know Harbor by.
    fn compile(&self, pull_host: Option<&str>) -> Result<Policy, PolicyError>;

    /// Tells apart what would be compiled differently.
    fn version(&self) -> Option<i64> {
        self.meta().generation
    }

    /// Whether it is a policy at all.
    fn takes_part(&self) -> bool {
        true
    }

    /// What its status says.
    fn stored(&self) -> Stored<'_>;
}

macro_rules! policy_object {
    ($kind:ident, $compile:ident, $stored:ident) => {
        impl PolicyObject for $kind {
            const KIND: PolicyKind = PolicyKind::$kind;

            fn compile(&self, _pull_host: Option<&str>) -> Result<Policy, PolicyError> {
                Policy::$compile(self)
            }

            fn stored(&self) -> Stored<'_> {
                Stored { generation: self.metadata.generation, ..$stored(self.status.as_ref()) }
            }
        }
    };
}

policy_object!(ClusterImageSetMirror, cluster_mirror, stored_of_mirror);
policy_object!(ImageSetMirror, mirror, stored_of_mirror);
policy_object!(ClusterReplicatedImageSet, cluster_replicated, stored_of_set);
policy_object!(ReplicatedImageSet, replicated, stored_of_set);

/// A cache is offered only while it serves, which its status says.
impl PolicyObject for ProxyCache {
    const KIND: PolicyKind = PolicyKind::ProxyCache;

    fn compile(&self, pull_host: Option<&str>) -> Result<Policy, PolicyError> {
        Policy::proxy_cache(self, pull_host)
    }

    fn version(&self) -> Option<i64> {
        self.metadata.generation.map(|generation| generation.saturating_mul(2) + i64::from(serves(self)))
    }

    fn takes_part(&self) -> bool {
        self.spec.routing.is_some()
    }

    fn stored(&self) -> Stored<'_> {
        Stored::default()
    }
}

fn stored_of_mirror(status: Option<&MirrorSetStatus>) -> Stored<'_> {
    status.map_or(Stored::default(), |status| stored(status.observed_generation, None, &status.conditions))
}

fn stored_of_set(status: Option<&ReplicatedSetStatus>) -> Stored<'_> {
    status.map_or(Stored::default(), |status| {
        stored(status.observed_generation, status.upstream_count, &status.conditions)
    })
}

fn stored(observed: Option<i64>, upstream_count: Option<u32>, conditions: &[Condition]) -> Stored<'_> {
    Stored { generation: None, observed_generation: observed, upstream_count, conditions }
}

/// Where the objects are found.
#[derive(Debug, Clone)]
pub(super) struct Sources {
    pub(super) cluster_mirrors: Store<ClusterImageSetMirror>,
    pub(super) mirrors: Store<ImageSetMirror>,
    pub(super) cluster_sets: Store<ClusterReplicatedImageSet>,
    pub(super) sets: Store<ReplicatedImageSet>,
    pub(super) caches: Store<ProxyCache>,
}

impl From<&Resources> for Sources {
    fn from(resources: &Resources) -> Self {
        Self {
            cluster_mirrors: resources.cluster_image_set_mirrors.clone(),
            mirrors: resources.image_set_mirrors.clone(),
            cluster_sets: resources.cluster_replicated_image_sets.clone(),
            sets: resources.replicated_image_sets.clone(),
            caches: resources.proxy_caches.clone(),
        }
    }
}

/// Everything that is known of them at one moment.
pub(super) struct View {
    pub(super) cluster_mirrors: Arc<Snapshot<ClusterImageSetMirror>>,
    pub(super) mirrors: Arc<Snapshot<ImageSetMirror>>,
    pub(super) cluster_sets: Arc<Snapshot<ClusterReplicatedImageSet>>,
    pub(super) sets: Arc<Snapshot<ReplicatedImageSet>>,
    pub(super) caches: Arc<Snapshot<ProxyCache>>,
}

impl Sources {
    pub(super) fn view(&self) -> View {
        View {
            cluster_mirrors: self.cluster_mirrors.snapshot(),
            mirrors: self.mirrors.snapshot(),
            cluster_sets: self.cluster_sets.snapshot(),
            sets: self.sets.snapshot(),
            caches: self.caches.snapshot(),
        }
    }

    pub(super) fn changes(&self) -> Vec<Changes> {
        vec![
            self.cluster_mirrors.changes(),
            self.mirrors.changes(),
            self.cluster_sets.changes(),
            self.sets.changes(),
            self.caches.changes(),
        ]
    }
}
