//! The annotations that healing reads and writes.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_api::names;
use fairlead_domain::reference::Reference;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::pod_record::{MOST_BYTES, PodAnnotations, Record, size_of};
use crate::pull_failure::PullFailure;

/// The only version there is. An annotation of another version is replaced.
const VERSION: u32 = 1;

/// How long after a patch the kubelet may repeat what it said of the image before: as long as it pulls.
const OLD_NEWS: SignedDuration = SignedDuration::from_mins(5);

/// Images that are remembered for one container; more than any record offers.
const MOST_TRIED: usize = 32;

/// The annotations of a Pod, as far as they matter here.
#[derive(Debug, Clone, Copy, Default)]
pub struct Written<'a> {
    /// The Pod has annotations, whichever.
    pub any: bool,
    /// Bytes of all annotations, keys and values.
    pub bytes: usize,
    /// `fairlead.dev/routes`
    pub routes: Option<&'a str>,
    /// `fairlead.dev/healed`
    pub healed: Option<&'a str>,
    /// `kuik.enix.io/original-images`
    pub originals: Option<&'a str>,
    /// `harbor.rewrite/original-upstreams`
    pub upstreams: Option<&'a str>,
    /// `harbor-reef/patched-containers`
    pub patched_containers: Option<&'a str>,
    /// `harbor-reef/patched`
    pub patched: Option<&'a str>,
}

/// An annotation that cannot be read, and is treated as if it were not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    pub annotation: &'static str,
    pub error: String,
}

impl<'a> Written<'a> {
    pub fn record(&self) -> Option<Record> {
        Record::parse(self.routes?)
    }

    /// Whether healing reads the same in both.
    pub(super) fn says_the_same(&self, other: &Written<'_>) -> bool {
        (self.routes, self.healed, self.originals, self.upstreams, self.patched_containers)
            == (other.routes, other.healed, other.originals, other.upstreams, other.patched_containers)
    }

    /// The annotations that a record consists of. `healed` and `patched` are what the others of healing come to.
    pub(super) fn found(&self, healed: &str, patched: &str) -> PodAnnotations<'a> {
        let found = PodAnnotations {
            routes: self.routes,
            originals: self.originals,
            upstreams: self.upstreams,
            other_bytes: 0,
        };
        let before = found.own_bytes()
            + size_of(names::fairlead::HEALED, self.healed)
            + size_of(names::reef::PATCHED_CONTAINERS, self.patched_containers);
        let after = size_of(names::fairlead::HEALED, Some(healed))
            + size_of(names::reef::PATCHED_CONTAINERS, Some(patched));
        PodAnnotations { other_bytes: self.bytes.saturating_sub(before) + after, ..found }
    }

    /// The original of each container, as the program that rewrote the images wrote it. Empty ones say nothing, and
    /// ones with blanks around them would be refused together with what is written beside them.
    pub fn upstreams(&self) -> BTreeMap<String, String> {
        let mut upstreams = read_upstreams(self.upstreams).unwrap_or_default();
        upstreams.retain(|_, image| is_trimmed(image));
        upstreams
    }

    /// Containers that were patched, in the order in which they were.
    pub fn patched_containers(&self) -> Vec<String> {
        read_patched(self.patched_containers).unwrap_or_default()
    }

    /// Until when a reason whose message names no image may be about the image that a container had before it was
    /// patched; none if it counts. A kubelet publishes the new image at once, beside the reason of the last attempt,
    /// which is kept while it pulls. An attempt that fails as well shows by what follows: `ImagePullBackOff` quotes the
    /// image. This is read from the Pod, so that a new leader knows it, too.
    pub fn old_news_until(&self, container: &str, waiting: &str, now: Timestamp) -> Option<Timestamp> {
        let is_vague = matches!(waiting, "ErrImagePull" | "RegistryUnavailable");
        let patched: Timestamp = self.patched.filter(|_| is_vague)?.parse().ok()?;
        let is_recent = now.duration_since(patched).abs() < OLD_NEWS;
        let is_patched = is_recent && self.patched_containers().iter().any(|name| name == container);
        patched.checked_add(OLD_NEWS).ok().filter(|_| is_patched)
    }

    /// What the Pod with this UID was given. An annotation that names another UID came with a template or a copy, and
    /// says nothing about this Pod.
    pub fn tried(&self, uid: &str) -> Tried {
        let tried = self.healed.and_then(Tried::parse).filter(|tried| *tried.uid == *uid);
        tried.unwrap_or_else(|| Tried::of(uid))
    }

    /// What cannot be read.
    pub(super) fn malformed(&self) -> Vec<Malformed> {
        let upstreams = match read_upstreams(self.upstreams) {
            Ok(upstreams) => {
                let blank = upstreams.iter().find(|(_, image)| !is_trimmed(image));
                blank.map(|(name, image)| {
                    format!("the image of container {name} has blanks around it: {image:?}")
                })
            }
            Err(error) => Some(error),
        };
        let unread = |is_unread: bool, what: &str| is_unread.then(|| format!("it is not {what}"));
        let patched = read_patched(self.patched_containers).is_none();
        let routes = self.routes.is_some() && self.record().is_none();
        let healed = self.healed.is_some_and(|text| Tried::parse(text).is_none());
        [
            (names::reef::ORIGINAL_UPSTREAMS, upstreams),
            (names::reef::PATCHED_CONTAINERS, unread(patched, "a JSON array of container names")),
            (names::fairlead::ROUTES, unread(routes, "a record that this version reads")),
            (names::fairlead::HEALED, unread(healed, "a list of images that this version reads")),
        ]
        .into_iter()
        .filter_map(|(annotation, error)| Some(Malformed { annotation, error: error? }))
        .collect()
    }
}

/// The API server refuses an image with blanks around it.
fn is_trimmed(image: &str) -> bool {
    image.trim() == image
}

/// None: it is there and cannot be read.
fn read_patched(text: Option<&str>) -> Option<Vec<String>> {
    match text.filter(|text| !text.trim().is_empty()) {
        Some(text) => serde_json::from_str::<Option<_>>(text).ok().map(Option::unwrap_or_default),
        None => Some(Vec::new()),
    }
}

/// All or nothing: a map with one member that is not a text is not used at all.
fn read_upstreams(text: Option<&str>) -> Result<BTreeMap<String, String>, String> {
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else { return Ok(BTreeMap::new()) };
    if text.len() > MOST_BYTES {
        return Err(format!("it is longer than {MOST_BYTES} bytes"));
    }
    let map: Option<BTreeMap<String, Option<String>>> = serde_json::from_str(text)
        .map_err(|error| format!("it must be a JSON object of container names and images: {error}"))?;
    let texts = map.unwrap_or_default().into_iter().filter_map(|(name, image)| Some((name, image?)));
    Ok(texts.filter(|(_, image)| !image.is_empty()).collect())
}

/// The images that each container of a Pod was given and could not pull, or was given last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    v: u32,
    /// The Pod that was given them.
    #[serde(default)]
    uid: Box<str>,
    images: BTreeMap<String, BTreeMap<String, TriedImage>>,
    /// Containers that were given more than there is room to remember. They are given nothing more.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    full: BTreeSet<String>,
}

/// An image that a container was given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriedImage {
    /// Why it could not be pulled, and when that was acted on; nothing for the image that was given last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<PullFailure>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

impl Tried {
    /// Of a Pod that was given nothing yet.
    pub fn of(uid: &str) -> Self {
        Self { v: VERSION, uid: uid.into(), images: BTreeMap::new(), full: BTreeSet::new() }
    }

    fn parse(text: &str) -> Option<Self> {
        let tried = (text.len() <= MOST_BYTES).then(|| serde_json::from_str::<Self>(text).ok())??;
        (tried.v == VERSION).then_some(tried)
    }

    /// Whether a container was given an image before, however that was written.
    pub(super) fn has(&self, container: &str, image: &str) -> bool {
        if self.full.contains(container) {
            return true;
        }
        let Some(tried) = self.images.get(container) else { return false };
        let reference = Reference::parse(image).ok();
        tried.len() >= MOST_TRIED
            || tried.keys().any(|known| {
                let same = || Some(Reference::parse(known).ok()?.is_same_image(reference.as_ref()?));
                known == image || same() == Some(true)
            })
    }

    /// The image of a container failed, and another one is given.
    pub(super) fn moved(
        &mut self,
        container: &str,
        (from, failed): (&str, PullFailure),
        to: &str,
        now: Timestamp,
    ) {
        let tried = self.images.entry(container.to_owned()).or_default();
        tried.insert(from.to_owned(), TriedImage { failed: Some(failed), at: Some(now) });
        tried.entry(to.to_owned()).or_default();
    }

    /// The images that failed, with the reason and the time.
    pub fn failures(&self) -> impl Iterator<Item = (&str, PullFailure, Timestamp)> {
        let attempts = self.images.values().flatten();
        attempts.filter_map(|(image, attempt)| Some((image.as_str(), attempt.failed?, attempt.at?)))
    }

    /// As it is written: no longer than what is read again. What does not fit is forgotten, of the containers with the
    /// most first.
    pub(super) fn text(mut self) -> Option<String> {
        let mut text = serde_json::to_string(&self).ok()?;
        while text.len() > MOST_BYTES {
            let bytes = |images: &BTreeMap<String, TriedImage>| images.keys().map(String::len).sum::<usize>();
            let (largest, _) = self.images.iter().max_by_key(|(_, images)| bytes(images))?;
            let largest = largest.clone();
            self.images.remove(&largest);
            self.full.insert(largest);
            text = serde_json::to_string(&self).ok()?;
        }
        Some(text)
    }
}
