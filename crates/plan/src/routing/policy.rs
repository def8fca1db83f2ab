//! One custom resource, compiled: everything about it that routing uses, checked once.

use std::{collections::BTreeSet, fmt, sync::Arc};

use fairlead_domain::{
    reference::Location,
    selector::{ImageFilter, PodMatcher},
};
use thiserror::Error;

use super::{
    alternatives::SecretUse,
    identity::{PolicyId, SecretName},
};

/// One compiled custom resource.
#[derive(Debug)]
pub struct Policy {
    pub(super) id: Arc<PolicyId>,
    pub(super) priority: i64,
    pub(super) pods: PodMatcher,
    pub(super) offer: Offer,
    pub(super) problems: Vec<PolicyProblem>,
}

/// Where a policy's alternatives come from. Entries that do not work are left out; the others keep their place numbers.
#[derive(Debug)]
pub(super) enum Offer {
    Mirrors { images: ImageFilter, mirrors: Vec<Mirror> },
    Upstreams(Vec<Upstream>),
}

#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) entry: usize,
    pub(super) place: Location,
    pub(super) priority: u64,
    pub(super) secret: Option<SecretName>,
}

#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) entry: usize,
    /// What is cut off an image before `images` sees it.
    pub(super) registry: Location,
    /// The registry and the path: what stands for the same images in every upstream.
    pub(super) place: Location,
    pub(super) images: ImageFilter,
    pub(super) priority: u64,
    pub(super) discarded: bool,
    pub(super) secret: Option<SecretName>,
}

impl Policy {
    pub fn id(&self) -> &Arc<PolicyId> {
        &self.id
    }

    /// The Secrets that its entries name, each once.
    pub fn secrets(&self) -> impl Iterator<Item = &SecretName> {
        let named: BTreeSet<&SecretName> = match &self.offer {
            Offer::Mirrors { mirrors, .. } => mirrors.iter().filter_map(|one| one.secret.as_ref()).collect(),
            Offer::Upstreams(upstreams) => upstreams.iter().filter_map(|one| one.secret.as_ref()).collect(),
        };
        named.into_iter()
    }

    /// The same, each with this policy as the one that wants it used.
    pub fn secret_uses(&self) -> impl Iterator<Item = SecretUse> {
        self.secrets().map(|secret| SecretUse { secret: secret.clone(), by: Arc::clone(&self.id) })
    }

    /// How many mirrors or upstreams it offers.
    pub fn offered(&self) -> usize {
        match &self.offer {
            Offer::Mirrors { mirrors, .. } => mirrors.len(),
            Offer::Upstreams(upstreams) => upstreams.iter().filter(|one| !one.discarded).count(),
        }
    }

    /// Entries that were left out, although the policy as a whole works.
    pub fn problems(&self) -> &[PolicyProblem] {
        &self.problems
    }
}

/// One entry of a policy that does not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyProblem {
    /// Path of the field, such as `spec.mirrors[1].registry`.
    pub field: String,
    /// What is wrong with it and what to write instead.
    pub message: String,
}

impl fmt::Display for PolicyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Why a custom resource as a whole cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {message}")]
pub struct PolicyError {
    /// Path of the field, such as `spec.filter.include[1].image`.
    pub field: String,
    /// What is wrong with it and what to write instead.
    pub message: String,
    pub(super) filter: bool,
}

impl PolicyError {
    /// Whether a pattern or selector does not compile, rather than the object being of the wrong shape.
    pub fn is_filter(&self) -> bool {
        self.filter
    }
}
