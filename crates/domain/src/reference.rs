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

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub use self::{
    any::AnyReference,
    error::{Part, Problem, ReferenceError},
    forms::Forms,
    key::{HostKey, ImageKey, PlaceKey},
    location::{Location, LocationError, clean_join},
    parts::{Host, Repository, Tag},
    pattern::HostPattern,
};
use crate::digest::Digest;

/// The tag that runtimes pull when a reference has neither tag nor digest.
pub const DEFAULT_TAG: &str = "latest";

/// An image reference, normalised: `nginx` is `docker.io/library/nginx`. No tag is added.
///
/// Two references are equal when their normalised texts are, however they were written. Clones share their text.
#[derive(Clone)]
pub struct Reference {
    text: Arc<str>,
    written: Arc<str>,
    host_end: usize,
    name_end: usize,
    /// Equal to `name_end` when there is no tag.
    tag_end: usize,
}

impl Reference {
    pub fn parse(written: &str) -> Result<Self, ReferenceError> {
        let parts =
            parse::parse(written).map_err(|fault| ReferenceError::new(written, Part::Reference, fault))?;
        let host_end = parts.host.len();
        let official = if parts.official { parse::OFFICIAL } else { "" };
        let name_end = host_end + 1 + official.len() + parts.path.len();
        let tag_end = name_end + parts.tag.map_or(0, |tag| tag.len() + 1);

        let mut text = String::with_capacity(tag_end + parts.digest.map_or(0, |digest| digest.len() + 1));
        for piece in [parts.host, "/", official, parts.path] {
            text.push_str(piece);
        }
        for (sign, piece) in [(':', parts.tag), ('@', parts.digest)] {
            if let Some(piece) = piece {
                text.push(sign);
                text.push_str(piece);
            }
        }
        let text: Arc<str> = text.into();
        let written = if *text == *written { Arc::clone(&text) } else { written.into() };
        Ok(Self { text, written, host_end, name_end, tag_end })
    }

    fn slice(&self, from: usize, to: usize) -> &str {
        self.text.get(from..to).unwrap_or_default()
    }

    /// The normalised text, tag and digest as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The text that was parsed.
    pub fn written(&self) -> &str {
        &self.written
    }

    /// The registry, with its port and in the case it was written in.
    pub fn host(&self) -> Host {
        Host::checked(self.slice(0, self.host_end))
    }

    /// Host and path, without tag and digest.
    pub fn repository(&self) -> Repository {
        Repository::checked(Arc::clone(&self.text), self.host_end, self.name_end)
    }

    /// Host and path as text.
    pub fn name(&self) -> &str {
        self.slice(0, self.name_end)
    }

    /// The repository's path inside its registry.
    pub fn path(&self) -> &str {
        self.slice(self.host_end + 1, self.name_end)
    }

    /// Host and path, for comparing.
    pub fn place(&self) -> PlaceKey<'_> {
        PlaceKey::new(self.name(), self.host_end)
    }

    /// What is pulled from which registry, for comparing.
    pub fn key(&self) -> ImageKey {
        ImageKey::new(self.clone())
    }

    /// Whether both have a runtime pull the same from the same registry.
    pub fn is_same_image(&self, other: &Self) -> bool {
        self.path() == other.path()
            && self.pulled_suffix() == other.pulled_suffix()
            && key::is_same_host(self.slice(0, self.host_end), other.slice(0, other.host_end))
    }

    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.path().split('/')
    }

    pub fn tag(&self) -> Option<&str> {
        (self.tag_end > self.name_end).then(|| self.slice(self.name_end + 1, self.tag_end))
    }

    pub fn digest(&self) -> Option<Digest> {
        self.digest_text()?.parse().ok()
    }

    fn digest_text(&self) -> Option<&str> {
        (self.tag_end < self.text.len()).then(|| self.slice(self.tag_end + 1, self.text.len()))
    }

    /// Tag and digest with their signs, as they follow the name.
    fn suffix(&self) -> &str {
        self.slice(self.name_end, self.text.len())
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

    /// The same repository and digest under another tag.
    #[must_use]
    pub fn with_tag(&self, tag: &Tag) -> Self {
        self.rebuilt(Some(tag.as_str()), self.digest_text())
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
        let text: Arc<str> = text.into();
        let written = Arc::clone(&text);
        Self { text, written, host_end: self.host_end, name_end: self.name_end, tag_end }
    }

    /// The short spelling people use for images on Docker Hub; other references keep their normalised text.
    pub fn familiar(&self) -> &str {
        if self.slice(0, self.host_end) != parse::DOCKER_HUB {
            return &self.text;
        }
        let short = self.slice(self.host_end + 1, self.text.len());
        match self.path().strip_prefix(parse::OFFICIAL) {
            Some(name) if !name.contains('/') => short.get(parse::OFFICIAL.len()..).unwrap_or(short),
            _ => short,
        }
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
        self.text == other.text
    }
}

impl Eq for Reference {}

impl Hash for Reference {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
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
        self.text.cmp(&other.text)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reference({:?})", &*self.text)
    }
}

impl Serialize for Reference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}
