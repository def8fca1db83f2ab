//! Going through Pods, once for all selections.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use fairlead_api::names;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use fairlead_domain::selector::{Bits, FilterSet, PodFacts, PodMatcherSet};

use crate::pinning;
use crate::pod_record::{PodAnnotations, RecordedOriginals};

use super::{Holder, MOST_HOLDERS, MOST_HOLDERS_OF_NAMESPACE, PodUse, Selection, Used};

/// Selections, and what was found for them so far.
#[derive(Debug)]
pub(super) struct Gathering<'a> {
    pods: PodMatcherSet,
    /// Those that look at the Pods of all namespaces, and those that look at one.
    everywhere: UsageScope,
    namespaces: HashMap<Box<str>, UsageScope>,
    images: Images,
    /// Selections that have to know who ran an image.
    proofs: Bits,
    /// What the annotations of the Pod before said. Pods of one revision mostly come one after the other.
    claims: (PodAnnotations<'a>, RecordedOriginals),
    /// By selection, then by number of the image. Boxed, because a map has room to spare for what it holds.
    found: Vec<HashMap<u32, Box<FoundImage>>>,
}

impl<'a> Gathering<'a> {
    pub(super) fn new(selections: &[Selection<'_>]) -> Self {
        let mut looking: HashMap<Option<&str>, Vec<usize>> = HashMap::new();
        for (number, selection) in selections.iter().enumerate() {
            looking.entry(selection.namespace).or_default().push(number);
        }
        let everywhere = UsageScope::new(0, looking.remove(&None).unwrap_or_default(), selections);
        let named = looking.into_iter().filter_map(|(namespace, members)| Some((namespace?, members)));
        let namespaces = (1..).zip(named).map(|(number, (namespace, members))| {
            (namespace.into(), UsageScope::new(number, members, selections))
        });
        let mut proofs = Bits::new(selections.len());
        for (number, _) in selections.iter().enumerate().filter(|(_, selection)| selection.proofs) {
            proofs.insert(number);
        }
        Self {
            proofs,
            pods: PodMatcherSet::new(selections.iter().map(|selection| selection.pods)),
            everywhere,
            namespaces: namespaces.collect(),
            images: Images::default(),
            claims: (PodAnnotations::default(), RecordedOriginals::default()),
            found: selections.iter().map(|_| HashMap::new()).collect(),
        }
    }

    /// The selections that a Pod concerns, whatever its images are.
    fn concerned(&self, pod: &PodUse<'_>) -> Bits {
        let mut looking = self.everywhere.members.clone();
        if let Some(own) = self.namespaces.get(&**pod.namespace) {
            looking.add(&own.members);
        }
        if !looking.is_empty() {
            looking.keep(&self.pods.matching(&pod.facts));
        }
        looking
    }

    pub(super) fn add(&mut self, pod: &PodUse<'a>) {
        let concerned = self.concerned(pod);
        if concerned.is_empty() {
            return;
        }
        let found = found(&pod.facts);
        if self.claims.0 != found {
            self.claims = (found, RecordedOriginals::read(&found));
        }
        let own = self.namespaces.get(&**pod.namespace);
        let holder = Arc::new(Holder {
            namespace: Arc::clone(pod.namespace),
            pull_secrets: Arc::clone(pod.pull_secrets),
            pod: Arc::clone(pod.name),
        });
        for used in &pod.images {
            let running = used.running.and_then(manifest_digest);
            let present = self.images.number(used.image, &|| Arc::clone(used.image));
            let claimed = self.claims.1.asked(&used.place, used.image);
            let pinned = claimed.and_then(|text| self.images.held(text, used.image));
            let asked = claimed.and_then(|text| self.images.number(text, &|| text.into())).or(present);
            let given = present.filter(|_| present != asked && present != pinned);
            for (number, original) in [(asked, true), (pinned, true), (given, false)] {
                let Some(image) = number else { continue };
                for scope in
                    [Some(&self.everywhere), own].into_iter().flatten().filter(|scope| !scope.is_empty())
                {
                    let passing = self.images.passing(image, scope);
                    for selection in passing.iter().filter(|passing| concerned.contains(**passing as usize)) {
                        if let Some(found) = self.found.get_mut(*selection as usize) {
                            let found = found.entry(image).or_default();
                            found.add(&holder, original, running);
                            // Annotations tell what was asked for, and authors of Pods can write them. The
                            // specification is what the kubelet pulled.
                            if self.proofs.contains(*selection as usize) && Some(image) == present {
                                found.run(pod, running);
                            }
                        }
                    }
                }
            }
        }
    }

    pub(super) fn finish(self) -> Vec<Vec<Used>> {
        let Self { images: Images { known, texts, .. }, found, .. } = self;
        // What only served to find images goes before the lists are made.
        drop(texts);
        let references: Vec<Reference> = known.into_iter().map(|image| image.reference).collect();
        // The images of one Pod have the same holders, and most images are of one Pod or of Pods that are alike.
        let mut distinct: HashMap<Vec<Arc<Holder>>, Arc<[Holder]>> = HashMap::new();
        let mut shared = |holders: Vec<Arc<Holder>>| {
            if let Some(known) = distinct.get(&holders) {
                return Arc::clone(known);
            }
            let list: Arc<[Holder]> = holders.iter().map(|holder| Holder::clone(holder)).collect();
            distinct.insert(holders, Arc::clone(&list));
            list
        };
        let mut list = |found: HashMap<u32, Box<FoundImage>>| {
            let mut used = Vec::with_capacity(found.len());
            used.extend(found.into_iter().filter_map(|(image, finding)| {
                let FoundImage { original, holders, running, ran } = *finding;
                Some(Used {
                    image: references.get(image as usize)?.clone(),
                    original,
                    holders: shared(holders),
                    running: running.agreed(),
                    ran: if ran.is_empty() { Arc::default() } else { ran.into_iter().collect() },
                })
            }));
            used.sort_unstable_by(|one, other| one.image.cmp(&other.image));
            used
        };
        found.into_iter().map(&mut list).collect()
    }

    /// How often an image was held against the filters of a scope.
    #[cfg(test)]
    pub(super) fn judged(&self) -> usize {
        self.images.known.iter().map(|image| image.passing.len()).sum()
    }
}

/// Selections that look at the same Pods, with their filters. Images are held against filters of their own namespace's
/// objects and of cluster-scoped ones only: a filter that takes long costs those whom it is about.
#[derive(Debug)]
struct UsageScope {
    number: u32,
    members: Bits,
    filters: FilterSet,
    /// The selection that each filter is of.
    selections: Vec<usize>,
}

impl UsageScope {
    fn new(number: u32, selections: Vec<usize>, all: &[Selection<'_>]) -> Self {
        let mut members = Bits::new(all.len());
        for selection in &selections {
            members.insert(*selection);
        }
        let filters = selections.iter().filter_map(|selection| all.get(*selection));
        Self { number, members, filters: FilterSet::new(filters.map(|one| one.images)), selections }
    }

    fn is_empty(&self) -> bool {
        self.selections.is_empty()
    }

    /// The selections whose filters an image passes.
    fn passed_by(&self, image: &Reference) -> Arc<[u32]> {
        let matching = self.filters.matching(image.forms().iter());
        let selections = matching.iter().filter_map(|filter| self.selections.get(filter));
        selections.filter_map(|selection| u32::try_from(*selection).ok()).collect()
    }
}

/// The annotations that tell what was asked for.
fn found<'a>(facts: &PodFacts<'a>) -> PodAnnotations<'a> {
    PodAnnotations {
        routes: facts.annotations.value(names::fairlead::ROUTES),
        originals: facts.annotations.value(names::kuik::ORIGINAL_IMAGES),
        ..PodAnnotations::default()
    }
}

/// The digest in an `imageID`. Without a repository it is the digest of a configuration, which no registry knows an
/// image by.
fn manifest_digest(image_id: &str) -> Option<Digest> {
    let (_, digest) = image_id.rsplit_once('@')?;
    digest.parse().ok()
}

/// Distinct images, by number.
#[derive(Debug, Default)]
struct Images {
    known: Vec<GatheredImage>,
    last_passed: Arc<[u32]>,
    /// Texts that were seen already; `None` for those that name no image.
    texts: HashMap<Arc<str>, Option<u32>>,
}

#[derive(Debug)]
struct GatheredImage {
    reference: Reference,
    /// Selections that its name passes, by the number of the scope that they are in.
    passing: Vec<(u32, Arc<[u32]>)>,
}

impl Images {
    fn number(&mut self, text: &str, shared: &dyn Fn() -> Arc<str>) -> Option<u32> {
        if let Some(number) = self.texts.get(text) {
            return *number;
        }
        let number = match Reference::parse(text) {
            Err(_) => None,
            Ok(reference) if reference.as_str() == text => self.add(reference),
            // The same image, written in full.
            Ok(reference) => self.number(reference.as_str(), &|| reference.as_str().into()),
        };
        self.texts.insert(shared(), number);
        number
    }

    /// What was asked for, held to the digest that it is pinned to: nodes will pull this again after the tag has moved.
    fn held(&mut self, asked: &str, image: &str) -> Option<u32> {
        if !image.contains('@') || asked.contains('@') {
            return None;
        }
        let digest = Reference::parse(image).ok()?.digest()?;
        let held = pinning::hold(&Reference::parse(asked).ok()?, &digest);
        self.number(held.as_str(), &|| held.as_str().into())
    }

    fn add(&mut self, reference: Reference) -> Option<u32> {
        let number = u32::try_from(self.known.len()).ok()?;
        self.known.push(GatheredImage { reference, passing: Vec::new() });
        Some(number)
    }

    fn passing(&mut self, number: u32, scope: &UsageScope) -> &[u32] {
        let Some(image) = self.known.get_mut(number as usize) else { return &[] };
        let known = image.passing.iter().position(|(of, _)| *of == scope.number);
        let place = known.unwrap_or_else(|| {
            let passed = scope.passed_by(&image.reference);
            // Images that come one after the other mostly pass the same filters.
            if passed != self.last_passed {
                self.last_passed = passed;
            }
            image.passing.reserve_exact(1);
            image.passing.push((scope.number, Arc::clone(&self.last_passed)));
            image.passing.len() - 1
        });
        image.passing.get(place).map_or(&[], |(_, passing)| &**passing)
    }
}

/// One image as one selection sees it.
#[derive(Debug, Default)]
struct FoundImage {
    original: bool,
    /// Shared by the images of a Pod.
    holders: Vec<Arc<Holder>>,
    running: Running,
    ran: BTreeSet<(Arc<str>, Digest)>,
}

impl FoundImage {
    fn add(&mut self, holder: &Arc<Holder>, original: bool, running: Option<Digest>) {
        self.original |= original;
        if let Some(digest) = running {
            self.running.add(digest);
        }
        self.hold(holder);
    }

    fn run(&mut self, pod: &PodUse<'_>, running: Option<Digest>) {
        let Some(digest) = running else { return };
        self.ran.insert((Arc::clone(pod.namespace), digest));
        if self.ran.len() > MOST_HOLDERS {
            self.ran.pop_last();
        }
    }

    /// Keeps the first holders of all that come, in whatever order they do.
    fn hold(&mut self, holder: &Arc<Holder>) {
        let position = self.holders.binary_search_by(|known| {
            same_or(&known.namespace, &holder.namespace)
                .then_with(|| same_or(&known.pull_secrets, &holder.pull_secrets))
        });
        match position {
            Ok(index) => {
                if let Some(known) = self.holders.get_mut(index)
                    && holder.pod < known.pod
                {
                    *known = Arc::clone(holder);
                }
            }
            Err(index) if index < MOST_HOLDERS => {
                let first = self.holders.partition_point(|known| known.namespace < holder.namespace);
                let end = self.holders.partition_point(|known| known.namespace <= holder.namespace);
                if end - first >= MOST_HOLDERS_OF_NAMESPACE {
                    if index >= end {
                        return;
                    }
                    self.holders.remove(end - 1);
                }
                self.holders.truncate(MOST_HOLDERS - 1);
                // Most images have one.
                self.holders.reserve_exact(1);
                self.holders.insert(index, Arc::clone(holder));
            }
            Err(_) => {}
        }
    }
}

/// Texts of Pods are mostly shared, and then equal without being looked at.
fn same_or<T: Ord + ?Sized>(one: &Arc<T>, other: &Arc<T>) -> Ordering {
    if Arc::ptr_eq(one, other) { Ordering::Equal } else { one.cmp(other) }
}

/// What Pods say they run.
#[derive(Debug, Default)]
enum Running {
    #[default]
    Unknown,
    /// Boxed, because there is one of these for each image and selection, and mostly nothing is known.
    One(Box<Digest>),
    Several,
}

impl Running {
    fn add(&mut self, digest: Digest) {
        *self = match self {
            Self::Unknown => Self::One(Box::new(digest)),
            Self::One(known) if **known == digest => return,
            Self::One(_) | Self::Several => Self::Several,
        };
    }

    fn agreed(self) -> Option<Digest> {
        match self {
            Self::One(digest) => Some(*digest),
            Self::Unknown | Self::Several => None,
        }
    }
}
