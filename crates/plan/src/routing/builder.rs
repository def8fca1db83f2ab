//! Puts the list of one image together, in order, and stops when it is complete.
//!
//! Upstreams are found from the image alone. Mirrors then offer copies of the image and of those upstreams, never of
//! one another. One namespace may hold a thousand policies, whose entries and sources make millions of combinations, so
//! no list of candidates is ever made: entries are merged lazily by one total key ([`super::merge`]), and each
//! combination is made when its turn comes. Cost and memory follow from what is kept. The key is total, so the order in
//! which policies were read cannot show.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fairlead_api::kuik::MirrorAccess;
use fairlead_domain::reference::{ImageKey, Reference};

use super::alternatives::{Alternative, Alternatives, MOST_ALTERNATIVES, Origin, SecretUse};
use super::identity::{PolicyId, SecretName};
use super::merge::{Key, Merge, key};
use super::policy::{Mirror, Policy, Upstream};
use super::pull::{PullPolicy, Rules};

/// The image and the first of its other places: what mirrors offer copies of. One bit of a word for each.
const MOST_SOURCES: usize = 64;

/// Combinations that are made. A list is complete long before, unless most of its places are the same; up to here what
/// is left out is counted exactly.
const MOST_MADE: usize = 1024;

/// Upstreams that are told apart when they are only counted.
const MOST_COUNTED: usize = 4096;

/// Remarks that are kept; further ones are counted.
const MOST_NOTES: usize = 64;

/// So many references are compared one by one faster than looked up.
const FEW: usize = 16;

/// A replicated set that holds the image in its upstream `matched`.
struct Replicas<'p> {
    policy: &'p Policy,
    upstreams: &'p [Upstream],
    matched: &'p Upstream,
}

/// A mirror set, and the sources that its filter lets pass.
struct Copies<'p> {
    policy: &'p Policy,
    mirrors: &'p [Mirror],
    sources: u64,
}

impl Copies<'_> {
    /// Whether its filter lets the source of this rank pass.
    fn takes(&self, rank: usize) -> bool {
        (self.sources >> rank) & 1 == 1
    }
}

/// What mirrors may hold a copy of.
struct CopyableSource {
    reference: Reference,
    /// The first source whose copies have the same names: copies are named without the host of their source.
    namesake: usize,
}

/// One upstream of the image.
struct DerivedPlace<'p> {
    key: Key<'p>,
    reference: Reference,
    upstream: &'p Upstream,
    /// Number of its replicated set.
    set: usize,
}

/// Gathers what policies offer for one image.
pub(super) struct Builder<'p> {
    image: &'p Reference,
    replicas: Vec<Replicas<'p>>,
    copies: Vec<Copies<'p>>,
    sources: Vec<CopyableSource>,
    /// There are further sources, which mirrors are not asked about.
    more_sources: bool,
    discarded_by: Option<(Key<'p>, &'p Arc<PolicyId>)>,
    notes: Notes,
}

impl<'p> Builder<'p> {
    pub(super) fn new(image: &'p Reference) -> Self {
        Self {
            image,
            replicas: Vec::new(),
            copies: Vec::new(),
            sources: Vec::new(),
            more_sources: false,
            discarded_by: None,
            notes: Notes::default(),
        }
    }

    /// An upstream whose filter lets the image pass and whose path does not lead to it.
    pub(super) fn outside(&mut self, policy: &Policy, upstream: &Upstream) {
        let image = self.image;
        self.notes.add(|| {
            format!(
                "{}, {} does not apply to {image}: it does not lie in {}, compared by whole path segments",
                policy.id,
                policy.id.kind.entry(upstream.entry),
                upstream.place
            )
        });
    }

    /// A replicated set of which `matched` holds the image: all its upstreams do.
    pub(super) fn replicated(
        &mut self,
        policy: &'p Policy,
        upstreams: &'p [Upstream],
        matched: &'p Upstream,
    ) {
        if matched.discarded {
            let place = key(policy, matched.priority, matched.entry);
            if self.discarded_by.as_ref().is_none_or(|(known, _)| place < *known) {
                self.discarded_by = Some((place, &policy.id));
            }
            let image = self.image;
            self.notes.add(|| {
                format!(
                    "{image} is not tried as such: {}, {} discards it",
                    policy.id,
                    policy.id.kind.entry(matched.entry)
                )
            });
        }
        self.replicas.push(Replicas { policy, upstreams, matched });
    }

    /// Whether a replicated set has the image at this other place too.
    pub(super) fn is_replica(&self, other: &Reference) -> bool {
        let places = self.replicas.iter().flat_map(|set| set.upstreams.iter().map(move |one| (set, one)));
        places
            .filter(|(_, upstream)| upstream.place.contains(other))
            .filter_map(|(set, upstream)| set.matched.place.moved(self.image, &upstream.place).ok())
            .any(|place| place.is_same_image(other))
    }

    /// The Secrets that replicated sets name for the place of the image itself, in order, each once.
    pub(super) fn own_secrets(&self) -> Vec<SecretUse> {
        let own = self.replicas.iter().flat_map(|set| {
            let same = set
                .upstreams
                .iter()
                .filter(|one| one.place.key() == set.matched.place.key() && !one.discarded);
            same.map(|one| (key(set.policy, one.priority, one.entry), used(set.policy, one.secret.as_ref())))
        });
        let mut own: Vec<_> = own.collect();
        own.sort_by(|one, other| one.0.cmp(&other.0));
        let mut secrets: Vec<SecretUse> = Vec::new();
        for used in own.into_iter().filter_map(|(_, used)| used) {
            if secrets.len() < MOST_ALTERNATIVES && secrets.iter().all(|known| known.secret != used.secret) {
                secrets.push(used);
            }
        }
        secrets
    }

    /// What mirrors may hold copies of, by rank: the image, then the first of its other places in order, discarded ones
    /// included. To be asked once, after the last replicated set.
    pub(super) fn find_sources(&mut self) -> impl Iterator<Item = &Reference> {
        self.sources.push(CopyableSource { reference: self.image.clone(), namesake: 0 });
        let mut places = Places::new(&self.replicas);
        // What is left out is said once, when the list is made.
        while let Some(place) = places.next(self.image, &mut Notes::default()) {
            let DerivedPlace { reference, .. } = place;
            if self.sources.iter().any(|known| known.reference.is_same_image(&reference)) {
                continue;
            }
            if self.sources.len() == MOST_SOURCES {
                self.more_sources = true;
                break;
            }
            let same_name = |known: &&CopyableSource| known.reference.path() == reference.path();
            let next = self.sources.len();
            let namesake = self.sources.iter().find(same_name).map_or(next, |known| known.namesake);
            self.sources.push(CopyableSource { reference, namesake });
        }
        self.more_sources |= places.cut;
        self.sources.iter().map(|source| &source.reference)
    }

    /// A mirror set whose filter lets some of the sources pass, each a bit at its rank.
    pub(super) fn mirrored(&mut self, policy: &'p Policy, mirrors: &'p [Mirror], sources: u64) {
        self.copies.push(Copies { policy, mirrors, sources });
    }

    pub(super) fn finish(mut self, pull: PullPolicy, rules: Rules) -> Alternatives {
        let discarded_by = self.discarded_by.map(|(_, policy)| Arc::clone(policy));
        let mut list = List::new(self.image);
        if discarded_by.is_none() && self.replicas.is_empty() && self.copies.is_empty() {
            // Most images of most Pods.
            list.offer(self.image.clone(), Origin::Original, None);
        } else {
            let first = pull == PullPolicy::Always && !rules.honor_priorities_on_always;
            let original = discarded_by.is_none().then_some((if first { i64::MIN } else { 0 }, 0, 0, "", 0));
            self.fill(&mut list, original);
        }
        let dropped = if list.cut || self.more_sources {
            self.count(discarded_by.is_none()).saturating_sub(list.kept.len()).max(list.beyond)
        } else {
            list.beyond
        };
        Alternatives {
            original: self.image.clone(),
            list: list.kept,
            dropped,
            discarded_by,
            notes: self.notes.finish(),
            routed: true,
            guarded: self.copies.iter().any(|set| set.policy.access == MirrorAccess::Proven),
            unproven: None,
            withheld: Vec::new(),
        }
    }

    /// Makes candidates in order, the original at its own key.
    fn fill(&mut self, list: &mut List<'_>, mut original: Option<Key<'p>>) {
        let mut places = Places::new(&self.replicas);
        let mut place = places.next(self.image, &mut self.notes);
        let mut mirrors = Merge::new(self.copies.iter().map(|set| set.policy));
        loop {
            let heads = [original, place.as_ref().map(|place| place.key), mirrors.peek()];
            let Some(first) = heads.iter().flatten().min().copied() else { break };
            if list.made >= MOST_MADE {
                list.cut = true;
                break;
            }
            if original == Some(first) {
                original = None;
                list.offer(self.image.clone(), Origin::Original, None);
            } else if let Some(upstream) = place.take_if(|place| place.key == first) {
                offer_place(list, upstream, &self.replicas, &mut self.notes);
                place = places.next(self.image, &mut self.notes);
            } else if let Some(head) = mirrors.next()
                && let Some(set) = self.copies.get(head.policy)
                && let Some(mirror) = set.mirrors.get(head.position)
            {
                offer_copies(list, set, mirror, &self.sources, &mut self.notes);
            }
        }
        list.cut |= places.cut;
    }

    /// How many places there would be, without making them: every mirror times the names of the sources that its filter
    /// lets pass. Filters are not asked about sources beyond those that are kept: these count for every mirror set that
    /// takes part.
    fn count(&self, with_original: bool) -> usize {
        let (offered, names) = self.count_places();
        let known = self.sources.iter().enumerate().filter(|(rank, one)| one.namesake == *rank).count();
        let further = if self.more_sources { names.saturating_sub(known) } else { 0 };
        let copies = self.copies.iter().map(|set| {
            let passing = self.sources.iter().enumerate().filter(|(rank, _)| set.takes(*rank));
            let names = passing.fold(0u64, |names, (_, source)| names | 1 << source.namesake);
            set.mirrors.len() * (names.count_ones() as usize + further)
        });
        usize::from(with_original) + offered + copies.sum::<usize>()
    }

    /// How many other places the image has that are offered, and how many names copies of them all would have. Places
    /// are told apart by where they are, up to a number; further ones count each.
    fn count_places(&self) -> (usize, usize) {
        let (mut offered, mut names) = (HashSet::new(), HashSet::new());
        let mut untold = (0, 0);
        let all = self
            .replicas
            .iter()
            .flat_map(|set| set.upstreams.iter().map(move |one| (&set.matched.place, one)));
        for (number, (from, upstream)) in all.filter(|(from, one)| from.key() != one.place.key()).enumerate()
        {
            let offers = !upstream.discarded;
            let renames = upstream.place.path() != from.path();
            if number >= MOST_COUNTED {
                untold = (untold.0 + usize::from(offers), untold.1 + usize::from(renames));
                continue;
            }
            if offers {
                offered.insert((upstream.place.key(), from.key()));
            }
            if renames {
                names.insert((upstream.place.path(), from.key()));
            }
        }
        (offered.len() + untold.0, 1 + names.len() + untold.1)
    }
}

/// The upstreams of all replicated sets, in order, made one at a time.
struct Places<'a, 'p> {
    replicas: &'a [Replicas<'p>],
    merge: Merge<'p>,
    made: usize,
    /// There are more than are made.
    cut: bool,
}

impl<'a, 'p> Places<'a, 'p> {
    fn new(replicas: &'a [Replicas<'p>]) -> Self {
        Self { replicas, merge: Merge::new(replicas.iter().map(|set| set.policy)), made: 0, cut: false }
    }

    fn next(&mut self, image: &Reference, notes: &mut Notes) -> Option<DerivedPlace<'p>> {
        loop {
            let head = self.merge.next()?;
            let set = self.replicas.get(head.policy)?;
            let upstream = set.upstreams.get(head.position)?;
            if self.made >= MOST_MADE {
                self.cut = true;
                return None;
            }
            self.made += 1;
            match set.matched.place.moved(image, &upstream.place) {
                Ok(reference) => {
                    return Some(DerivedPlace { key: head.key, reference, upstream, set: head.policy });
                }
                Err(error) => notes.add(|| {
                    let id = &set.policy.id;
                    format!("{id}, {} is left out: {error}", id.kind.entry(upstream.entry))
                }),
            }
        }
    }
}

fn offer_place(list: &mut List<'_>, place: DerivedPlace<'_>, replicas: &[Replicas<'_>], notes: &mut Notes) {
    let DerivedPlace { reference, upstream, set, .. } = place;
    let Some(set) = replicas.get(set) else { return };
    let origin = Origin::Upstream { policy: Arc::clone(&set.policy.id), entry: upstream.entry };
    if !upstream.discarded {
        list.offer(reference, origin, used(set.policy, upstream.secret.as_ref()));
        return;
    }
    list.made += 1;
    if upstream.entry != set.matched.entry {
        notes.add(|| format!("{reference} is not tried: {origin} discards it"));
    }
}

/// The copies in one mirror, in the order of their sources. Of sources whose copies have the same name the first
/// counts.
fn offer_copies(
    list: &mut List<'_>,
    set: &Copies<'_>,
    mirror: &Mirror,
    sources: &[CopyableSource],
    notes: &mut Notes,
) {
    let mut offered = [None; MOST_SOURCES];
    let passing = sources.iter().enumerate().filter(|(rank, _)| set.takes(*rank));
    for (_, CopyableSource { reference: source, namesake }) in passing {
        let origin = || Origin::Mirror {
            policy: Arc::clone(&set.policy.id),
            entry: mirror.entry,
            of: source.clone(),
            access: set.policy.access,
        };
        if mirror.place.contains(source) {
            list.made += 1;
            notes.add(|| {
                format!("{} offers no copy of {source}, which lies in that mirror already", origin())
            });
            continue;
        }
        let secret = || used(set.policy, mirror.secret_for_pods());
        let Some(place) = offered.get_mut(*namesake) else { continue };
        if let Some(place) = *place {
            list.merge(place, origin, secret);
            continue;
        }
        if list.made >= MOST_MADE {
            list.cut = true;
            return;
        }
        match mirror.place.copy_of(source) {
            Ok(reference) => *place = Some(list.offer(reference, origin(), secret())),
            Err(error) => {
                list.made += 1;
                notes.add(|| format!("{} is left out: {error}", origin()));
            }
        }
    }
}

/// What is kept, and what is known of the rest.
struct List<'p> {
    image: &'p Reference,
    kept: Vec<Alternative>,
    /// Everything that was made, by number, once it is more than a few.
    places: HashMap<ImageKey, usize>,
    /// Distinct places that came after the list was complete.
    beyond: usize,
    /// Combinations that were made.
    made: usize,
    /// Not all combinations were made.
    cut: bool,
}

impl<'p> List<'p> {
    fn new(image: &'p Reference) -> Self {
        Self { image, kept: Vec::new(), places: HashMap::new(), beyond: 0, made: 0, cut: false }
    }

    /// Puts a place at the end, or adds an origin to the place that is there, whatever spelling of the host either
    /// uses. What is the Pod's own image is spelled as the Pod spells it: nothing is rewritten for that. Returns its
    /// number; numbers from [`MOST_ALTERNATIVES`] on are not kept.
    fn offer(&mut self, reference: Reference, origin: Origin, secret: Option<SecretUse>) -> usize {
        self.made += 1;
        let known = if self.places.is_empty() {
            self.kept.iter().position(|known| known.reference.is_same_image(&reference))
        } else {
            self.places.get(&reference.key()).copied()
        };
        if let Some(known) = known {
            self.merge(known, || origin, || secret);
            return known;
        }
        let number = self.kept.len() + self.beyond;
        if number == FEW {
            let kept = self.kept.iter().enumerate();
            self.places.extend(kept.map(|(number, one)| (one.reference.key(), number)));
        }
        if number >= FEW {
            self.places.insert(reference.key(), number);
        }
        if number < MOST_ALTERNATIVES {
            let is_own = reference.is_same_image(self.image);
            let reference = if is_own { self.image.clone() } else { reference };
            self.kept.push(Alternative::new(reference, origin, secret));
        } else {
            self.beyond += 1;
        }
        number
    }

    fn merge(
        &mut self,
        number: usize,
        origin: impl FnOnce() -> Origin,
        secret: impl FnOnce() -> Option<SecretUse>,
    ) {
        if let Some(known) = self.kept.get_mut(number).filter(|known| !known.is_full()) {
            known.merge(origin(), secret());
        }
    }
}

/// Remarks for people, as many as they would read.
#[derive(Default)]
struct Notes {
    kept: Vec<String>,
    more: usize,
}

impl Notes {
    fn add(&mut self, note: impl FnOnce() -> String) {
        if self.kept.len() < MOST_NOTES {
            self.kept.push(note());
        } else {
            self.more += 1;
        }
    }

    fn finish(mut self) -> Vec<String> {
        if self.more > 0 {
            self.kept.push(format!("{} more remarks are left out", self.more));
        }
        self.kept
    }
}

fn used(policy: &Policy, secret: Option<&SecretName>) -> Option<SecretUse> {
    secret.map(|secret| SecretUse { secret: secret.clone(), by: Arc::clone(&policy.id) })
}
