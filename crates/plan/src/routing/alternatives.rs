//! The ordered list of places that one image may come from. [`super::builder`] puts it together.

use std::{fmt, sync::Arc};

use fairlead_domain::{cause::Cause, reference::Reference};

use super::identity::{PolicyId, SecretName};

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
    Mirror { policy: Arc<PolicyId>, entry: usize, of: Reference },
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

    /// The text for the record on the Pod: `original`, or `<kind>/<namespace>/<name>` of the policy, where the namespace of
    /// cluster-scoped kinds is empty.
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
                write!(f, "{policy}, {}[{entry}]", policy.kind.entries())
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
    /// Whether it is, among others, what the Pod asked for.
    pub fn is_original(&self) -> bool {
        std::iter::once(&self.origin).chain(&self.also).any(|origin| *origin == Origin::Original)
    }

    /// On whose account its registry is contacted: an administrator's as soon as one cluster-scoped policy names the place.
    pub fn cause(&self) -> Cause {
        let mut policies = std::iter::once(&self.origin).chain(&self.also).filter_map(Origin::policy);
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
}

impl Alternatives {
    pub fn original(&self) -> &Reference {
        &self.original
    }

    /// In order of trial, [`MOST_ALTERNATIVES`] at most.
    pub fn list(&self) -> &[Alternative] {
        &self.list
    }

    /// How many places come after the last that is kept. Exact for up to a thousand combinations of entries and sources;
    /// beyond, the combinations are counted without making them.
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

    /// Leaves out places that are here as copies only, where each would be the copy of another image. `foreign` is told
    /// what is copied and where to.
    pub fn withhold(&mut self, foreign: impl Fn(&Reference, &Reference) -> bool) {
        let notes = &mut self.notes;
        self.list.retain(|alternative| {
            let mut origins = std::iter::once(&alternative.origin).chain(&alternative.also);
            let withheld = origins.all(|origin| match origin {
                Origin::Mirror { of, .. } => foreign(of, &alternative.reference),
                Origin::Original | Origin::Upstream { .. } => false,
            });
            if withheld {
                notes.push(format!(
                    "{} is not tried: what is there was copied from another image",
                    alternative.reference
                ));
            }
            !withheld
        });
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
        }
    }
}
