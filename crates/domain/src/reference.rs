//! Image references: parsed once, normalised exactly as container runtimes do, and compared by what they name.
//!
//! Everything that takes a reference apart or puts one together lives here; elsewhere a reference is a value.

mod any;
mod error;
mod forms;
mod grammar;
mod key;
mod location;
mod parse;
mod parts;
mod pattern;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub use self::any::AnyReference;
pub use self::error::{Part, ReferenceError, ReferenceProblem};
pub use self::forms::Forms;
pub use self::key::{HostKey, ImageKey, PlaceKey};
pub use self::location::{Location, LocationError, clean_join};
pub use self::parts::{Host, Repository, Tag};
pub use self::pattern::HostPattern;
use crate::digest::Digest;

/// The tag that runtimes pull when a reference has neither tag nor digest.
pub const DEFAULT_TAG: &str = "latest";

/// An image reference, normalised: `nginx` is `docker.io/library/nginx`. No tag is added.
///
/// Two references are equal when their normalised texts are, however they were written. One pointer in size; clones
/// share their text.
#[derive(Clone)]
pub struct Reference(Arc<Parsed>);

/// Ledgers hold tens of thousands of these, so offsets are short and both spellings share one text.
struct Parsed {
    /// The normalised text, followed by the written one if they differ.
    texts: Box<str>,
    host_end: u32,
    name_end: u32,
    /// Equal to `name_end` when there is no tag.
    tag_end: u32,
    /// The end of the normalised text.
    end: u32,
}

impl Reference {
    pub fn parse(written: &str) -> Result<Self, ReferenceError> {
        let parts =
            parse::parse(written).map_err(|fault| ReferenceError::new(written, Part::Reference, fault))?;
        let host_end = parts.host.len();
        let official = if parts.official { parse::OFFICIAL } else { "" };
        let name_end = host_end + 1 + official.len() + parts.path.len();
        let tag_end = name_end + parts.tag.map_or(0, |tag| tag.len() + 1);

        let end = tag_end + parts.digest.map_or(0, |digest| digest.len() + 1);

        let mut text = String::with_capacity(end + written.len());
        for piece in [parts.host, "/", official, parts.path] {
            text.push_str(piece);
        }
        for (sign, piece) in [(':', parts.tag), ('@', parts.digest)] {
            if let Some(piece) = piece {
                text.push(sign);
                text.push_str(piece);
            }
        }
        if text != written {
            text.push_str(written);
        }
        Ok(Self::assembled(text, [host_end, name_end, tag_end, end]))
    }

    fn assembled(texts: String, offsets: [usize; 4]) -> Self {
        // `parse::LENGTH_LIMIT` keeps them in range.
        let [host_end, name_end, tag_end, end] =
            offsets.map(|offset| u32::try_from(offset).unwrap_or(u32::MAX));
        Self(Arc::new(Parsed { texts: texts.into(), host_end, name_end, tag_end, end }))
    }

    fn slice(&self, from: usize, to: usize) -> &str {
        self.0.texts.get(from..to).unwrap_or_default()
    }

    fn host_end(&self) -> usize {
        self.0.host_end as usize
    }

    fn name_end(&self) -> usize {
        self.0.name_end as usize
    }

    fn tag_end(&self) -> usize {
        self.0.tag_end as usize
    }

    fn end(&self) -> usize {
        self.0.end as usize
    }

    /// The normalised text, tag and digest as written.
    pub fn as_str(&self) -> &str {
        self.slice(0, self.end())
    }

    /// The text that was parsed.
    pub fn written(&self) -> &str {
        match self.slice(self.end(), self.0.texts.len()) {
            "" => self.as_str(),
            written => written,
        }
    }

    /// The registry, with its port and in the case it was written in.
    pub fn host(&self) -> Host {
        Host::checked(self.host_text())
    }

    fn host_text(&self) -> &str {
        self.slice(0, self.host_end())
    }

    /// Host and path, without tag and digest.
    pub fn repository(&self) -> Repository {
        Repository::of(self.clone())
    }

    /// Host and path as text.
    pub fn name(&self) -> &str {
        self.slice(0, self.name_end())
    }

    /// The repository's path inside its registry.
    pub fn path(&self) -> &str {
        self.slice(self.host_end() + 1, self.name_end())
    }

    /// Host and path, for comparing.
    pub fn place(&self) -> PlaceKey<'_> {
        PlaceKey::new(self.name(), self.host_end())
    }

    /// What is pulled from which registry, for comparing.
    pub fn key(&self) -> ImageKey {
        ImageKey::new(self.clone())
    }

    /// Whether both have a runtime pull the same from the same registry.
    pub fn is_same_image(&self, other: &Self) -> bool {
        self.path() == other.path()
            && self.pulled_suffix() == other.pulled_suffix()
            && key::is_same_host(self.host_text(), other.host_text())
    }

    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.path().split('/')
    }

    pub fn tag(&self) -> Option<&str> {
        (self.tag_end() > self.name_end()).then(|| self.slice(self.name_end() + 1, self.tag_end()))
    }

    pub fn digest(&self) -> Option<Digest> {
        self.digest_text()?.parse().ok()
    }

    fn digest_text(&self) -> Option<&str> {
        (self.tag_end() < self.end()).then(|| self.slice(self.tag_end() + 1, self.end()))
    }

    /// Tag and digest with their signs, as they follow the name.
    fn suffix(&self) -> &str {
        self.slice(self.name_end(), self.end())
    }

    /// What a runtime asks the registry for, with its sign.
    fn pulled_suffix(&self) -> &str {
        const DEFAULT: &str = ":latest";
        match self.suffix() {
            "" => DEFAULT,
            suffix => suffix.find('@').and_then(|at| suffix.get(at..)).unwrap_or(suffix),
        }
    }

    /// What a runtime asks the registry for: the digest where there is one, else the tag, else `latest`.
    #[must_use]
    pub fn pulled(&self) -> Self {
        match (self.tag(), self.digest_text()) {
            (Some(_), Some(digest)) => self.rebuilt(None, Some(digest)),
            (None, None) => self.rebuilt(Some(DEFAULT_TAG), None),
            _ => self.clone(),
        }
    }

    /// The same repository and tag, pinned to a digest.
    #[must_use]
    pub fn with_digest(&self, digest: &Digest) -> Self {
        self.rebuilt(self.tag(), Some(&digest.to_string()))
    }

    /// The same repository and digest, without a tag.
    #[must_use]
    pub fn without_tag(&self) -> Self {
        self.rebuilt(None, self.digest_text())
    }

    /// The same repository and tag, without a digest.
    #[must_use]
    pub fn without_digest(&self) -> Self {
        self.rebuilt(self.tag(), None)
    }

    fn rebuilt(&self, tag: Option<&str>, digest: Option<&str>) -> Self {
        let mut text = String::from(self.name());
        let mut tag_end = text.len();
        if let Some(tag) = tag {
            text.extend([":", tag]);
            tag_end = text.len();
        }
        if let Some(digest) = digest {
            text.extend(["@", digest]);
        }
        let end = text.len();
        Self::assembled(text, [self.host_end(), self.name_end(), tag_end, end])
    }

    /// The texts that filters are matched against: any of them counts.
    pub fn forms(&self) -> Forms {
        Forms::of(self)
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(written: &str) -> Result<Self, ReferenceError> {
        Self::parse(written)
    }
}

impl PartialEq for Reference {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.as_str() == other.as_str()
    }
}

impl Eq for Reference {}

impl Hash for Reference {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PartialOrd for Reference {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// By normalised text, the order in which statuses list images.
impl Ord for Reference {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reference({:?})", self.as_str())
    }
}

impl Serialize for Reference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}
