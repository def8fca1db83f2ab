//! Content digests: names computed from the content they name.
//!
//! Kept as bytes, so that they are cheap to compare, hash and store, and have one spelling.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::Digest as _;
use thiserror::Error;

/// The digest algorithms that container runtimes accept in an image reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    Sha256,
    Sha384,
    Sha512,
}

impl Algorithm {
    const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// Length of the digest in bytes; its text has two characters for each.
    pub const fn size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    pub fn hasher(self) -> Hasher {
        Hasher(match self {
            Self::Sha256 => HasherState::Sha256(sha2::Sha256::new()),
            Self::Sha384 => HasherState::Sha384(sha2::Sha384::new()),
            Self::Sha512 => HasherState::Sha512(sha2::Sha512::new()),
        })
    }

    pub fn digest(self, content: &[u8]) -> Digest {
        let mut hasher = self.hasher();
        hasher.update(content);
        hasher.finish()
    }
}

const LONGEST: usize = Algorithm::Sha512.size();

/// An algorithm and the bytes it yielded. Equal digests have equal text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest {
    algorithm: Algorithm,
    /// Shorter digests are padded with zeros.
    bytes: [u8; LONGEST],
}

impl Digest {
    /// `None` when the length is not the algorithm's.
    pub fn new(algorithm: Algorithm, value: &[u8]) -> Option<Self> {
        let mut bytes = [0; LONGEST];
        bytes.get_mut(..algorithm.size())?.copy_from_slice(value.get(..algorithm.size())?);
        (value.len() == algorithm.size()).then_some(Self { algorithm, bytes })
    }

    pub fn sha256(content: &[u8]) -> Self {
        Algorithm::Sha256.digest(content)
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.algorithm.size()).unwrap_or_default()
    }

    /// The digest without its algorithm, in lower-case hexadecimal.
    pub fn hex(&self) -> String {
        let mut text = String::with_capacity(self.algorithm.size() * 2);
        for byte in self.as_bytes() {
            text.extend([byte >> 4, byte & 15].map(|half| char::from_digit(half.into(), 16).unwrap_or('0')));
        }
        text
    }

    pub fn matches(&self, content: &[u8]) -> bool {
        self.algorithm.digest(content) == *self
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// Why a text is not a digest. Offsets count bytes from the start of the text; everything before one is ASCII.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DigestError {
    #[error("a digest is written as algorithm:hexadecimal; there is no ':'")]
    NoSeparator,
    #[error("the digest algorithm is not known; use sha256, sha384 or sha512")]
    UnknownAlgorithm,
    #[error("a digest has lower-case hexadecimal digits only; character {} is none", .offset + 1)]
    NotHexadecimal { offset: usize },
    #[error("a {algorithm} digest has {expected} hexadecimal digits, not {found}")]
    WrongLength { algorithm: &'static str, expected: usize, found: usize },
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let (name, hex) = text.split_once(':').ok_or(DigestError::NoSeparator)?;
        let algorithm = Algorithm::from_name(name).ok_or(DigestError::UnknownAlgorithm)?;
        if let Some(at) = hex.bytes().position(|byte| nibble(byte).is_none()) {
            return Err(DigestError::NotHexadecimal { offset: name.len() + 1 + at });
        }
        let wrong = DigestError::WrongLength {
            algorithm: algorithm.name(),
            expected: algorithm.size() * 2,
            found: hex.len(),
        };
        if hex.len() != algorithm.size() * 2 {
            return Err(wrong);
        }
        let mut bytes = [0; LONGEST];
        for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            *byte = digits.iter().fold(0, |value, digit| value << 4 | nibble(*digit).unwrap_or(0));
        }
        Ok(Self { algorithm, bytes })
    }
}

/// Upper-case digits are refused: runtimes do, and one digest must have one spelling.
fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Computes a digest of content that arrives in pieces.
#[derive(Clone)]
pub struct Hasher(HasherState);

#[derive(Clone)]
enum HasherState {
    Sha256(sha2::Sha256),
    Sha384(sha2::Sha384),
    Sha512(sha2::Sha512),
}

impl Hasher {
    pub fn update(&mut self, content: &[u8]) {
        match &mut self.0 {
            HasherState::Sha256(state) => state.update(content),
            HasherState::Sha384(state) => state.update(content),
            HasherState::Sha512(state) => state.update(content),
        }
    }

    pub fn finish(self) -> Digest {
        fn padded(algorithm: Algorithm, value: &[u8]) -> Digest {
            let mut bytes = [0; LONGEST];
            bytes.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
            Digest { algorithm, bytes }
        }
        match self.0 {
            HasherState::Sha256(state) => padded(Algorithm::Sha256, &state.finalize()),
            HasherState::Sha384(state) => padded(Algorithm::Sha384, &state.finalize()),
            HasherState::Sha512(state) => padded(Algorithm::Sha512, &state.finalize()),
        }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn known_value_in_and_out() {
        let digest = Digest::sha256(b"");
        assert_eq!(digest.to_string(), EMPTY);
        assert_eq!(EMPTY.parse(), Ok(digest));
        assert!(digest.matches(b"") && !digest.matches(b"x"));
        assert_eq!(Digest::new(Algorithm::Sha256, digest.as_bytes()), Some(digest));
        assert_eq!(Digest::new(Algorithm::Sha512, digest.as_bytes()), None);
        assert_eq!(Digest::new(Algorithm::Sha256, &[0; 33]), None);
    }

    #[test]
    fn pieces_give_the_same_digest_as_the_whole() {
        for algorithm in Algorithm::ALL {
            let mut hasher = algorithm.hasher();
            hasher.update(b"fair");
            hasher.update(b"lead");
            let digest = hasher.finish();
            assert_eq!(digest, algorithm.digest(b"fairlead"));
            assert_eq!(digest.to_string().parse(), Ok(digest));
            assert_eq!(digest.hex().len(), algorithm.size() * 2);
        }
    }

    #[test]
    fn refusals_name_the_cause() {
        let upper = EMPTY.to_uppercase().replace("SHA", "sha");
        assert_eq!("sha256".parse::<Digest>(), Err(DigestError::NoSeparator));
        assert_eq!("md5:00".parse::<Digest>(), Err(DigestError::UnknownAlgorithm));
        assert_eq!(upper.parse::<Digest>(), Err(DigestError::NotHexadecimal { offset: 7 }));
        let short = EMPTY[..70].parse::<Digest>().unwrap_err();
        assert_eq!(short.to_string(), "a sha256 digest has 64 hexadecimal digits, not 63");
        assert_eq!("sha256:é".parse::<Digest>(), Err(DigestError::NotHexadecimal { offset: 7 }));
    }

    #[test]
    fn travels_through_json_as_text() {
        let json = serde_json::to_string(&Digest::sha256(b"")).unwrap();
        assert_eq!(json, format!("\"{EMPTY}\""));
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), Digest::sha256(b""));
        assert!(serde_json::from_str::<Digest>("\"sha256:00\"").is_err());
    }
}
