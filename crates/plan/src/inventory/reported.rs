//! What a kubelet says that a container runs or mounts, in whatever form its runtime has it.

use std::fmt;

use fairlead_domain::digest::{Algorithm, Digest};
use fairlead_domain::reference::{Reference, Repository};

/// A longer text is no name of an image. The API server keeps 256 bytes for a volume, and any number for a container.
const LONGEST: usize = 4096;

/// Schemes that stand in front of one another: `docker-pullable://` is the only one that runtimes write.
const MOST_SCHEMES: usize = 2;

/// What a kubelet reports, read. Texts that say nothing are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reported {
    /// The digest of an index or of a manifest. The repository is one that the runtime knows the content by; it need
    /// not be the one that was pulled from.
    Manifest { repository: Option<Repository>, digest: Digest },
    /// The runtime's own name of the image: the digest of its configuration; of an artifact on CRI-O that of its
    /// manifest. No registry serves it under this name.
    Id(Digest),
    /// Something else.
    Unreadable,
}

impl Reported {
    /// Reads an `imageID` or an `imageRef`. What is empty says nothing.
    pub fn parse(text: &str) -> Option<Self> {
        let mut text = text.trim();
        if text.is_empty() {
            return None;
        }
        for _ in 0..MOST_SCHEMES {
            text = without_scheme(text);
        }
        Some(Self::read(text).unwrap_or(Self::Unreadable))
    }

    fn read(text: &str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        let Some((name, digest)) = text.rsplit_once('@') else {
            return text.parse().ok().or_else(|| bare(text)).map(Self::Id);
        };
        let digest = digest.parse().ok()?;
        let repository = Reference::parse(name).ok().map(|name| name.repository());
        Some(Self::Manifest { repository, digest })
    }

    pub fn digest(&self) -> Option<Digest> {
        match self {
            Self::Manifest { digest, .. } | Self::Id(digest) => Some(*digest),
            Self::Unreadable => None,
        }
    }
}

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manifest { digest, .. } => write!(f, "{digest}"),
            Self::Id(digest) => write!(f, "image ID {digest}"),
            Self::Unreadable => f.write_str("no digest"),
        }
    }
}

fn without_scheme(text: &str) -> &str {
    let is_scheme = |scheme: &str| {
        !scheme.is_empty() && scheme.bytes().all(|one| one.is_ascii_alphanumeric() || b"+.-".contains(&one))
    };
    match text.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => rest,
        _ => text,
    }
}

/// Hexadecimal digits alone: their number tells the algorithm.
fn bare(text: &str) -> Option<Digest> {
    let algorithm = match text.len() {
        64 => Algorithm::Sha256,
        96 => Algorithm::Sha384,
        128 => Algorithm::Sha512,
        _ => return None,
    };
    format!("{}:{text}", algorithm.name()).parse().ok()
}
