//! Whether the places of one image hold the same.
//!
//! Policies declare that places hold the same image, and a tag can be moved at any of them. Where registries said which
//! digest a tag has, the places can be compared. A reference by digest cannot mean two things, and is not compared.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use fairlead_domain::{digest::Digest, reference::Reference};

use crate::fair_share::make_room;
use crate::pod_record::Difference;
use crate::routing::{Alternative, Alternatives, Origin, PolicyId};

/// Differing places that are listed for one image.
const MOST_DIFFERENCES: usize = 4;

/// Images that are kept in mind.
const MOST_IMAGES: usize = 1024;

/// An image that a Pod asked for in this time is looked at more often.
const RECENT_SECONDS: i64 = 60 * 60;

/// How often an image is looked at again while its places agree, lately asked for or not, and while they do not or
/// another Pod asks for it.
const AGREEING_SECONDS: i64 = 10 * 60;
const SETTLED_SECONDS: i64 = 60 * 60;
const DIFFERING_SECONDS: i64 = 30;

/// A copy and the source that it may have been made of.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    pub source: &'a Reference,
    pub source_digest: &'a Digest,
    pub copy: &'a Reference,
    pub copy_digest: &'a Digest,
}

/// The other places that hold something else than the place that is used. `digests` stand in the order of the list;
/// what is not known is not compared. `is_as_made` says whether a ledger has the pair as it is: a copy of some
/// platforms only has a digest of its own, and is right all the same.
fn differing<'a>(
    places: &'a Alternatives,
    used: usize,
    digests: &[Option<Digest>],
    is_as_made: impl Fn(&Pair<'_>) -> bool,
) -> Vec<(&'a Alternative, Digest)> {
    if places.original().digest().is_some() {
        return Vec::new();
    }
    let digest_at = |index: usize| digests.get(index).copied().flatten();
    let (Some(base), Some(base_digest)) = (places.list().get(used), digest_at(used)) else {
        return Vec::new();
    };
    let made = |copy: &Alternative, copy_digest: &Digest, source_digest: &Digest| {
        origins(copy).any(|origin| match origin {
            Origin::Mirror { of, .. } => {
                is_as_made(&Pair { source: of, source_digest, copy: &copy.reference, copy_digest })
            }
            Origin::Original | Origin::Upstream { .. } => false,
        })
    };
    let others = places.list().iter().enumerate().filter(|(index, _)| *index != used);
    others
        .filter_map(|(index, other)| Some((other, digest_at(index)?)))
        .filter(|(other, digest)| {
            *digest != base_digest && !made(base, &base_digest, digest) && !made(other, digest, &base_digest)
        })
        .take(MOST_DIFFERENCES)
        .collect()
}

fn origins(place: &Alternative) -> impl Iterator<Item = &Origin> {
    std::iter::once(&place.origin).chain(&place.also)
}

/// The same for the record on a Pod.
pub fn differences(
    places: &Alternatives,
    used: usize,
    digests: &[Option<Digest>],
    is_as_made: impl Fn(&Pair<'_>) -> bool,
) -> Vec<Difference> {
    let told = differing(places, used, digests, is_as_made).into_iter().map(|(place, digest)| Difference {
        image: place.reference.to_string(),
        digest: digest.to_string(),
        by: place.origin.by(),
    });
    told.collect()
}

/// Two places of one image that hold different digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    places: [Reference; 2],
    /// Those that offer one of the places.
    policies: Vec<Arc<PolicyId>>,
    text: String,
}

/// What comparing the places of an image found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    mismatches: Vec<Mismatch>,
    /// Places of which the digest is not known, and those of which it is.
    silent: Vec<Reference>,
    answered: Vec<Reference>,
}

/// Compares all places with the first of which the digest is known, for the policies that offer them.
pub fn compare(
    places: &Alternatives,
    digests: &[Option<Digest>],
    is_as_made: impl Fn(&Pair<'_>) -> bool,
) -> Look {
    let mut look = Look::default();
    for (index, place) in places.list().iter().enumerate() {
        let is_known = digests.get(index).is_some_and(Option::is_some);
        let list = if is_known { &mut look.answered } else { &mut look.silent };
        list.push(place.reference.clone());
    }
    if let Some(first) = digests.iter().position(Option::is_some) {
        look.mismatches = mismatches(places, first, digests, is_as_made);
    }
    look
}

fn mismatches(
    places: &Alternatives,
    used: usize,
    digests: &[Option<Digest>],
    is_as_made: impl Fn(&Pair<'_>) -> bool,
) -> Vec<Mismatch> {
    let (Some(base), Some(Some(base_digest))) = (places.list().get(used), digests.get(used)) else {
        return Vec::new();
    };
    let told = differing(places, used, digests, is_as_made).into_iter().map(|(other, digest)| {
        let mut policies: Vec<Arc<PolicyId>> = Vec::new();
        for policy in origins(base).chain(origins(other)).filter_map(Origin::policy) {
            if !policies.contains(policy) {
                policies.push(Arc::clone(policy));
            }
        }
        Mismatch {
            places: [base.reference.clone(), other.reference.clone()],
            policies,
            text: format!("{} is {base_digest} and {} is {digest}", base.reference, other.reference),
        }
    });
    told.collect()
}

/// An image as the Pods of one namespace ask for it: policies and credentials may differ from namespace to namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageKey {
    pub namespace: Arc<str>,
    /// As it was asked for.
    pub image: Arc<str>,
}

#[derive(Debug)]
struct DueCheck<P> {
    pod: P,
    /// When the latest Pod came that asks for it.
    seen: i64,
    looked: Option<i64>,
    mismatches: Vec<Mismatch>,
}

impl<P> DueCheck<P> {
    fn is_due(&self, now: i64) -> bool {
        // A Pod that came after the last look may have got something else than those before it.
        let is_asked_anew = self.looked.is_some_and(|looked| looked < self.seen);
        let pause = match self.mismatches.is_empty() {
            false => DIFFERING_SECONDS,
            true if is_asked_anew => DIFFERING_SECONDS,
            true if now.saturating_sub(self.seen) < RECENT_SECONDS => AGREEING_SECONDS,
            true => SETTLED_SECONDS,
        };
        self.looked.is_none_or(|looked| now.saturating_sub(looked) >= pause)
    }
}

/// The images of Pods, and what comparing their places found. `P` is a Pod that asks for the image, with whose eyes
/// it is looked at. All times are seconds since 1970.
#[derive(Debug)]
pub struct Checks<P> {
    images: BTreeMap<ImageKey, DueCheck<P>>,
    /// Every image was looked at at least once.
    settled: bool,
}

impl<P> Default for Checks<P> {
    fn default() -> Self {
        Self { images: BTreeMap::new(), settled: false }
    }
}

impl<P: Clone> Checks<P> {
    /// A Pod asks for an image that has several places.
    pub fn asked(&mut self, key: ImageKey, pod: P, created: i64) {
        if let Some(check) = self.images.get_mut(&key) {
            if check.seen <= created {
                (check.pod, check.seen) = (pod, created);
            }
            return;
        }
        make_room(&mut self.images, MOST_IMAGES, |key| &key.namespace, |check| check.seen);
        self.images.insert(key, DueCheck { pod, seen: created, looked: None, mismatches: Vec::new() });
    }

    /// Forgets images that no Pod asks for any more.
    pub fn keep(&mut self, asked: impl Fn(&ImageKey) -> bool) {
        self.images.retain(|key, _| asked(key));
    }

    /// What to look at now, so many at most, and what was never looked at first.
    pub fn due(&self, most: usize, now: i64) -> Vec<(ImageKey, P)> {
        let mut due: Vec<_> = self.images.iter().filter(|(_, check)| check.is_due(now)).collect();
        due.sort_by_key(|(_, check)| check.looked);
        let due = due.into_iter().take(most).map(|(key, check)| (key.clone(), check.pod.clone()));
        due.collect()
    }

    /// Takes note of a look. A mismatch stays while its places are offered and one of them does not say what it has.
    pub fn looked(&mut self, key: &ImageKey, look: Look, now: i64) {
        if let Some(check) = self.images.get_mut(key) {
            let Look { mut mismatches, silent, answered } = look;
            let is_open = |before: &Mismatch| {
                let offered = |place| silent.contains(place) || answered.contains(place);
                before.places.iter().all(offered) && before.places.iter().any(|place| silent.contains(place))
            };
            mismatches.extend(check.mismatches.drain(..).filter(is_open));
            check.mismatches = mismatches;
            check.looked = Some(now);
        }
        self.settled |= self.images.values().all(|check| check.looked.is_some());
    }

    /// There is nothing to look at.
    pub fn idle(&mut self) {
        self.settled = true;
    }

    /// What differs of each image that was looked at, by namespace; nothing where its places agree.
    pub fn compared(&self) -> BTreeMap<Arc<str>, BTreeMap<Arc<str>, Vec<String>>> {
        let mut compared: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for (key, check) in self.images.iter().filter(|(_, check)| check.looked.is_some()) {
            let texts = check.mismatches.iter().map(|found| found.text.clone()).collect();
            compared.entry(Arc::clone(&key.namespace)).or_default().insert(Arc::clone(&key.image), texts);
        }
        compared
    }

    /// What is known against a policy, each once; nothing before every image was looked at.
    pub fn of(&self, policy: &PolicyId) -> Option<Vec<String>> {
        if !self.settled {
            return None;
        }
        let all = self.images.values().flat_map(|check| &check.mismatches);
        let concerned = all.filter(|found| found.policies.iter().any(|one| **one == *policy));
        let mut texts: Vec<_> = concerned.map(|found| found.text.clone()).collect();
        texts.sort();
        texts.dedup();
        Some(texts)
    }
}
