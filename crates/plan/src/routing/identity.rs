//! Names of what takes part in routing, as people and records read them.

use std::fmt;
use std::sync::Arc;

/// The kinds of policies. Their order is the order of their alternatives at equal priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyKind {
    ClusterImageSetMirror,
    ImageSetMirror,
    ClusterReplicatedImageSet,
    ReplicatedImageSet,
    /// Only one that is to serve Pods which do not name it.
    ProxyCache,
}

impl PolicyKind {
    pub const ALL: [Self; 5] = [
        Self::ClusterImageSetMirror,
        Self::ImageSetMirror,
        Self::ClusterReplicatedImageSet,
        Self::ReplicatedImageSet,
        Self::ProxyCache,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterImageSetMirror => "ClusterImageSetMirror",
            Self::ImageSetMirror => "ImageSetMirror",
            Self::ClusterReplicatedImageSet => "ClusterReplicatedImageSet",
            Self::ReplicatedImageSet => "ReplicatedImageSet",
            Self::ProxyCache => "ProxyCache",
        }
    }

    /// The API group of its objects.
    pub const fn group(self) -> &'static str {
        match self {
            Self::ProxyCache => fairlead_api::reef::GROUP,
            _ => fairlead_api::kuik::GROUP,
        }
    }

    pub const fn is_cluster_scoped(self) -> bool {
        matches!(self, Self::ClusterImageSetMirror | Self::ClusterReplicatedImageSet | Self::ProxyCache)
    }

    /// The field in the object's spec that an alternative comes from.
    pub fn entry(self, number: usize) -> String {
        match self {
            Self::ClusterImageSetMirror | Self::ImageSetMirror => format!("mirrors[{number}]"),
            Self::ClusterReplicatedImageSet | Self::ReplicatedImageSet => format!("upstreams[{number}]"),
            Self::ProxyCache => "routing".to_owned(),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which object a policy comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PolicyId {
    pub kind: PolicyKind,
    /// `None` for cluster-scoped kinds.
    pub namespace: Option<Arc<str>>,
    pub name: Arc<str>,
    /// Empty for objects that were read from a file.
    pub uid: Arc<str>,
}

impl PolicyId {
    pub fn is_cluster_scoped(&self) -> bool {
        self.kind.is_cluster_scoped()
    }

    /// What tells objects apart that exist at the same time.
    pub(super) fn key(&self) -> (PolicyKind, Option<&str>, &str) {
        (self.kind, self.namespace.as_deref(), &self.name)
    }
}

/// `ImageSetMirror/my-app/team-mirror`, `ClusterImageSetMirror/global-mirror`.
impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.kind)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

/// A Secret that an entry of a policy names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SecretName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
