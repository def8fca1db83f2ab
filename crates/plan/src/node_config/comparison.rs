//! Whether mirrors hold the same under a tag as their sources.
//!
//! A node takes a tag from the first mirror that has it, so a tag that was moved at one place only means another image
//! on nodes that follow the policy. The watch of images asks both places; here it is decided which, and what differs.
//! A source that must not be contacted is not asked for a comparison either.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_domain::{digest::Digest, reference::Reference, verdict::Verdict};

use super::{Endpoint, EndpointState, NodeConfig, PolicyId, PullKind};

/// Mirrors of one image that are compared.
const MOST_MIRRORS: usize = 4;
/// Differences that are kept for one policy.
const MOST_DIFFERENCES: usize = 16;

/// The places of one tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    pub source: Reference,
    pub mirrors: Vec<ComparedMirror>,
}

/// What a mirror has for a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedMirror {
    pub place: Reference,
    /// Those that list the mirror.
    pub policies: BTreeSet<PolicyId>,
}

impl Comparison {
    pub fn places(&self) -> impl Iterator<Item = &Reference> {
        std::iter::once(&self.source).chain(self.mirrors.iter().map(|mirror| &mirror.place))
    }
}

impl NodeConfig {
    /// What is to be compared for an image that Pods use. A digest cannot mean two things.
    pub fn comparison(&self, image: &Reference) -> Option<Comparison> {
        let (_, entry) = self.entry_for(image.name()).filter(|(_, entry)| !entry.is_closed())?;
        let resolution = self.resolve(image);
        if resolution.kind == PullKind::Digest {
            return None;
        }
        // They are those of the list, in order, and the source.
        let asked = resolution.endpoints.iter().enumerate();
        let asked = asked.filter(|(_, endpoint)| endpoint.state == EndpointState::Asked);
        let (sources, mirrors): (Vec<_>, Vec<_>) = asked.partition(|(_, endpoint)| endpoint.is_source);
        if sources.is_empty() {
            return None;
        }
        let compared = |(number, endpoint): (usize, &Endpoint)| {
            let policies = entry.tag.listed_by.mirror(number).into_iter().cloned().collect();
            Some(ComparedMirror { place: Reference::parse(&endpoint.image).ok()?, policies })
        };
        let mirrors: Vec<_> = mirrors.into_iter().filter_map(compared).take(MOST_MIRRORS).collect();
        (!mirrors.is_empty()).then(|| Comparison { source: image.clone(), mirrors })
    }
}

/// What registries said about the places that are compared.
#[derive(Clone, Debug, Default)]
pub struct TagDigests {
    /// Without a digest, the place was asked and did not tell one.
    known: BTreeMap<Reference, Option<Digest>>,
}

impl TagDigests {
    /// Takes note of an answer, and tells whether it is news. A registry that does not answer now may still hold what
    /// it held.
    pub fn learn(&mut self, place: &Reference, verdict: &Verdict) -> bool {
        let before = self.known.get(place).copied();
        let now = match verdict {
            Verdict::Available { digest } => *digest,
            Verdict::NotFound { .. } => None,
            _ => before.flatten(),
        };
        self.known.insert(place.clone(), now);
        before != Some(now)
    }

    /// Forgets all other places.
    pub fn keep(&mut self, comparisons: &[Comparison]) {
        let wanted: BTreeSet<&Reference> = comparisons.iter().flat_map(Comparison::places).collect();
        self.known.retain(|place, _| wanted.contains(place));
    }

    /// What differs, for each policy with something to compare; `None` while some of its places were not asked and
    /// nothing is known to differ.
    pub fn differences(&self, comparisons: &[Comparison]) -> BTreeMap<PolicyId, Option<Vec<String>>> {
        let mut found: BTreeMap<&PolicyId, (Vec<String>, bool)> = BTreeMap::new();
        for comparison in comparisons {
            for mirror in &comparison.mirrors {
                let is_known =
                    [&comparison.source, &mirror.place].iter().all(|place| self.known.contains_key(*place));
                let difference = self.of(&comparison.source, &mirror.place);
                for policy in &mirror.policies {
                    let (differences, all_known) = found.entry(policy).or_insert_with(|| (Vec::new(), true));
                    *all_known &= is_known;
                    if differences.len() < MOST_DIFFERENCES {
                        differences.extend(difference.clone());
                    }
                }
            }
        }
        let said = |(policy, (differences, all_known)): (&PolicyId, (Vec<String>, bool))| {
            let differences = Some(differences).filter(|differences| all_known || !differences.is_empty());
            (policy.clone(), differences)
        };
        found.into_iter().map(said).collect()
    }

    fn of(&self, source: &Reference, mirror: &Reference) -> Option<String> {
        let digest = |place: &Reference| self.known.get(place).copied().flatten();
        let (wanted, held) = (digest(source)?, digest(mirror)?);
        (wanted != held).then(|| format!("{source} is {wanted} and {mirror} is {held}"))
    }
}
