//! Mirror policies, merged into what a node's runtime should do.
//!
//! Five kinds of objects say the same thing in different words: images of this source can also be had from these
//! mirrors. Here they become one table: for each source its mirrors in order, for digests and for tags, and whether the
//! source itself may be contacted. The table is the same for the same objects in any order. It knows nothing of
//! runtimes and their files: what a file cannot express is for its renderer to say.
//!
//! An object that is wrong affects its own sources only. A source that must never be contacted stays closed even when
//! the set that says so is wrong in another way.

mod alias;
pub mod comparison;
mod files;
mod finding;
mod fingerprint;
mod listed_by;
mod merge;
pub mod migration;
mod order;
mod policy;
pub mod report;
mod resolve;
mod route;
mod route_memory;
mod scope;
pub mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::files::{FileChange, FilePlan, ForeignFile, Found, LaterDirectories};
pub use self::finding::{Finding, Problem};
pub use self::fingerprint::History;
pub use self::listed_by::ListedBy;
pub use self::policy::{MirrorPolicy, PolicyId, PolicyKind, Set};
pub use self::resolve::{Endpoint, EndpointState, Resolution};
pub use self::route::{Attempt, Delivery, End, Object, Place, Refusal, Route, Wanted};
pub use self::route_memory::{Origin, Pull, RouteMemory};
pub use self::scope::{Location, Scope, ScopeError};

/// Everything that decides about the configuration of nodes.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    pub policies: Vec<MirrorPolicy>,
    /// Places that are asked without a verified certificate, or without TLS.
    pub insecure: BTreeSet<Scope>,
    /// Places that are not asked at all.
    pub blocked: BTreeSet<Scope>,
}

/// What nodes should do, and what is to be said about the objects that it was made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeConfig {
    pub entries: BTreeMap<Scope, Entry>,
    pub findings: Vec<Finding>,
}

/// What holds for the images of one scope. The most specific entry that covers an image counts, and no other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts of a source")]
pub struct Entry {
    pub digest: Mirrors,
    pub tag: Mirrors,
    /// A policy forbids to contact the source, for one kind of pull at least. A file cannot close it for one alone.
    pub never: bool,
    /// The list of blocked registries covers the source.
    pub blocked: bool,
    pub insecure: bool,
    /// The objects that name exactly this source.
    pub policies: Arc<BTreeSet<PolicyId>>,
    /// Nothing names this scope: it is another name of the registry of one that is named, and holds the same.
    pub is_alias: bool,
}

/// Mirrors for one kind of pull, in the order in which they are tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirrors {
    /// The source that they were listed for, if that is not the entry's own.
    pub inherited_from: Option<Scope>,
    pub list: Vec<Mirror>,
    pub listed_by: ListedBy,
    /// Why such pulls must not contact the source, if policies forbid it.
    pub closed: Option<Closing>,
}

/// Policies that forbid to contact a source, which may be one around the entry's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closing {
    pub source: Scope,
    pub by: Arc<BTreeSet<PolicyId>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    pub location: Location,
    pub insecure: bool,
}

/// How an image is asked for. A reference with a tag and a digest is pulled by its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PullKind {
    Digest,
    Tag,
}

impl Entry {
    /// Whether the source must not be contacted.
    pub fn is_closed(&self) -> bool {
        self.never || self.blocked
    }

    /// Whether pulls of this kind must not contact the source.
    pub fn is_closed_for(&self, kind: PullKind) -> bool {
        self.blocked || self.mirrors(kind).closed.is_some()
    }

    pub fn mirrors(&self, kind: PullKind) -> &Mirrors {
        match kind {
            PullKind::Digest => &self.digest,
            PullKind::Tag => &self.tag,
        }
    }

    /// Whether a digest and a tag are looked for in the same places, in the same order.
    pub fn is_same_for_both(&self) -> bool {
        self.digest.list == self.tag.list
    }

    pub fn has_mirrors(&self) -> bool {
        !self.digest.list.is_empty() || !self.tag.list.is_empty()
    }
}

impl NodeConfig {
    /// Merges all policies. The result depends on what they say, not on their order.
    pub fn plan(inputs: &Inputs) -> Self {
        merge::merge(inputs)
    }

    /// The scopes that policies and lists name.
    pub fn named(&self) -> impl Iterator<Item = &Scope> {
        self.entries.iter().filter(|(_, entry)| !entry.is_alias).map(|(scope, _)| scope)
    }

    /// The most specific entry that covers a place: `host[:port][/path]`.
    pub fn entry_for(&self, place: &str) -> Option<(&Scope, &Entry)> {
        scope::enclosing(place).find_map(|enclosing| self.entries.get_key_value(enclosing.as_ref()))
    }
}
