//! A Node as planners see it: what decides where images are pulled, configured and accounted for.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use fairlead_domain::reference::Reference;
use jiff::Timestamp;

/// A key and its value.
pub type Label = (Arc<str>, Arc<str>);

/// What repels Pods from a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: Arc<str>,
    pub value: Arc<str>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: Arc<str>,
}

/// The images that a Node lists, as sorted hashes of their names: a list has hundreds of names, and is compared with
/// every report of the Node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageList {
    hashes: Box<[u64]>,
    /// Some images or names may be missing.
    may_be_truncated: bool,
}

impl ImageList {
    /// From what [`Self::hash`] gives for each name.
    pub fn new(mut hashes: Vec<u64>, may_be_truncated: bool) -> Self {
        hashes.sort_unstable();
        hashes.dedup();
        Self { hashes: hashes.into(), may_be_truncated }
    }

    /// Holds within one process.
    pub fn hash(image: &Reference) -> u64 {
        let mut hasher = DefaultHasher::new();
        image.key().hash(&mut hasher);
        hasher.finish()
    }
}

/// A Node, trimmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: Arc<str>,
    pub uid: Arc<str>,
    pub created: Timestamp,
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
    pub images: Arc<ImageList>,
}

impl Node {
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(found, _)| &**found == key).map(|(_, value)| &**value)
    }

    /// Whether the Node lists the image. If it does not, the image may still be there: see [`Self::lists_all_images`].
    pub fn lists_image(&self, image: &Reference) -> bool {
        self.images.hashes.binary_search(&ImageList::hash(image)).is_ok()
    }

    /// Whether the Node's list of images can be taken as complete. A kubelet that is configured to list fewer than 50
    /// cannot be recognised; one that lists none reports none.
    pub fn lists_all_images(&self) -> bool {
        !self.images.may_be_truncated && !self.images.hashes.is_empty()
    }
}
