//! The ordered list of places that one image may come from, and how it is put together.
//!
//! Upstreams come first into being: they are found from the image alone. Mirrors then offer copies of the image and of
//! those upstreams, never of one another. Everything is sorted by one total key, so the order in which policies
//! were read cannot show.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use fairlead_domain::reference::Reference;

use super::{
    identity::{PolicyId, SecretName},
    policy::{Mirror, Policy, Upstream},
    pull::{PullPolicy, Rules},
};

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

    fn new(reference: Reference, origin: Origin, secret: Option<SecretUse>) -> Self {
        Self { reference, origin, also: Vec::new(), secrets: secret.into_iter().collect() }
    }

    /// Another origin of the same reference.
    fn merge(&mut self, origin: Origin, secret: Option<SecretUse>) {
        self.also.push(origin);
        if let Some(used) = secret
            && self.secrets.iter().all(|known| known.secret != used.secret)
        {
            self.secrets.push(used);
        }
    }
}

/// Everything that one image may be pulled from, in order of trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alternatives {
    pub(super) original: Reference,
    pub(super) list: Vec<Alternative>,
    pub(super) discarded_by: Option<Arc<PolicyId>>,
    pub(super) notes: Vec<String>,
    /// Whether the image is routed at all.
    pub(super) routed: bool,
}

impl Alternatives {
    pub fn original(&self) -> &Reference {
        &self.original
    }

    /// In order of trial.
    pub fn list(&self) -> &[Alternative] {
        &self.list
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
            discarded_by: None,
            notes: vec![UNTOUCHED.to_owned()],
            routed: false,
        }
    }
}

/// The place of an alternative in the order: CR priority, kind (the original before all), entry priority, CR name,
/// declaration order, and for mirrors the place of what is copied.
type Key<'p> = (i64, u8, u64, &'p str, usize, usize);

fn key(policy: &Policy, priority: u64, entry: usize, source: usize) -> Key<'_> {
    (policy.priority, 1 + policy.id.kind as u8, priority, &policy.id.name, entry, source)
}

struct Candidate<'p> {
    key: Key<'p>,
    reference: Reference,
    origin: Origin,
    secret: Option<SecretUse>,
}

/// Gathers what policies offer for one image.
pub(super) struct Builder<'p> {
    image: &'p Reference,
    candidates: Vec<Candidate<'p>>,
    /// Where the same image is declared to be, discarded places included.
    upstreams: Vec<(Key<'p>, Reference)>,
    discarded_by: Option<(Key<'p>, &'p Arc<PolicyId>)>,
    notes: Vec<String>,
}

impl<'p> Builder<'p> {
    pub(super) fn new(image: &'p Reference) -> Self {
        Self { image, candidates: Vec::new(), upstreams: Vec::new(), discarded_by: None, notes: Vec::new() }
    }

    /// An upstream whose filter lets the image pass and whose path does not lead to it.
    pub(super) fn outside(&mut self, policy: &Policy, upstream: &Upstream) {
        self.notes.push(format!(
            "{}, upstreams[{}] does not apply to {}: it does not lie in {}, compared by whole path segments",
            policy.id, upstream.entry, self.image, upstream.place
        ));
    }

    /// A replicated set of which `matched` holds the image: all its upstreams do.
    pub(super) fn replicated(&mut self, policy: &'p Policy, upstreams: &'p [Upstream], matched: &Upstream) {
        if matched.discarded {
            let place = key(policy, matched.priority, matched.entry, 0);
            if self.discarded_by.as_ref().is_none_or(|(known, _)| place < *known) {
                self.discarded_by = Some((place, &policy.id));
            }
            self.notes.push(format!(
                "{} is not tried as such: {}, upstreams[{}] discards it",
                self.image, policy.id, matched.entry
            ));
        }
        for upstream in upstreams {
            let origin = Origin::Upstream { policy: Arc::clone(&policy.id), entry: upstream.entry };
            let reference = match matched.place.moved(self.image, &upstream.place) {
                Ok(reference) => reference,
                Err(error) => {
                    self.notes.push(format!("{origin} is left out: {error}"));
                    continue;
                }
            };
            let key = key(policy, upstream.priority, upstream.entry, 0);
            self.upstreams.push((key, reference.clone()));
            if !upstream.discarded {
                let secret = used(policy, upstream.secret.as_ref());
                self.candidates.push(Candidate { key, reference, origin, secret });
            } else if upstream.entry != matched.entry {
                self.notes.push(format!("{reference} is not tried: {origin} discards it"));
            }
        }
    }

    /// The other places of the image, in their order, discarded ones included: mirrors may hold copies of them.
    pub(super) fn take_upstreams(&mut self) -> Vec<Reference> {
        let mut upstreams = std::mem::take(&mut self.upstreams);
        upstreams.sort_unstable();
        let mut known = HashSet::new();
        let references = upstreams.into_iter().map(|(_, reference)| reference);
        references.filter(|one| one != self.image && known.insert(one.clone())).collect()
    }

    /// A mirror set whose filter lets one of the sources pass.
    pub(super) fn mirrored(
        &mut self,
        policy: &'p Policy,
        mirrors: &'p [Mirror],
        source: &Reference,
        rank: usize,
    ) {
        for mirror in mirrors {
            let origin =
                Origin::Mirror { policy: Arc::clone(&policy.id), entry: mirror.entry, of: source.clone() };
            if mirror.place.contains(source) {
                self.notes
                    .push(format!("{origin} offers no copy of {source}, which lies in that mirror already"));
                continue;
            }
            match mirror.place.copy_of(source) {
                Ok(reference) => {
                    let key = key(policy, mirror.priority, mirror.entry, rank);
                    let secret = used(policy, mirror.secret_for_pods());
                    self.candidates.push(Candidate { key, reference, origin, secret });
                }
                Err(error) => self.notes.push(format!("{origin} is left out: {error}")),
            }
        }
    }

    pub(super) fn finish(mut self, pull: PullPolicy, rules: Rules) -> Alternatives {
        let discarded_by = self.discarded_by.map(|(_, policy)| Arc::clone(policy));
        let list = match (self.candidates.is_empty(), &discarded_by) {
            // Most images of most Pods.
            (true, None) => vec![Alternative::new(self.image.clone(), Origin::Original, None)],
            (_, Some(_)) => merged(self.candidates),
            (false, None) => {
                let first = pull == PullPolicy::Always && !rules.honor_priorities_on_always;
                self.candidates.push(Candidate {
                    key: (if first { i64::MIN } else { 0 }, 0, 0, "", 0, 0),
                    reference: self.image.clone(),
                    origin: Origin::Original,
                    secret: None,
                });
                merged(self.candidates)
            }
        };
        Alternatives { original: self.image.clone(), list, discarded_by, notes: self.notes, routed: true }
    }
}

/// So many references are compared one by one faster than looked up.
const FEW: usize = 16;

/// In order. Of candidates with the same reference the first keeps its place and takes what the others bring.
fn merged(mut candidates: Vec<Candidate<'_>>) -> Vec<Alternative> {
    candidates.sort_by(|one, other| one.key.cmp(&other.key));
    let mut list: Vec<Alternative> = Vec::with_capacity(candidates.len());
    let mut places: HashMap<Reference, usize> = HashMap::new();
    let few = candidates.len() <= FEW;
    for Candidate { reference, origin, secret, .. } in candidates {
        let next = list.len();
        let place = if few {
            list.iter().position(|known| known.reference == reference).unwrap_or(next)
        } else {
            *places.entry(reference.clone()).or_insert(next)
        };
        match list.get_mut(place) {
            Some(known) => known.merge(origin, secret),
            None => list.push(Alternative::new(reference, origin, secret)),
        }
    }
    list
}

fn used(policy: &Policy, secret: Option<&SecretName>) -> Option<SecretUse> {
    secret.map(|secret| SecretUse { secret: secret.clone(), by: Arc::clone(&policy.id) })
}
