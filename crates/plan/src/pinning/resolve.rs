//! Which digest a tag stands for.
//!
//! The registry that the workload names decides. While it does not answer, the last digest that it is known to have
//! had is used, if it can be pulled from somewhere; else what another place serves under the tag.

use fairlead_domain::{digest::Digest, reference::Reference, verdict::Verdict};

/// What one place said, in the order in which places are tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceAnswer {
    /// As it is asked for by tag.
    pub reference: Reference,
    /// About the tag.
    pub tag: Verdict,
    /// About the digest that was known last, where that was asked.
    pub last_known: Option<Verdict>,
}

/// A tag with its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    pub digest: Digest,
    /// The place that named it, if it is not the one that was asked for.
    pub from: Option<Reference>,
}

/// Chooses the digest. `origin` is what the registry says that the workload names; `places` count only where it names
/// no digest, and `last_known` only where it does not answer: a tag that is gone or refused is not brought back. None:
/// nothing is known, so that the tag stays.
pub fn resolve(origin: &Verdict, last_known: Option<Digest>, places: &[PlaceAnswer]) -> Option<Resolved> {
    if let Some(digest) = origin.digest() {
        return Some(Resolved { digest, from: None });
    }
    let answers =
        matches!(origin, Verdict::NotFound { .. } | Verdict::Unauthorised { .. } | Verdict::Forbidden { .. });
    let last_known = last_known.filter(|_| !answers);
    let serves = |place: &PlaceAnswer| place.last_known.as_ref().is_some_and(Verdict::is_available);
    let known = last_known.map(|digest| Resolved { digest, from: None });
    if known.is_some() && places.iter().any(serves) {
        return known;
    }
    let told = places.iter().find_map(|place| {
        Some(Resolved { digest: place.tag.digest()?, from: Some(place.reference.clone()) })
    });
    told.or(known)
}
