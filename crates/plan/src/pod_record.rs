//! What admission writes on a Pod: for every image, what was asked for, what is used instead, by whose decision and
//! why; and, for those who read kuik's and harbor-reef's annotations, the originals of the images that changed.
//!
//! Authors of Pods may write annotations, so what is found on an incoming Pod is a claim: it counts only as far as it
//! agrees with the Pod itself and with the policies of today. And a record must never cost a Pod its creation: the API
//! server refuses Pods with too many annotations, so the records give way first.

mod claims;
mod originals;
mod shrink;
mod size;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use fairlead_api::names;
use fairlead_domain::{digest::Digest, reference::Reference};
use serde::{Deserialize, Serialize};

pub use self::{claims::RecordedOriginals, size::Room};
use crate::routing::RoutingFailure;

/// The only version there is. A record of another version is replaced.
pub const VERSION: u32 = 1;

/// The decision is the original itself, not a policy's.
pub const BY_ORIGINAL: &str = "original";

/// What one record may take of a Pod's annotations.
pub const MOST_BYTES: usize = 64 * 1024;

/// The API server refuses a Pod whose annotations are larger than this, all keys and values counted.
const MOST_ANNOTATION_BYTES: usize = 256 * 1024;

/// Left free for annotations that come later.
const SPARED_BYTES: usize = 16 * 1024;

/// Begins the reason of an image that was given after admission.
const HEALED: &str = "healed: ";

/// The whole record, as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub v: u32,
    /// By name of the container, of whatever kind, or `volume:` and the name of the volume.
    pub images: BTreeMap<String, Route>,
    /// How many images were left out because the record would have become too large.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: usize,
}

impl Record {
    /// The record that a text is, if it is one of a version known here and of a size that could be ours.
    pub fn parse(text: &str) -> Option<Self> {
        let record = (text.len() <= MOST_BYTES).then(|| serde_json::from_str::<Self>(text).ok())??;
        (record.v == VERSION).then_some(record)
    }
}

/// What was decided for one image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    pub asked: String,
    pub used: String,
    /// `<kind>/<namespace>/<name>` of the policy that decided, or `original`.
    pub by: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Of what is used, where the registry told it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// What else the image may be taken from, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<String>,
    /// Nothing that was asked answered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unavailable: bool,
    /// Places that are known to hold another digest under the same tag.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<Difference>,
    /// Rewriting is paused for the controller of the Pod, until then.
    #[serde(default, rename = "pausedUntil", skip_serializing_if = "String::is_empty")]
    pub paused_until: String,
    /// The container's key in harbor-reef's annotation was written here, so it is ours to correct.
    #[serde(default, skip_serializing_if = "std::ops::Not::not", rename = "wroteUpstream")]
    pub wrote_upstream: bool,
    /// The Pod was not admitted here: healing gave it the image, and gives it no other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bypassed: bool,
    /// What the locations answered, for the warning. It is not recorded.
    #[serde(skip)]
    pub failure: Option<RoutingFailure>,
}

/// A place that holds another image than the one that is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub image: String,
    pub digest: String,
    /// `<kind>/<namespace>/<name>` of the policy that offers the place, or `original`.
    pub by: String,
}

impl Route {
    /// The image is used as it was asked for.
    pub fn original(image: &str, why: &str) -> Self {
        Self {
            asked: image.to_owned(),
            used: image.to_owned(),
            by: BY_ORIGINAL.to_owned(),
            why: why.to_owned(),
            ..Self::default()
        }
    }

    /// The image was given after admission, because another one could not be pulled.
    #[must_use]
    pub fn healed(self, why: &str) -> Self {
        Self { why: format!("{HEALED}{why}"), ..self }
    }

    pub fn is_healed(&self) -> bool {
        self.why.starts_with(HEALED)
    }

    pub fn is_rewritten(&self) -> bool {
        self.asked != self.used
    }

    /// The digest that the tag which was asked for is held to.
    pub fn pin(&self) -> Option<Digest> {
        // Most are not pinned, and are not worth parsing.
        let pinned = self.used.contains('@') && !self.asked.contains('@');
        let used = pinned.then(|| Reference::parse(&self.used).ok())??;
        used.digest().filter(|_| used.tag().is_some())
    }

    /// Nothing but a digest distinguishes what is used from what was asked for.
    fn is_pinned_original(&self) -> bool {
        self.by == BY_ORIGINAL && self.is_rewritten() && self.pin().is_some()
    }
}

/// The annotations of an incoming Pod, as far as they matter here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PodAnnotations<'a> {
    /// `fairlead.dev/routes`
    pub routes: Option<&'a str>,
    /// `kuik.enix.io/original-images`
    pub originals: Option<&'a str>,
    /// `harbor.rewrite/original-upstreams`
    pub upstreams: Option<&'a str>,
    /// Bytes of all other annotations, keys and values.
    pub other_bytes: usize,
}

/// What an annotation takes of the API server's limit: key and value.
pub(crate) fn size_of(name: &str, text: Option<&str>) -> usize {
    text.map_or(0, |text| name.len() + text.len())
}

impl<'a> PodAnnotations<'a> {
    pub fn of(annotations: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut found = Self::default();
        for (key, value) in annotations {
            match key {
                names::fairlead::ROUTES => found.routes = Some(value),
                names::kuik::ORIGINAL_IMAGES => found.originals = Some(value),
                names::reef::ORIGINAL_UPSTREAMS => found.upstreams = Some(value),
                _ => found.other_bytes += key.len() + value.len(),
            }
        }
        found
    }

    /// The same after another annotation has joined; none where that leaves no room for others.
    pub fn joined_by(self, name: &str, text: &str) -> Option<Self> {
        let other_bytes = self.other_bytes + size_of(name, Some(text));
        (other_bytes <= MOST_ANNOTATION_BYTES - SPARED_BYTES).then_some(Self { other_bytes, ..self })
    }

    /// Bytes of the annotations that are written here.
    pub(crate) fn own_bytes(&self) -> usize {
        size_of(names::fairlead::ROUTES, self.routes)
            + size_of(names::kuik::ORIGINAL_IMAGES, self.originals)
            + size_of(names::reef::ORIGINAL_UPSTREAMS, self.upstreams)
    }
}

/// Where an image stands in a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    Container(&'a str),
    Init(&'a str),
    Ephemeral(&'a str),
    Volume(&'a str),
}

impl Place<'_> {
    /// Names of containers of all kinds differ from one another.
    pub fn key(&self) -> String {
        match self {
            Self::Container(name) | Self::Init(name) | Self::Ephemeral(name) => (*name).to_owned(),
            Self::Volume(name) => format!("volume:{name}"),
        }
    }

    /// The key in kuik's annotation.
    fn kuik_key(&self) -> String {
        match self {
            Self::Container(name) => (*name).to_owned(),
            Self::Init(name) => format!("init:{name}"),
            Self::Ephemeral(name) => format!("ephemeral:{name}"),
            Self::Volume(name) => format!("volume:{name}"),
        }
    }

    /// The key in harbor-reef's annotation, which knows the containers that can be healed.
    fn reef_key(&self) -> Option<&str> {
        match self {
            Self::Container(name) | Self::Init(name) => Some(name),
            Self::Ephemeral(_) | Self::Volume(_) => None,
        }
    }
}

/// What was decided for one image of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    pub place: Place<'a>,
    pub route: Route,
}

/// What to do about the annotations of a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Annotations {
    /// Name and new text; none takes the annotation away.
    pub changes: Vec<(&'static str, Option<String>)>,
    /// What the other annotations left no room for.
    pub left_out: Vec<&'static str>,
}

/// The annotations that a Pod should have, as changes to those that it has. Annotations that say the same already are
/// not among the changes. Together they grow by `room` bytes at most.
pub fn annotations(found: &PodAnnotations<'_>, entries: Vec<Entry<'_>>, room: usize) -> Annotations {
    let recorded = found.routes.and_then(Record::parse);
    let upstreams = originals::for_reef(found.upstreams, recorded.as_ref(), &entries);
    write(found, BTreeMap::new(), entries, upstreams, room)
}

/// The annotations of a Pod that is running already and of which some images are new: what is recorded of the others
/// stays.
pub fn amended(found: &PodAnnotations<'_>, entries: Vec<Entry<'_>>) -> Annotations {
    let recorded = found.routes.and_then(Record::parse).map(|record| record.images);
    let upstreams = originals::for_reef(found.upstreams, None, &entries);
    write(found, recorded.unwrap_or_default(), entries, upstreams, usize::MAX)
}

fn write(
    found: &PodAnnotations<'_>,
    mut images: BTreeMap<String, Route>,
    mut entries: Vec<Entry<'_>>,
    upstreams: originals::Upstreams,
    room: usize,
) -> Annotations {
    let mut result = Annotations::default();
    let free = MOST_ANNOTATION_BYTES.saturating_sub(SPARED_BYTES + found.other_bytes);
    let mut free = free.min(found.own_bytes().saturating_add(room));
    let originals = originals::for_kuik(found.originals, &entries);
    for (name, before, after) in [
        (names::kuik::ORIGINAL_IMAGES, found.originals, originals),
        (names::reef::ORIGINAL_UPSTREAMS, found.upstreams, upstreams.change),
    ] {
        let after = match after {
            originals::Change::None => before.map(str::to_owned),
            originals::Change::Remove => None,
            originals::Change::Write(text) if name.len() + text.len() <= free => Some(text),
            originals::Change::Write(_) => {
                result.left_out.push(name);
                before.map(str::to_owned)
            }
        };
        free = free.saturating_sub(size_of(name, after.as_deref()));
        if after.as_deref() != before {
            result.changes.push((name, after));
        }
    }
    if entries.is_empty() && found.routes.is_none() {
        return result;
    }
    if !result.left_out.contains(&names::reef::ORIGINAL_UPSTREAMS) {
        for entry in &mut entries {
            entry.route.wrote_upstream =
                entry.place.reef_key().is_some_and(|key| upstreams.ours.contains(key));
        }
    }
    images.extend(entries.into_iter().map(|entry| (entry.place.key(), entry.route)));
    let limit = free.saturating_sub(names::fairlead::ROUTES.len()).min(MOST_BYTES);
    match shrink::write(images, limit) {
        Some(text) if found.routes == Some(text.as_str()) => {}
        Some(text) => result.changes.push((names::fairlead::ROUTES, Some(text))),
        None => {
            result.left_out.push(names::fairlead::ROUTES);
            // A record that is there is not about this Pod as it is now.
            if found.routes.is_some() {
                result.changes.push((names::fairlead::ROUTES, None));
            }
        }
    }
    result
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field by reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}
