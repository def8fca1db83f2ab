//! Whose ledger it is, and what the stored objects are called and labelled so that they are found again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use fairlead_api::fairlead::LedgerOwner;
use fairlead_api::names;

use super::ShardId;

/// Bytes of the owner's name in the name of a stored object: with all that is added it stays below the 253 that
/// Kubernetes allows.
const NAME_BYTES: usize = 200;

/// Characters of the UID there: enough to tell an object from a namesake that was deleted before it.
const UID_CHARACTERS: usize = 8;

/// Value of [`names::kubernetes::MANAGED_BY`] on stored objects.
const MANAGER: &str = "fairlead";

/// The kinds that keep ledgers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OwnerKind {
    ClusterImageSetMirror,
    ImageSetMirror,
    ClusterImageSetAvailability,
}

impl OwnerKind {
    pub const ALL: [Self; 3] =
        [Self::ClusterImageSetMirror, Self::ImageSetMirror, Self::ClusterImageSetAvailability];

    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterImageSetMirror => "ClusterImageSetMirror",
            Self::ImageSetMirror => "ImageSetMirror",
            Self::ClusterImageSetAvailability => "ClusterImageSetAvailability",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub const fn is_cluster_scoped(self) -> bool {
        match self {
            Self::ClusterImageSetMirror | Self::ClusterImageSetAvailability => true,
            Self::ImageSetMirror => false,
        }
    }

    const fn short_name(self) -> &'static str {
        match self {
            Self::ClusterImageSetMirror => "cism",
            Self::ImageSetMirror => "ism",
            Self::ClusterImageSetAvailability => "cisa",
        }
    }
}

impl fmt::Display for OwnerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The object that a ledger is kept for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    pub kind: OwnerKind,
    /// `None` for cluster-scoped kinds.
    pub namespace: Option<Arc<str>>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
}

impl Owner {
    /// The owner as a stored ledger names it.
    pub fn named(&self) -> LedgerOwner {
        LedgerOwner {
            kind: self.kind.name().to_owned(),
            name: self.name.as_ref().to_owned(),
            uid: self.uid.as_ref().to_owned(),
        }
    }

    /// Labels of its stored ledgers.
    pub fn labels(&self) -> BTreeMap<String, String> {
        [
            (names::fairlead::OWNER_KIND, self.kind.name()),
            (names::fairlead::OWNER_UID, &self.uid),
            (names::kubernetes::MANAGED_BY, MANAGER),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    /// What all names of its stored ledgers begin with; a number follows.
    fn object_prefix(&self) -> String {
        stored_prefix(self.kind.short_name(), &self.name, &self.uid)
    }

    /// Name of the object that a shard is stored in.
    pub(super) fn object_name(&self, shard: ShardId) -> String {
        format!("{}{shard}", self.object_prefix())
    }

    /// The shard that is stored under a name, if the name is one that [`Self::object_name`] gives.
    pub(super) fn shard_named(&self, name: &str) -> Option<ShardId> {
        let shard = ShardId(name.strip_prefix(&*self.object_prefix())?.parse().ok()?);
        (self.object_name(shard) == name).then_some(shard)
    }
}

/// What the names of stored objects begin with that belong to one object; a number follows.
pub(crate) fn stored_prefix(kind: &str, name: &str, uid: &str) -> String {
    let name = name.get(..name.floor_char_boundary(NAME_BYTES)).unwrap_or_default();
    // A cut may leave a sign at the end that a name cannot go on from.
    let name = name.trim_end_matches(['.', '-']);
    let uid = uid.chars().filter(char::is_ascii_alphanumeric).take(UID_CHARACTERS);
    let uid: String = uid.map(|character| character.to_ascii_lowercase()).collect();
    let parts = [kind, name, &uid].into_iter().filter(|part| !part.is_empty());
    parts.flat_map(|part| [part, "-"]).collect()
}

/// `ImageSetMirror/my-app/team-mirror`, `ClusterImageSetMirror/global-mirror`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.kind)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}
