//! The stored form of a list.

use std::sync::Arc;

use fairlead_domain::digest::Digest;
use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

use super::NameHash;

const VERSION: u32 = 1;

/// Bytes of one name in the stored form, and of everything else.
const NAME_BYTES: usize = 67;
const FRAME_BYTES: usize = 128;

/// The names that one cluster uses, sorted. Clones share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageList {
    pub updated: Timestamp,
    names: Arc<[NameHash]>,
}

/// `names` are SHA-256 in hexadecimal.
#[derive(Serialize, Deserialize)]
struct Document<Names> {
    version: u32,
    updated: Timestamp,
    names: Names,
}

impl Serialize for NameHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex(&self.0))
    }
}

/// Why a stored list cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DocumentError {
    #[error("it is not a usage list: {0}")]
    Malformed(String),
    #[error("it has version {0}, and this version of Fairlead reads version {VERSION} only; upgrade it")]
    Version(u32),
}

impl UsageList {
    pub fn new(updated: Timestamp, names: impl IntoIterator<Item = NameHash>) -> Self {
        let mut names: Vec<NameHash> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        Self { updated, names: names.into() }
    }

    pub fn contains(&self, name: &NameHash) -> bool {
        self.names.binary_search(name).is_ok()
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Equal for lists of equal names.
    pub fn fingerprint(&self) -> Digest {
        let mut hasher = fairlead_domain::digest::Algorithm::Sha256.hasher();
        self.names.iter().for_each(|name| hasher.update(&name.0));
        hasher.finish()
    }

    pub fn encode(&self) -> Vec<u8> {
        let document = Document { version: VERSION, updated: self.updated, names: &*self.names };
        let mut bytes = Vec::with_capacity(FRAME_BYTES + self.names.len() * NAME_BYTES);
        // Numbers, times and plain text always have a JSON form, and a vector takes all bytes.
        let _ = serde_json::to_writer(&mut bytes, &document);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, DocumentError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let malformed = |error: serde_json::Error| DocumentError::Malformed(error.to_string());
        let Versioned { version } = serde_json::from_slice(bytes).map_err(malformed)?;
        if version != VERSION {
            return Err(DocumentError::Version(version));
        }
        let document: Document<Vec<String>> = serde_json::from_slice(bytes).map_err(malformed)?;
        let names: Option<Vec<NameHash>> = document.names.iter().map(|name| parse(name)).collect();
        let names =
            names.ok_or_else(|| DocumentError::Malformed("a name is not a SHA-256 hash".to_owned()))?;
        Ok(Self::new(document.updated, names))
    }
}

fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(half.into(), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn parse(text: &str) -> Option<NameHash> {
    let digest: Digest = format!("sha256:{text}").parse().ok()?;
    Some(NameHash(digest.as_bytes().try_into().ok()?))
}
