//! The record that admission leaves on a Pod: for every image, what was asked for, what is used instead, by whose
//! decision and why. Healing and the inventory read it later.
//!
//! Anybody may write annotations, so what is found on an incoming Pod is believed only as far as it agrees with the Pod
//! itself. And a record must never cost a Pod its creation: the API server refuses Pods with too many annotations, so
//! the record gives way first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// The annotation that holds the record.
pub const ANNOTATION: &str = "fairlead.dev/routes";

/// The only version there is. A record of another version is replaced.
pub const VERSION: u32 = 1;

/// The decision is the original itself, not a policy's.
pub const BY_ORIGINAL: &str = "original";

/// Why an image stays as it is while no policy is applied to it.
pub const WHY_NOT_ROUTED: &str = "images are recorded and not routed by this version";

/// What one record may take of a Pod's annotations.
pub const MOST_BYTES: usize = 64 * 1024;

/// The API server refuses a Pod whose annotations are larger than this, all keys and values counted.
const MOST_ANNOTATION_BYTES: usize = 256 * 1024;

/// Left free for whoever annotates the Pod later.
const SPARED_BYTES: usize = 16 * 1024;

/// What `"omitted"` may take, and the comma that the last entry does not have.
const COUNT_BYTES: usize = 40;

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

/// What was decided for one image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    pub asked: String,
    pub used: String,
    /// `<kind>/<namespace>/<name>` of the policy that decided, or `original`.
    pub by: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<String>,
}

impl Route {
    /// The image is used as it was asked for.
    pub fn original(image: &str, why: &str) -> Self {
        Self {
            asked: image.to_owned(),
            used: image.to_owned(),
            by: BY_ORIGINAL.to_owned(),
            why: why.to_owned(),
            digest: String::new(),
            alternatives: Vec::new(),
        }
    }

    /// Whether the entry can be about the image that the Pod names now.
    fn fits(&self, image: &str) -> bool {
        self.used == image && (self.by != BY_ORIGINAL || self.asked == self.used)
    }
}

/// What is known of an incoming Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod<'a> {
    /// The record that is already on it, from an earlier turn of this webhook or from anybody else.
    pub record: Option<&'a str>,
    /// Bytes of all other annotations, keys and values.
    pub other_annotation_bytes: usize,
    pub images: Vec<Image<'a>>,
}

/// Where an image stands in a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// Container, init container or ephemeral container: their names differ from one another.
    Container(&'a str),
    Volume(&'a str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image<'a> {
    pub place: Place<'a>,
    pub reference: &'a str,
}

impl Place<'_> {
    fn key(&self) -> String {
        match self {
            Self::Container(name) => (*name).to_owned(),
            Self::Volume(name) => format!("volume:{name}"),
        }
    }
}

/// What to do about the record of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The Pod carries the right record, or has no image to record.
    Unchanged,
    /// Write this text.
    Write(String),
    /// The other annotations leave no room.
    NoRoom,
}

/// Builds the record of a Pod. `decide` says what becomes of an image that has no believable entry yet.
pub fn record(pod: &Pod<'_>, decide: impl Fn(&Image<'_>) -> Route) -> Outcome {
    let found = pod.record.map(believe);
    let mut images = BTreeMap::new();
    for image in &pod.images {
        let key = image.place.key();
        let known =
            found.as_ref().and_then(|found| found.get(&key)).filter(|route| route.fits(image.reference));
        images.entry(key).or_insert_with(|| known.cloned().unwrap_or_else(|| decide(image)));
    }
    if images.is_empty() && pod.record.is_none() {
        return Outcome::Unchanged;
    }
    let free =
        MOST_ANNOTATION_BYTES.saturating_sub(SPARED_BYTES + ANNOTATION.len() + pod.other_annotation_bytes);
    match shrink(images, free.min(MOST_BYTES)) {
        Some(text) if pod.record == Some(text.as_str()) => Outcome::Unchanged,
        Some(text) => Outcome::Write(text),
        None => Outcome::NoRoom,
    }
}

/// The entries of a record that somebody wrote; none if it is not a record.
fn believe(text: &str) -> BTreeMap<String, Route> {
    if text.len() > MOST_BYTES {
        return BTreeMap::new();
    }
    match serde_json::from_str::<Record>(text) {
        Ok(record) if record.v == VERSION => record.images,
        _ => BTreeMap::new(),
    }
}

/// Writes the record within `limit` bytes: first alternatives go, then reasons, then whole entries, those that only say
/// "as asked" before the others. None if not a single entry fits.
fn shrink(images: BTreeMap<String, Route>, limit: usize) -> Option<String> {
    let mut record = Record { v: VERSION, images, omitted: 0 };
    let mut text = write(&record)?;
    if text.len() > limit {
        record.images.values_mut().for_each(|route| route.alternatives.clear());
        text = write(&record)?;
    }
    if text.len() > limit {
        record.images.values_mut().for_each(|route| route.why.clear());
        text = write(&record)?;
    }
    if text.len() > limit {
        // The count of what is left out takes some room itself.
        let mut excess = text.len() + COUNT_BYTES - limit;
        let (plain, rewritten): (Vec<_>, Vec<_>) =
            record.images.iter().rev().partition(|(_, route)| route.by == BY_ORIGINAL);
        let mut omitted = Vec::new();
        for (key, route) in plain.into_iter().chain(rewritten) {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(entry_bytes(key, route)?);
            omitted.push(key.clone());
        }
        if omitted.len() == record.images.len() {
            return None;
        }
        for key in &omitted {
            record.images.remove(key);
        }
        record.omitted = omitted.len();
        text = write(&record)?;
    }
    Some(text)
}

/// What an entry takes of the text: key, colon, value, comma.
fn entry_bytes(key: &str, route: &Route) -> Option<usize> {
    Some(serde_json::to_string(key).ok()?.len() + serde_json::to_string(route).ok()?.len() + 2)
}

fn write(record: &Record) -> Option<String> {
    serde_json::to_string(record).ok()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field by reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}
