//! The ordered list of places that one image may come from. [`super::builder`] puts it together.

use std::fmt;
use std::sync::Arc;

use fairlead_api::kuik::MirrorAccess;
use fairlead_domain::cause::Cause;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;

use super::identity::{PolicyId, SecretName};
use crate::pinning;

/// Places that are kept for one image; the first in order. Further ones are counted.
pub const MOST_ALTERNATIVES: usize = 64;

/// Origins of one place that are kept, and with them its Secrets; the first in order.
pub(super) const MOST_ORIGINS: usize = 16;

/// Said of an image that is not routed.
pub(super) const UNTOUCHED: &str = "images with the pull policy Never are not routed";

/// Why a reference is in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// It is what the Pod asked for.
    Original,
    /// A mirror keeps a copy of `of` there.
    Mirror { policy: Arc<PolicyId>, entry: usize, of: Reference, access: MirrorAccess },
    /// It is declared to hold the same image.
    Upstream { policy: Arc<PolicyId>, entry: usize },
}

impl Origin {
    pub fn policy(&self) -> Option<&Arc<PolicyId>> {
        match self {
            Self::Original => None,
            Self::Mirror { policy, .. } | Self::Upstream { policy, .. } => Some(policy),
        }
    }

    /// The text for the record on the Pod: `original`, or `<kind>/<namespace>/<name>` of the policy, where the
    /// namespace of cluster-scoped kinds is empty.
    pub fn by(&self) -> String {
        self.policy().map_or_else(
            || "original".to_owned(),
            |policy| {
                format!("{}/{}/{}", policy.kind, policy.namespace.as_deref().unwrap_or_default(), policy.name)
            },
        )
    }
}

/// `original`, or the policy and its entry: `ClusterImageSetMirror/m, mirrors[0]`.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Original => f.write_str("original"),
            Self::Mirror { policy, entry, .. } | Self::Upstream { policy, entry } => {
                write!(f, "{policy}, {}", policy.kind.entry(*entry))
            }
        }
    }
}

impl Origin {
    /// The copy, if it is offered only where access to its source is proven.
    fn guarded<'a>(&'a self, copy: &'a Reference) -> Option<GuardedCopy<'a>> {
        match self {
            Self::Mirror { policy, of, access: MirrorAccess::Proven, .. } => {
                Some(GuardedCopy { policy, source: of, copy })
            }
            _ => None,
        }
    }
}

/// A copy that is offered only to namespaces that have proven access to its source.
#[derive(Debug, Clone, Copy)]
pub struct GuardedCopy<'a> {
    pub policy: &'a Arc<PolicyId>,
    pub source: &'a Reference,
    pub copy: &'a Reference,
}

/// Why a namespace is not offered such a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withheld {
    /// No ledger of the mirror says that it is a copy of this source.
    NotCopied,
    Unproven,
}

impl GuardedCopy<'_> {
    fn told(&self, namespace: &str, why: Withheld) -> String {
        let Self { policy, source, copy } = self;
        match why {
            Withheld::NotCopied => {
                format!(
                    "{copy} is not tried: {policy} asks for proof of access, and has not copied {source} there"
                )
            }
            Withheld::Unproven => {
                format!("{copy} is not tried: namespace {namespace} has not proven access to {source}")
            }
        }
    }
}

/// A Secret, and the policy that wants it used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretUse {
    pub secret: SecretName,
    pub by: Arc<PolicyId>,
}

/// One place to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alternative {
    pub reference: Reference,
    /// What gave it its place in the order.
    pub origin: Origin,
    /// What else leads to the same reference, in order.
    pub also: Vec<Origin>,
    /// The Secrets of all origins, in order, each once.
    pub secrets: Vec<SecretUse>,
}

impl Alternative {
    /// Everything that leads to it, in order.
    fn origins(&self) -> impl Iterator<Item = &Origin> {
        std::iter::once(&self.origin).chain(&self.also)
    }

    /// Whether it is, among others, what the Pod asked for.
    pub fn is_original(&self) -> bool {
        self.origins().any(|origin| *origin == Origin::Original)
    }

    /// On whose account its registry is contacted: an administrator's as soon as one cluster-scoped policy names the
    /// place.
    pub fn cause(&self) -> Cause {
        let mut policies = self.origins().filter_map(Origin::policy);
        if policies.any(|policy| policy.namespace.is_none()) { Cause::Administrator } else { Cause::Tenant }
    }

    pub(super) fn new(reference: Reference, origin: Origin, secret: Option<SecretUse>) -> Self {
        Self { reference, origin, also: Vec::new(), secrets: secret.into_iter().collect() }
    }

    /// Adds another origin of the same reference.
    pub(super) fn merge(&mut self, origin: Origin, secret: Option<SecretUse>) {
        self.also.push(origin);
        if let Some(used) = secret
            && self.secrets.iter().all(|known| known.secret != used.secret)
        {
            self.secrets.push(used);
        }
    }

    /// Whether further origins are left out.
    pub(super) fn is_full(&self) -> bool {
        self.also.len() + 1 >= MOST_ORIGINS
    }
}

/// Everything that one image may be pulled from, in order of trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alternatives {
    pub(super) original: Reference,
    pub(super) list: Vec<Alternative>,
    pub(super) dropped: usize,
    pub(super) discarded_by: Option<Arc<PolicyId>>,
    pub(super) notes: Vec<String>,
    /// Whether the image is routed at all.
    pub(super) routed: bool,
    /// Copies of mirrors that ask for proof of access are in the list.
    pub(super) guarded: bool,
    /// Why the first of them was left out.
    pub(super) unproven: Option<String>,
    /// Copies of other images, which were left out.
    pub(super) withheld: Vec<Reference>,
}

impl Alternatives {
    pub fn original(&self) -> &Reference {
        &self.original
    }

    /// Whether the image is routed at all.
    pub fn is_routed(&self) -> bool {
        self.routed
    }

    /// In order of trial, [`MOST_ALTERNATIVES`] at most.
    pub fn list(&self) -> &[Alternative] {
        &self.list
    }

    /// How many places come after the last that is kept. Exact for up to a thousand combinations of entries and
    /// sources; beyond, the combinations are counted without making them.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Says how much of the list was left out, if something was.
    pub fn cut(&self) -> Option<String> {
        (self.dropped > 0).then(|| {
            let kept = self.list.len();
            format!(
                "only the first {kept} of {} places are tried, {} are left out",
                kept + self.dropped,
                self.dropped
            )
        })
    }

    /// The policy that takes the original out of the list.
    pub fn discarded_by(&self) -> Option<&Arc<PolicyId>> {
        self.discarded_by.as_ref()
    }

    /// What was left out and why, for people.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether what registries say can matter.
    pub fn needs_probe(&self) -> bool {
        let only_original = matches!(self.list.as_slice(), [one] if one.reference == self.original);
        self.routed && !self.list.is_empty() && !only_original
    }

    /// Leaves out places that are here as copies only, where each would be the copy of another image. `foreign` gets
    /// what is copied and where to.
    pub fn withhold(&mut self, foreign: impl Fn(&Reference, &Reference) -> bool) {
        let (notes, left_out) = (&mut self.notes, &mut self.withheld);
        self.list.retain(|alternative| {
            let withheld = alternative.origins().all(|origin| match origin {
                Origin::Mirror { of, .. } => foreign(of, &alternative.reference),
                Origin::Original | Origin::Upstream { .. } => false,
            });
            if withheld {
                left_out.push(alternative.reference.clone());
                notes.push(format!(
                    "{} is not tried: what is there was copied from another image",
                    alternative.reference
                ));
            }
            !withheld
        });
    }

    /// Holds every place to a digest.
    pub fn hold(&mut self, digest: &Digest) {
        let references = self.list.iter_mut().map(|place| &mut place.reference).chain(&mut self.withheld);
        for reference in references.chain([&mut self.original]) {
            *reference = pinning::hold(reference, digest);
        }
    }

    /// Whether a place was left out because what is there was copied from another image.
    pub fn withholds(&self, place: &Reference) -> bool {
        self.withheld.iter().any(|withheld| withheld.is_same_image(place))
    }

    /// Whether copies were left out because the namespace of the Pod may not be offered them.
    pub fn is_unproven(&self) -> bool {
        self.unproven.is_some()
    }

    /// The copies of mirrors that ask for proof of access.
    pub fn to_prove(&self) -> impl Iterator<Item = GuardedCopy<'_>> {
        let guarded = self.list.iter().filter(|_| self.guarded);
        guarded.flat_map(|one| one.origins().filter_map(|origin| origin.guarded(&one.reference)))
    }

    /// Leaves out copies that the namespace of the Pod may not be offered, each with the Secrets of its mirror: where
    /// another policy offers the same place, it is pulled with what that policy names.
    pub fn withhold_unproven(&mut self, namespace: &str, why: impl Fn(&GuardedCopy<'_>) -> Option<Withheld>) {
        if !self.guarded {
            return;
        }
        for alternative in std::mem::take(&mut self.list) {
            let Alternative { reference, origin, also, mut secrets } = alternative;
            let (mut kept, mut withheld) = (Vec::with_capacity(1 + also.len()), Vec::new());
            for origin in std::iter::once(origin).chain(also) {
                let copy = origin.guarded(&reference);
                let Some(told) = copy.and_then(|copy| Some(copy.told(namespace, why(&copy)?))) else {
                    kept.push(origin);
                    continue;
                };
                withheld.extend(origin.policy().cloned());
                self.unproven.get_or_insert_with(|| told.clone());
                self.notes.push(told);
            }
            let still = |by: &Arc<PolicyId>| kept.iter().any(|one: &Origin| one.policy() == Some(by));
            secrets.retain(|used| !withheld.contains(&used.by) || still(&used.by));
            let mut kept = kept.into_iter();
            if let Some(origin) = kept.next() {
                self.list.push(Alternative { reference, origin, also: kept.collect(), secrets });
            }
        }
    }

    /// An image that the kubelet will not pull, and that no setting asks to route: it stays as it is.
    pub(super) fn untouched(image: &Reference) -> Self {
        Self {
            original: image.clone(),
            list: vec![Alternative::new(image.clone(), Origin::Original, None)],
            dropped: 0,
            discarded_by: None,
            notes: vec![UNTOUCHED.to_owned()],
            routed: false,
            guarded: false,
            unproven: None,
            withheld: Vec::new(),
        }
    }
}
