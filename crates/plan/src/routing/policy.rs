//! One custom resource, compiled: everything about it that routing uses, checked once.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use fairlead_api::kuik::MirrorAccess;
use fairlead_domain::duration::Duration;
use fairlead_domain::reference::{Host, HostPattern, Location, PlaceKey, Reference};
use fairlead_domain::selector::{ImageFilter, PodMatcher};
use thiserror::Error;

use super::alternatives::SecretUse;
use super::identity::{PolicyId, SecretName};
use crate::usage::Selection;

/// One compiled custom resource.
#[derive(Debug)]
pub struct Policy {
    pub(super) id: Arc<PolicyId>,
    pub(super) priority: i64,
    pub(super) pods: PodMatcher,
    pub(super) offer: Offer,
    /// Positions of its mirrors or upstreams in order of trial: by priority, then as declared.
    pub(super) order: Vec<usize>,
    /// Which namespaces are offered its copies.
    pub(super) access: MirrorAccess,
    pub(super) problems: Vec<PolicyProblem>,
}

/// Where a policy's alternatives come from. Entries that do not work are left out; the others keep their place numbers.
#[derive(Debug)]
pub(super) enum Offer {
    Mirrors {
        images: ImageFilter,
        mirrors: Vec<Mirror>,
        /// How long unused copies are kept by the object's own setting; `None`: for ever.
        cleanup: Option<Duration>,
    },
    Upstreams(Vec<Upstream>),
}

#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) entry: usize,
    pub(super) place: Location,
    pub(super) priority: u64,
    /// What copies are written and deleted with.
    pub(super) push_secret: Option<SecretName>,
    /// What Pods pull with, where it is another Secret.
    pub(super) pull_secret: Option<SecretName>,
    /// The same for this mirror, which has the last word.
    pub(super) cleanup: Option<Duration>,
}

impl Mirror {
    /// The Secret that Pods receive, and that availability is checked with.
    pub(super) fn secret_for_pods(&self) -> Option<&SecretName> {
        self.pull_secret.as_ref().or(self.push_secret.as_ref())
    }
}

/// One mirror that a policy keeps copies in.
#[derive(Debug, Clone)]
pub struct MirrorTarget<'p> {
    /// Its position in the object's list.
    pub entry: usize,
    pub place: &'p Location,
    /// What copies are written and deleted with.
    pub push_secret: Option<&'p SecretName>,
    /// How long a copy that no Pod uses is kept. `None`: for ever.
    pub cleanup: Option<Duration>,
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

    /// The registries that its entries name.
    pub fn registries(&self) -> impl Iterator<Item = Host> {
        let named: BTreeSet<Host> = match &self.offer {
            Offer::Mirrors { mirrors, .. } => mirrors.iter().map(|one| one.place.host()).collect(),
            Offer::Upstreams(upstreams) => upstreams.iter().map(|one| one.place.host()).collect(),
        };
        named.into_iter()
    }

    /// Where a replicated set says that images are.
    pub(super) fn upstream_places(&self) -> impl Iterator<Item = PlaceKey<'static>> {
        let upstreams = match &self.offer {
            Offer::Mirrors { .. } => &[][..],
            Offer::Upstreams(upstreams) => upstreams,
        };
        upstreams.iter().map(|one| one.place.key().into_owned())
    }

    /// Leaves out the entries of a namespaced policy that name other registries than those allowed. Cluster-scoped
    /// policies may name any.
    #[must_use]
    pub fn restricted(mut self, allowed: &[HostPattern]) -> Self {
        if self.id.namespace.is_none() {
            return self;
        }
        let (kind, problems) = (self.id.kind, &mut self.problems);
        let mut may_name = |entry: usize, place: &Location| {
            let host = place.host();
            let is_allowed = allowed.iter().any(|pattern| pattern.matches(&host));
            if !is_allowed {
                let patterns: Vec<String> = allowed.iter().map(ToString::to_string).collect();
                problems.push(PolicyProblem {
                    field: format!("spec.{}.registry", kind.entry(entry)),
                    message: format!(
                        "{host} is not a registry that policies of namespaces may name: use one that \
                         routing.namespacedRegistries allows ({}), or have an administrator add it there",
                        if patterns.is_empty() { "none at present".to_owned() } else { patterns.join(", ") }
                    ),
                });
            }
            is_allowed
        };
        match &mut self.offer {
            Offer::Mirrors { mirrors, .. } => mirrors.retain(|mirror| may_name(mirror.entry, &mirror.place)),
            Offer::Upstreams(upstreams) => upstreams.retain(|one| may_name(one.entry, &one.place)),
        }
        self
    }

    /// The Secrets that its entries name, each once.
    pub fn secrets(&self) -> impl Iterator<Item = &SecretName> {
        let named: BTreeSet<&SecretName> = match &self.offer {
            Offer::Mirrors { mirrors, .. } => {
                mirrors.iter().flat_map(|one| [&one.push_secret, &one.pull_secret]).flatten().collect()
            }
            Offer::Upstreams(upstreams) => upstreams.iter().filter_map(|one| one.secret.as_ref()).collect(),
        };
        named.into_iter()
    }

    /// The same, each with this policy as the one that wants it used.
    pub fn secret_uses(&self) -> impl Iterator<Item = SecretUse> {
        self.secrets().map(|secret| SecretUse { secret: secret.clone(), by: Arc::clone(&self.id) })
    }

    /// The mirrors that images are copied to, in the order of the object. Replicated sets have none.
    pub fn targets(&self) -> Vec<MirrorTarget<'_>> {
        let targets = self.mirrors().iter().map(|mirror| MirrorTarget {
            entry: mirror.entry,
            place: &mirror.place,
            push_secret: mirror.push_secret.as_ref(),
            cleanup: mirror.cleanup.clone(),
        });
        targets.collect()
    }

    fn mirrors(&self) -> &[Mirror] {
        match &self.offer {
            Offer::Mirrors { mirrors, .. } => mirrors,
            Offer::Upstreams(_) => &[],
        }
    }

    /// How long unused copies are kept where a mirror does not say otherwise. `None`: for ever.
    pub fn cleanup(&self) -> Option<&Duration> {
        match &self.offer {
            Offer::Mirrors { cleanup, .. } => cleanup.as_ref(),
            Offer::Upstreams(_) => None,
        }
    }

    /// The Secret to write and delete a copy with: that of the mirror it lies in, the innermost where mirrors lie in
    /// one another.
    pub fn push_secret(&self, destination: &Reference) -> Option<&SecretName> {
        self.mirror_of(destination)?.push_secret.as_ref()
    }

    /// The Secret that Pods pull a copy with.
    pub fn pull_secret(&self, destination: &Reference) -> Option<&SecretName> {
        self.mirror_of(destination)?.secret_for_pods()
    }

    fn mirror_of(&self, destination: &Reference) -> Option<&Mirror> {
        let holding = self.mirrors().iter().filter(|mirror| mirror.place.contains(destination));
        // Of equal ones the last would win, and people expect the first.
        holding.rev().max_by_key(|mirror| mirror.place.path().len())
    }

    /// Entries whose `credentialSecret` is copied to the namespaces of Pods, because they name no `pullSecret`. Objects
    /// of a namespace copy nothing.
    pub fn copied_push_secrets(&self) -> impl Iterator<Item = (usize, &SecretName)> {
        let cluster_scoped = self.id.is_cluster_scoped();
        let mirrors = self.mirrors().iter().filter(move |one| cluster_scoped && one.pull_secret.is_none());
        mirrors.filter_map(|one| Some((one.entry, one.push_secret.as_ref()?)))
    }

    /// Which namespaces are offered its copies.
    pub fn access(&self) -> MirrorAccess {
        self.access
    }

    /// Whether a copy lies in one of its mirrors.
    pub fn keeps(&self, copy: &Reference) -> bool {
        self.mirrors().iter().any(|mirror| mirror.place.contains(copy))
    }

    /// Whose images are copied. Replicated sets copy none.
    pub fn selection(&self) -> Option<Selection<'_>> {
        match &self.offer {
            Offer::Mirrors { images, .. } => {
                let proofs = self.access == MirrorAccess::Proven;
                Some(Selection { namespace: self.id.namespace.as_deref(), pods: &self.pods, images, proofs })
            }
            Offer::Upstreams(_) => None,
        }
    }

    /// Whether its filter lets an image pass, whatever Pod uses it.
    #[cfg(test)]
    pub(crate) fn takes(&self, image: &Reference) -> bool {
        match &self.offer {
            Offer::Mirrors { images, .. } => images.matches(image.forms().iter()),
            Offer::Upstreams(_) => false,
        }
    }

    /// How many mirrors or upstreams it offers.
    pub fn offered(&self) -> usize {
        match &self.offer {
            Offer::Mirrors { mirrors, .. } => mirrors.len(),
            Offer::Upstreams(upstreams) => {
                let offered = self.order.iter().filter_map(|position| upstreams.get(*position));
                offered.filter(|one| !one.discarded).count()
            }
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
