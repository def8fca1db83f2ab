//! Manifests and indexes.
//!
//! Their bytes are kept unchanged, because a digest names exactly those bytes. Only what copies and platform selection
//! need is decoded.

pub(crate) mod content;

use std::fmt;

use bytes::Bytes;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{DEFAULT_TAG, Reference, Tag};

pub use self::content::{Content, Descriptor, Image, Index};

pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// All four types, indexes first: a registry that can convert serves what the tag names.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// Whether a media type is one of the four.
pub fn is_manifest(media_type: &str) -> bool {
    matches!(media_type, OCI_INDEX | OCI_MANIFEST | DOCKER_LIST | DOCKER_MANIFEST)
}

pub(crate) fn is_index(media_type: &str) -> bool {
    matches!(media_type, OCI_INDEX | DOCKER_LIST)
}

/// A manifest of a repository, by tag or digest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selector {
    text: String,
    digest: Option<Digest>,
}

impl Selector {
    /// What a runtime pulls: the digest where there is one, else the tag, else `latest`.
    pub fn of(reference: &Reference) -> Self {
        match (reference.digest(), reference.tag()) {
            (Some(digest), _) => digest.into(),
            (None, tag) => Self { text: tag.unwrap_or(DEFAULT_TAG).to_owned(), digest: None },
        }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }
}

impl From<Digest> for Selector {
    fn from(digest: Digest) -> Self {
        Self { text: digest.to_string(), digest: Some(digest) }
    }
}

impl From<&Tag> for Selector {
    fn from(tag: &Tag) -> Self {
        Self { text: tag.as_str().to_owned(), digest: None }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.digest.is_some() { '@' } else { ':' };
        write!(f, "{sign}{}", self.text)
    }
}

/// A manifest with the digest of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub media_type: String,
    pub digest: Digest,
    pub bytes: Bytes,
}

/// A manifest that was resolved and not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    pub digest: Digest,
    pub media_type: String,
    pub size: u64,
}
