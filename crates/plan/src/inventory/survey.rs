//! One pass over all Pods: counts, the tags that the watch is to look at, the contents that are to be read, and what
//! Pods are to say of their image volumes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use jiff::Timestamp;

use super::{
    Change, Expected, FindingKind, NamespaceImage, PodRows, PodView, Resolutions, Resolved, Role, Row,
    Source, State, UseView, VolumeDigest, VolumeDigests, change,
};
use crate::pod_record::Place;
use crate::usage::Holder;

/// A Pod that has not started for so long does not start, in seconds.
const NOT_STARTED: i64 = 5 * 60;

/// How long the annotation of a Pod waits for registries that do not answer, in seconds.
const PATIENCE: i64 = 10 * 60;

/// Images that the watch is asked to look at, and users of one image whose Secrets are tried.
const MOST_LOOKS: usize = 4096;
const MOST_HOLDERS: usize = 8;

/// Contents that are read before the next pass.
const MOST_READS: usize = 64;

/// A Pod of the pass. `P` is what it is known by to those who read with its Secrets.
#[derive(Debug)]
pub struct Surveyed<'s, 'a, P> {
    pub pod: &'s P,
    pub view: &'s PodView<'a>,
    pub found: &'s PodRows<'a>,
    pub holder: &'s Holder,
}

/// An image that the watch is to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageWish {
    pub image: Reference,
    pub holders: Vec<Holder>,
    /// When it was last looked at. None: something waits for a first look.
    pub last: Option<Timestamp>,
}

/// A digest whose content is wanted, as a Pod could read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentRead<P> {
    /// Images in whose repositories it may be.
    pub images: Vec<Reference>,
    pub pod: P,
}

/// Digests of Pods other than the one that their tag had when it was last looked at.
#[derive(Debug, Default)]
struct Doubt {
    /// Of Pods that came after that look, and before.
    newer: HashSet<Digest>,
    older: HashSet<Digest>,
}

/// What a pass comes to.
#[derive(Debug)]
pub struct Survey<'k, P> {
    now: i64,
    resolutions: &'k Resolutions,
    pub states: BTreeMap<State, usize>,
    /// Of mounts of image volumes.
    pub sources: BTreeMap<Source, usize>,
    pub findings: BTreeMap<FindingKind, usize>,
    /// Pods that wait for a container that mounts an image volume.
    pub not_started: usize,
    /// Some digests are compared through an index, for which platforms have to be known.
    pub compares_platforms: bool,
    reads: HashMap<Digest, ContentRead<P>>,
    wishes: BTreeMap<NamespaceImage, ImageWish>,
    doubts: BTreeMap<NamespaceImage, Doubt>,
    /// Digests that are compared; gathered only if some content has to go.
    in_use: Option<HashSet<Digest>>,
}

impl<'k, P: Clone> Survey<'k, P> {
    /// `gathers_digests`: contents have no more room, so it matters which digests are in use.
    pub fn new(resolutions: &'k Resolutions, now: Timestamp, gathers_digests: bool) -> Self {
        Self {
            now: now.as_second(),
            resolutions,
            states: BTreeMap::new(),
            sources: BTreeMap::new(),
            findings: BTreeMap::new(),
            not_started: 0,
            compares_platforms: false,
            reads: HashMap::new(),
            wishes: BTreeMap::new(),
            doubts: BTreeMap::new(),
            in_use: gathers_digests.then(HashSet::new),
        }
    }

    pub fn add(&mut self, surveyed: &Surveyed<'_, '_, P>) {
        let Surveyed { view, found, .. } = surveyed;
        for finding in &found.findings {
            *self.findings.entry(finding.kind).or_default() += 1;
        }
        if waits_for_volume(view, self.now) {
            self.not_started += 1;
        }
        let annotated = view.volume_digests.map(VolumeDigests::read).unwrap_or_default();
        for row in &found.rows {
            *self.states.entry(row.state).or_default() += 1;
            if row.role == Role::Volume {
                *self.sources.entry(row.source).or_default() += 1;
            }
            self.compare(surveyed.pod, row);
            self.look(surveyed, row, &annotated);
        }
    }

    /// Takes note of digests that are compared.
    fn compare(&mut self, pod: &P, row: &Row<'_>) {
        let expected = row.expected.as_ref().map(|expected| expected.digest);
        let reported = row.reported.as_ref().and_then(|(_, reported)| reported.digest());
        self.compares_platforms |= expected.is_some() && reported.is_some() && expected != reported;
        if let Some(in_use) = &mut self.in_use {
            in_use.extend(expected.into_iter().chain(reported));
        }
        if row.reads.is_empty() {
            return;
        }
        let Ok(image) = Reference::parse(row.routed) else { return };
        for digest in &row.reads {
            // What runs may be from elsewhere.
            let elsewhere = row.reported_in(digest).filter(|other| other.name() != image.name());
            self.read(*digest, std::iter::once(image.clone()).chain(elsewhere).collect(), pod);
        }
    }

    /// Has the content of a digest read.
    pub fn read(&mut self, digest: Digest, images: Vec<Reference>, pod: &P) {
        let reading = || ContentRead { images, pod: pod.clone() };
        self.reads.entry(digest).or_insert_with(reading);
        if let Some(in_use) = &mut self.in_use {
            in_use.insert(digest);
        }
    }

    /// Has tags looked at: of every image volume, of images that are pinned, and of others that the watch saw with
    /// another digest; as they are used and, in order to know whether they have moved, as they were asked for. What an
    /// annotation says of a volume is looked at as well, while nothing else is known of it.
    fn look(&mut self, surveyed: &Surveyed<'_, '_, P>, row: &Row<'_>, annotated: &VolumeDigests) {
        let (Ok(routed), Ok(requested)) = (Reference::parse(row.routed), Reference::parse(&row.requested))
        else {
            return;
        };
        let is_volume = row.role == Role::Volume;
        if is_volume && routed.digest().is_none() {
            if let Some(claimed) = claimed(row, annotated) {
                self.wish(surveyed, claimed, true);
            }
            self.wish(surveyed, routed.clone(), row.expected.is_none() || row.asks_tag);
        } else if row.asks_tag {
            self.wish(surveyed, routed.clone(), true);
        }
        let is_pinned = routed.digest().is_some();
        if requested.digest().is_none() && (is_pinned || is_volume) && requested != routed {
            self.doubt(surveyed, row, &requested);
            self.wish(surveyed, requested, false);
        } else if requested.digest().is_none()
            && !is_volume
            && self.may_have_moved(surveyed.view, row, &requested)
        {
            self.wish(surveyed, requested, false);
        }
    }

    /// Whether looks on behalf of cluster-scoped objects saw another digest of a tag than the one that runs. They may
    /// have been made with Secrets of another namespace, so the tag is looked at once more, with those of this one.
    fn may_have_moved(&self, pod: &PodView<'_>, row: &Row<'_>, tag: &Reference) -> bool {
        let runs = row.reported.as_ref().and_then(|(_, reported)| reported.digest());
        let seen = || self.resolutions.seen_for_cluster(tag);
        runs.is_some_and(|runs| seen().is_some_and(|seen| seen.at > pod.created && seen.digest != runs))
    }

    /// Takes note of a Pod that may have got its digest after the last look at the tag.
    fn doubt(&mut self, surveyed: &Surveyed<'_, '_, P>, row: &Row<'_>, tag: &Reference) {
        let namespace = &surveyed.holder.namespace;
        let (Some(expected), Some(seen)) = (&row.expected, self.resolutions.now(namespace, tag)) else {
            return;
        };
        let last = self.resolutions.last_look(namespace, tag).map_or(0, Timestamp::as_second);
        if seen.digest == expected.digest {
            return;
        }
        let doubt = self.doubts.entry((Arc::clone(namespace), tag.key())).or_default();
        let digests = if last < surveyed.view.created { &mut doubt.newer } else { &mut doubt.older };
        digests.insert(expected.digest);
    }

    /// `urgent`: something waits for it that was not looked at yet.
    fn wish(&mut self, surveyed: &Surveyed<'_, '_, P>, image: Reference, urgent: bool) {
        let (view, holder) = (surveyed.view, surveyed.holder);
        let key = (Arc::clone(&holder.namespace), image.key());
        let last = self.resolutions.last_look(&holder.namespace, &image);
        let pending = urgent && last.is_none_or(|last| last.as_second() < view.created);
        let wish = self.wishes.entry(key).or_insert_with(|| ImageWish { image, holders: Vec::new(), last });
        if pending {
            wish.last = None;
        }
        if wish.holders.len() < MOST_HOLDERS
            && wish.holders.iter().all(|known| known.pull_secrets != holder.pull_secrets)
        {
            wish.holders.push(holder.clone());
        }
    }

    /// Decides about the annotation of a Pod.
    pub fn annotation(&self, surveyed: &Surveyed<'_, '_, P>) -> Change {
        let Surveyed { view, found, holder, .. } = surveyed;
        let annotated = view.volume_digests.map(VolumeDigests::read).unwrap_or_default();
        let is_old = self.now.saturating_sub(view.created) > PATIENCE;
        // Nothing was looked at while no replica led.
        let waits = self.now.saturating_sub(view.created.max(self.resolutions.begun())) <= PATIENCE;
        let mut volumes: Vec<VolumeDigest<'_>> = Vec::new();
        for row in found.rows.iter().filter(|row| row.role == Role::Volume) {
            let reported = row.source == Source::Kubelet;
            if let Some(known) = volumes.iter_mut().find(|volume| volume.name == row.name) {
                known.reported |= reported;
                continue;
            }
            let expected = row.expected.as_ref().map(|expected| expected.digest);
            let namespace = &holder.namespace;
            let claim = claimed(row, &annotated);
            let unproven =
                claim.is_some_and(|claim| self.resolutions.has(namespace, &claim, view.created).is_none());
            let unasked = || {
                Reference::parse(row.routed).is_ok_and(|image| {
                    let last = self.resolutions.last_look(namespace, &image);
                    let silent = !is_old && self.resolutions.is_silent(namespace, &image);
                    silent || last.is_none_or(|last| last.as_second() < view.created)
                })
            };
            let pending = unproven || waits && expected.is_none() && unasked();
            volumes.push(VolumeDigest { name: row.name, image: row.routed, reported, expected, pending });
        }
        if volumes.is_empty() && view.volume_digests.is_none() {
            return Change::Leave;
        }
        change(view.volume_digests, &volumes, is_old)
    }

    /// The images that anything wants to know of.
    pub fn wanted(&self) -> HashSet<NamespaceImage> {
        self.wishes.keys().cloned().collect()
    }

    pub fn in_use(&self) -> Option<&HashSet<Digest>> {
        self.in_use.as_ref()
    }

    /// What the watch is to look at, those that something waits for first, then those that were not looked at for
    /// longest; and how many are left out.
    pub fn looks(&mut self) -> (Vec<(NamespaceImage, ImageWish)>, usize) {
        for (key, doubt) in std::mem::take(&mut self.doubts) {
            // A digest that an older Pod has was known before the look, so the tag has moved since.
            let wish = self.wishes.get_mut(&key).filter(|_| !doubt.newer.is_subset(&doubt.older));
            if let Some(wish) = wish {
                wish.last = None;
            }
        }
        let mut looks: Vec<_> = std::mem::take(&mut self.wishes).into_iter().collect();
        let omitted = looks.len().saturating_sub(MOST_LOOKS);
        if omitted > 0 {
            looks.sort_by_key(|(_, wish)| wish.last);
            looks.truncate(MOST_LOOKS);
        }
        (looks, omitted)
    }

    /// Digests whose content would tell more.
    pub fn reads(&self) -> impl Iterator<Item = &Digest> {
        self.reads.keys()
    }

    /// The contents to read before the next pass; `is_due` says of a digest whether it can be read now.
    pub fn readings(&mut self, is_due: impl Fn(&Digest) -> bool) -> Vec<(Digest, ContentRead<P>)> {
        let reads = std::mem::take(&mut self.reads);
        reads.into_iter().filter(|(digest, _)| is_due(digest)).take(MOST_READS).collect()
    }
}

/// Whether a container that mounts an image volume should long have been made, and is not. While an init container
/// runs, the others have their turn later; a Pod without a node waits for something else.
fn waits_for_volume(pod: &PodView<'_>, now: i64) -> bool {
    let initialises =
        |one: &UseView<'_>| matches!(one.place, Place::Init(_)) && !one.sidecar && one.created && !one.ended;
    let waits = |one: &UseView<'_>| one.mounts_images && !one.created && !one.ended;
    now.saturating_sub(pod.created) > NOT_STARTED
        && pod.node.is_some()
        && pod.images.iter().any(waits)
        && !pod.images.iter().any(initialises)
}

/// What annotations say of a volume of which nothing else is known.
fn claimed(row: &Row<'_>, annotated: &VolumeDigests) -> Option<Reference> {
    let image = Reference::parse(row.routed).ok()?;
    let digest = match &row.expected {
        None => annotated.of(row.name, &image)?,
        Some(Expected { digest, resolved: Resolved::Annotation }) => *digest,
        Some(_) => return None,
    };
    Some(image.without_tag().with_digest(&digest))
}
