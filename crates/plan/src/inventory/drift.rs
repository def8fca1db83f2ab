//! Images that are not what their references suggest: replicas that run different content of one tag, a tag that has
//! moved since, and a mirror that holds something else than its source.
//!
//! Most images of most workloads have not drifted, so Pods are gone through twice: [`Suspects`] keeps a few bytes for
//! each image of a workload and finds those of which more than one digest is around, [`Drifts`] takes up these alone.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use fairlead_domain::digest::Digest;
use fairlead_domain::platform::Platform;
use fairlead_domain::reference::Reference;
use serde::Serialize;

use super::compare::{Held, Judge};
use super::{Contents, DriftedRevision, PodView, Reported, Role, Row, SeenDigest};

/// Different contents that are told apart for one image of a workload.
const MOST_CONTENTS: usize = 8;
/// Revisions that are told apart for one content.
const MOST_REVISIONS: usize = 16;
/// Images with drift that are kept.
const MOST_DRIFTS: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DriftKind {
    /// Replicas of one workload run different content of one tag.
    Replicas,
    /// The tag names another digest now than the one that runs.
    Upstream,
    /// Places that are declared to hold the same image do not.
    Mirror,
}

impl DriftKind {
    pub const ALL: [Self; 3] = [Self::Replicas, Self::Upstream, Self::Mirror];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replicas => "replicas",
            Self::Upstream => "upstream",
            Self::Mirror => "mirror",
        }
    }

    /// The reason of its event.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Replicas => "ReplicasDiffer",
            Self::Upstream => "TagMoved",
            Self::Mirror => "MirrorDiffers",
        }
    }
}

/// One image of one workload that is not what its reference suggests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    pub kind: DriftKind,
    pub namespace: String,
    pub workload_kind: String,
    pub workload: String,
    /// Of the container, or `volume:` and the name of the volume.
    pub image_of: String,
    pub image: String,
    pub message: String,
    /// The digests in question, the one that most replicas run first.
    pub digests: Vec<String>,
    /// One Pod of those concerned.
    pub pod: String,
    /// Of each content that has drifted, the revisions whose Pods run it.
    #[serde(skip)]
    pub revisions: Vec<Vec<DriftedRevision>>,
}

/// What is known besides Pods of images in use.
pub struct Current<'k> {
    pub contents: &'k Contents,
    /// Digests that will not be read.
    pub given_up: &'k dyn Fn(&Digest) -> bool,
    /// What a registry says that an image of a namespace is today, where that is known.
    pub now: &'k dyn Fn(&str, &str) -> Option<SeenDigest>,
    /// Which places of an image of a namespace differ today, in words; none where they were not compared.
    pub places: &'k dyn Fn(&str, &str) -> Option<Vec<String>>,
}

impl std::fmt::Debug for Current<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Current").field("contents", &self.contents.len()).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct DriftKey<'a> {
    namespace: &'a str,
    workload_kind: &'a str,
    workload: &'a str,
    is_volume: bool,
    name: &'a str,
    image: Cow<'a, str>,
}

impl<'a> DriftKey<'a> {
    /// What has a digest in its name cannot drift.
    fn new(pod: &PodView<'a>, row: &Row<'a>) -> Option<Self> {
        if Reference::parse(&row.requested).is_ok_and(|image| image.digest().is_some()) {
            return None;
        }
        let (workload_kind, workload) = pod.workload();
        let (is_volume, name) = (row.role == Role::Volume, row.name);
        let image = row.requested.clone();
        Some(Self { namespace: pod.namespace, workload_kind, workload, is_volume, name, image })
    }

    fn image_of(&self) -> String {
        if self.is_volume { format!("volume:{}", self.name) } else { self.name.to_owned() }
    }

    fn hash(&self) -> u64 {
        hash(self)
    }
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// What a row's node holds: what the kubelet reports, unless it may be about an earlier container. Of image volumes
/// kubelets mostly say nothing, so what is expected counts.
fn held(row: &Row<'_>) -> Option<Reported> {
    let confirmed = row.mount.is_none_or(|mount| !mount.unconfirmed);
    match &row.reported {
        Some((_, Reported::Manifest { digest, .. })) if confirmed => {
            Some(Reported::Manifest { repository: None, digest: *digest })
        }
        Some((_, Reported::Id(id))) if confirmed => Some(Reported::Id(*id)),
        _ => row
            .expected
            .as_ref()
            .filter(|_| row.role == Role::Volume)
            .map(|expected| Reported::Manifest { repository: None, digest: expected.digest }),
    }
}

/// The images of workloads that may have drifted.
#[derive(Debug, Default)]
pub struct Suspects {
    /// What the first replica of each image holds, as a hash.
    first: HashMap<u64, u64>,
    found: HashSet<u64>,
}

impl Suspects {
    /// Takes up an image of a Pod.
    pub fn add(&mut self, pod: &PodView<'_>, row: &Row<'_>, current: &Current<'_>) {
        let Some(key) = DriftKey::new(pod, row) else { return };
        let hashed = key.hash();
        if self.found.contains(&hashed) {
            return;
        }
        let held = held(row);
        let holds = hash((held.as_ref().and_then(Reported::digest), pod.platform));
        let first = self.first.get(&hashed).copied();
        if first == Some(holds) && row.differs.is_empty() {
            return;
        }
        let is_unlike = held.is_some() && first.is_some_and(|first| first != holds);
        if held.is_some() {
            self.first.entry(hashed).or_insert(holds);
        }
        let differs = || {
            let places = (current.places)(key.namespace, &key.image);
            places.map_or(!row.differs.is_empty(), |places| !places.is_empty())
        };
        let moved = || {
            let now = (current.now)(key.namespace, &key.image);
            held.as_ref().is_some_and(|held| now.is_some_and(|now| held.digest() != Some(now.digest)))
        };
        if is_unlike || differs() || moved() {
            self.found.insert(hashed);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    fn has(&self, key: &DriftKey<'_>) -> bool {
        self.found.contains(&key.hash())
    }
}

/// A Pod that runs the image.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Replica<'a> {
    pod: &'a str,
    /// As the specification has it.
    routed: &'a str,
    reported: Reported,
    platform: Option<&'a Platform>,
    /// In seconds since 1970.
    created: i64,
}

/// Replicas that hold the same.
#[derive(Debug)]
struct Copies<'a> {
    /// The oldest.
    first: Replica<'a>,
    count: usize,
    /// Their controllers and revisions, and when the oldest replica of each was created.
    revisions: Vec<((&'a str, &'a str), i64)>,
}

impl<'a> Copies<'a> {
    fn add(&mut self, replica: Replica<'a>, revision: Option<(&'a str, &'a str)>) {
        self.count += 1;
        self.note(revision, replica.created);
        if replica.created < self.first.created {
            self.first = replica;
        }
    }

    fn note(&mut self, revision: Option<(&'a str, &'a str)>, created: i64) {
        let Some(revision) = revision else { return };
        let has_room = self.revisions.len() < MOST_REVISIONS;
        match self.revisions.iter_mut().find(|(known, _)| *known == revision) {
            Some((_, oldest)) => *oldest = created.min(*oldest),
            None if has_room => self.revisions.push((revision, created)),
            None => {}
        }
    }

    /// The revisions with a replica from before a time.
    fn revisions(&self, before: i64) -> Vec<DriftedRevision> {
        let old = self.revisions.iter().filter(|(_, created)| *created < before);
        old.map(|((controller, revision), _)| DriftedRevision {
            controller: (*controller).to_owned(),
            revision: (*revision).to_owned(),
        })
        .collect()
    }
}

impl Replica<'_> {
    fn held(&self) -> Held<'_> {
        Held { reported: &self.reported, platform: self.platform }
    }

    /// The digest that the specification holds it to.
    fn pinned(&self) -> Option<Digest> {
        Reference::parse(self.routed).ok()?.digest()
    }

    fn digest(&self) -> String {
        self.reported.digest().map(|digest| digest.to_string()).unwrap_or_default()
    }
}

/// A place that held another digest when a Pod was admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OtherPlace<'a> {
    image: String,
    text: String,
    used: &'a str,
}

#[derive(Debug, Default)]
struct Uses<'a> {
    contents: Vec<Copies<'a>>,
    places: Vec<OtherPlace<'a>>,
    pod: &'a str,
}

/// A digest whose content would tell more, and where it can be read: in the repository of an image, as a Pod could.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriftRead<'a> {
    pub digest: Digest,
    pub image: Cow<'a, str>,
    pub namespace: &'a str,
    pub pod: &'a str,
}

/// What drifts.
#[derive(Debug, Default)]
pub struct DriftFindings<'a> {
    pub drifts: Vec<Drift>,
    pub reads: Vec<DriftRead<'a>>,
    /// Images of which it cannot be told, in words.
    pub undecided: Vec<String>,
}

/// Goes through Pods and finds drift.
#[derive(Debug, Default)]
pub struct Drifts<'a>(BTreeMap<DriftKey<'a>, Uses<'a>>);

impl<'a> Drifts<'a> {
    /// Takes up an image of a Pod, if it is suspected.
    pub fn add(&mut self, pod: &PodView<'a>, row: &Row<'a>, suspects: &Suspects) {
        let Some(key) = DriftKey::new(pod, row).filter(|key| suspects.has(key)) else { return };
        let uses = self.0.entry(key).or_default();
        if uses.pod.is_empty() || pod.name < uses.pod {
            uses.pod = pod.name;
        }
        for difference in &row.differs {
            let text = format!("{} holds {} ({})", difference.image, difference.digest, difference.by);
            let known = uses.places.iter().any(|place| place.text == text);
            if !known && uses.places.len() < MOST_CONTENTS {
                uses.places.push(OtherPlace { image: difference.image.clone(), text, used: row.routed });
            }
        }
        let Some(reported) = held(row) else { return };
        let same = |known: &&mut Copies<'_>| {
            known.first.reported.digest() == reported.digest() && known.first.platform == pod.platform
        };
        let has_room = uses.contents.len() < MOST_CONTENTS;
        let known = uses.contents.iter_mut().find(same);
        let replica = Replica {
            pod: pod.name,
            routed: row.routed,
            reported,
            platform: pod.platform,
            created: pod.created,
        };
        match known {
            Some(known) => known.add(replica, pod.revision()),
            None if has_room => {
                let mut copies = Copies { first: replica, count: 1, revisions: Vec::new() };
                copies.note(pod.revision(), pod.created);
                uses.contents.push(copies);
            }
            None => {}
        }
    }

    /// What drifts, and the digests whose content would tell more.
    pub fn finish(self, current: &Current<'_>) -> DriftFindings<'a> {
        let judge = Judge { contents: current.contents, given_up: current.given_up };
        let mut found = DriftFindings::default();
        for (key, mut uses) in self.0 {
            uses.contents.sort_by(|one, other| {
                other.count.cmp(&one.count).then_with(|| one.first.pod.cmp(other.first.pod))
            });
            let judged = Judged { key: &key, uses: &uses, judge: &judge };
            judged.replicas(&mut found);
            if let Some(now) = (current.now)(key.namespace, &key.image) {
                judged.upstream(now, &mut found);
            }
            found.drifts.extend(judged.mirror(current));
            if found.drifts.len() >= MOST_DRIFTS {
                break;
            }
        }
        found.drifts.sort();
        found
    }
}

/// What comparing all contents of an image came to.
struct Pairs<'s, 'a> {
    /// Those that differ, of which more replicas run first.
    differing: Vec<(&'s Copies<'a>, &'s Copies<'a>)>,
    /// Of some it cannot be told.
    unknown: bool,
    reads: Vec<Digest>,
}

/// One image of a workload, judged.
struct Judged<'s, 'a> {
    key: &'s DriftKey<'a>,
    uses: &'s Uses<'a>,
    judge: &'s Judge<'s>,
}

impl<'a> Judged<'_, 'a> {
    /// `of`: the contents that have drifted. Only replicas from before a time have.
    fn drift(
        &self,
        kind: DriftKind,
        message: String,
        digests: Vec<String>,
        (of, before): (&[&Copies<'_>], i64),
    ) -> Drift {
        let DriftKey { namespace, workload_kind, workload, image, .. } = self.key;
        Drift {
            kind,
            namespace: (*namespace).to_owned(),
            workload_kind: (*workload_kind).to_owned(),
            workload: (*workload).to_owned(),
            image_of: self.key.image_of(),
            image: image.clone().into_owned(),
            message,
            digests,
            pod: of.first().map_or(self.uses.pod, |copies| copies.first.pod).to_owned(),
            revisions: of.iter().map(|copies| copies.revisions(before)).collect(),
        }
    }

    fn undecided(&self, what: &str) -> String {
        let DriftKey { namespace, workload_kind, workload, image, .. } = self.key;
        format!("{}: {what} of {image} in {namespace}/{workload_kind}/{workload}", self.key.image_of())
    }

    /// Where a digest can be read: what a replica runs in the repository that it runs it from, anything else in that
    /// of the image.
    fn read(&self, digest: Digest) -> DriftRead<'a> {
        let mut replicas = self.uses.contents.iter().map(|copies| &copies.first);
        let (image, pod) = match replicas.find(|one| one.reported.digest() == Some(digest)) {
            Some(replica) => (Cow::Borrowed(replica.routed), replica.pod),
            None => (self.key.image.clone(), self.uses.pod),
        };
        DriftRead { digest, image, namespace: self.key.namespace, pod }
    }

    /// Compares each content with each other: what replicas of one platform run says nothing about those of another.
    fn pairs(&self) -> Pairs<'_, 'a> {
        let contents = &self.uses.contents;
        // Contents of one number are known to be the same, perhaps by way of others.
        let mut same: Vec<usize> = (0..contents.len()).collect();
        let (mut differing, mut open) = (Vec::new(), Vec::new());
        for (number, one) in contents.iter().enumerate() {
            for (of, other) in contents.iter().enumerate().skip(number + 1) {
                // Two revisions that are pinned differ rightly: a rollout is under way.
                let pins = [one, other].map(|copies| copies.first.pinned());
                if let [Some(one), Some(other)] = pins
                    && one != other
                {
                    continue;
                }
                let (differs, reads) = self.judge.between(one.first.held(), other.first.held());
                if differs == Some(true) {
                    differing.push((one, other));
                }
                if differs == Some(false) {
                    let of_both = [number, of].map(|at| same.get(at).copied().unwrap_or(at));
                    let joined = |known: usize| if of_both.contains(&known) { number } else { known };
                    same = same.into_iter().map(joined).collect();
                } else {
                    open.push((number, of, differs, reads));
                }
            }
        }
        let known = |(one, other, differs, _): &(usize, usize, Option<bool>, _)| {
            differs.is_some() || same.get(*one) != same.get(*other)
        };
        open.retain(known);
        let unknown = open.iter().any(|(_, _, differs, _)| differs.is_none());
        let mut reads: Vec<Digest> = Vec::new();
        for digest in open.into_iter().flat_map(|(.., reads)| reads) {
            if !reads.contains(&digest) {
                reads.push(digest);
            }
        }
        Pairs { differing, unknown, reads }
    }

    fn replicas(&self, found: &mut DriftFindings<'a>) {
        let Pairs { differing, unknown, reads } = self.pairs();
        found.reads.extend(reads.into_iter().map(|digest| self.read(digest)));
        let Some((first, other)) = differing.first().copied() else {
            if unknown {
                found.undecided.push(self.undecided("whether replicas run the same content"));
            }
            return;
        };
        let DriftKey { workload_kind, workload, image, .. } = self.key;
        let message = format!(
            "{} of {workload_kind}/{workload} runs different content of {image}: {} in {} Pods ({}, for instance), {} \
             in {} ({}); restart the workload, or pin it with fairlead.dev/pin",
            self.key.image_of(),
            first.first.reported,
            first.count,
            first.first.pod,
            other.first.reported,
            other.count,
            other.first.pod,
        );
        let differs = |copies: &&Copies<'_>| {
            differing.iter().any(|(one, other)| std::ptr::eq(*one, *copies) || std::ptr::eq(*other, *copies))
        };
        let all: Vec<_> = self.uses.contents.iter().filter(differs).collect();
        let digests = all.iter().map(|copies| copies.first.digest()).collect();
        found.drifts.push(self.drift(DriftKind::Replicas, message, digests, (&all, i64::MAX)));
    }

    /// What the registry said before a Pod came says nothing about the Pod: its digest may be the newer one.
    fn upstream(&self, now: SeenDigest, found: &mut DriftFindings<'a>) {
        let SeenDigest { digest: now, at } = now;
        let (mut moved, mut unknown) = (Vec::new(), false);
        let before = self.uses.contents.iter().filter(|copies| copies.first.created < at);
        for copies in before {
            let (differs, reads) = self.judge.since(&now, copies.first.held());
            found.reads.extend(reads.into_iter().map(|digest| self.read(digest)));
            unknown |= differs.is_none();
            if differs == Some(true) {
                moved.push(copies);
            }
        }
        let Some(Copies { first: replica, .. }) = moved.first() else {
            if unknown {
                found.undecided.push(self.undecided("whether the tag has moved"));
            }
            return;
        };
        let DriftKey { workload_kind, workload, image, .. } = self.key;
        let message = format!(
            "{image} is {now} now, and {} of {workload_kind}/{workload} runs {}: the tag has moved since; {} is one \
             of its Pods",
            self.key.image_of(),
            replica.reported,
            replica.pod,
        );
        let digests = vec![replica.digest(), now.to_string()];
        found.drifts.push(self.drift(DriftKind::Upstream, message, digests, (&moved, at)));
    }

    /// What comparing the places found; where they were not compared, what admission found, unless registries say
    /// otherwise by now.
    fn mirror(&self, current: &Current<'_>) -> Option<Drift> {
        let Self { key, uses, .. } = self;
        let agree = |place: &&OtherPlace<'_>| {
            let now = |image: &str| (current.now)(key.namespace, image).map(|seen| seen.digest);
            now(&place.image).is_some_and(|other| now(place.used) == Some(other))
        };
        let differing = (current.places)(key.namespace, &key.image).unwrap_or_else(|| {
            uses.places.iter().filter(|place| !agree(place)).map(|place| place.text.clone()).collect()
        });
        let first = differing.first()?;
        let more = match differing.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let message = format!(
            "places of {} hold different digests: {first}{more}; the policies that offer them say so in their \
             condition Consistent",
            key.image,
        );
        Some(self.drift(DriftKind::Mirror, message, Vec::new(), (&[], i64::MAX)))
    }
}
