//! What a destination occupies in its registry.

use std::fmt;
use std::hash::Hasher as _;

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{ImageKey, PlaceKey, Reference, Tag};
use twox_hash::XxHash64;

/// The longest tag that registries take.
const LONGEST_TAG: usize = 128;

/// The tag that keeps an image which was pushed by digest from being collected as garbage.
pub fn hold_tag(digest: &Digest) -> Tag {
    let mut text = format!("digest-{}", digest.hex());
    text.truncate(LONGEST_TAG);
    // Letters, digits and a dash of bounded length are a tag.
    Tag::parse(&text).unwrap_or_else(|_| unreachable!("{text} is a tag"))
}

/// A repository with a tag, or with a digest. Two destinations with the same slot are the same image in the registry,
/// whatever spelling of its host they use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(ImageKey);

/// The slot of a destination: its digest's where it has one, whatever its tag; else its tag's, which is `latest` where
/// it has none.
pub fn slot(destination: &Reference) -> Slot {
    Slot(destination.pulled().key())
}

impl Slot {
    pub(crate) fn reference(&self) -> &Reference {
        self.0.reference()
    }

    /// Whether it can hold one content only, so that sources cannot disagree about it.
    pub(super) fn is_pinned(&self) -> bool {
        self.0.reference().digest().is_some()
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number that equal slots share and different ones hardly ever do, without making the slot.
pub(super) fn fingerprint(destination: &Reference) -> u64 {
    hashed(&[destination.place().as_str()], suffix(destination))
}

/// The same for the copy of a source below a place, without making the destination.
pub(super) fn fingerprint_below(place: &PlaceKey<'_>, source: &Reference) -> u64 {
    hashed(&[place.as_str(), "/", source.path()], suffix(source))
}

/// Tag and digest with their signs.
pub(super) fn suffix(reference: &Reference) -> &str {
    reference.as_str().get(reference.name().len()..).unwrap_or_default()
}

fn hashed(name: &[&str], suffix: &str) -> u64 {
    let mut hasher = XxHash64::with_seed(0);
    for part in name {
        hasher.write(part.as_bytes());
    }
    let pulled = match suffix.find('@') {
        Some(at) => suffix.get(at..).unwrap_or_default(),
        None if suffix.is_empty() => ":latest",
        None => suffix,
    };
    hasher.write(pulled.as_bytes());
    hasher.finish()
}
