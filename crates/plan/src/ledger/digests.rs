//! Digests of one destination. Ledgers hold tens of thousands of these lists, nearly all of them with one SHA-256, so
//! that one takes no allocation.

use fairlead_domain::digest::{Algorithm, Digest};

const SHA256: usize = Algorithm::Sha256.size();

/// Digests in the order in which they were written, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Digests(List);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum List {
    #[default]
    Empty,
    Sha256([u8; SHA256]),
    /// More than one, or one of another algorithm.
    Any(Box<[Digest]>),
}

impl Digests {
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub fn contains(&self, digest: Digest) -> bool {
        self.iter().any(|known| known == digest)
    }

    /// The one that was written last.
    pub fn last(&self) -> Option<Digest> {
        self.iter().last()
    }

    pub fn iter(&self) -> impl Iterator<Item = Digest> {
        let (one, more) = match &self.0 {
            List::Empty => (None, [].as_slice()),
            List::Sha256(value) => (Digest::new(Algorithm::Sha256, value), [].as_slice()),
            List::Any(digests) => (None, &**digests),
        };
        one.into_iter().chain(more.iter().copied())
    }

    pub fn to_vec(&self) -> Vec<Digest> {
        self.iter().collect()
    }
}

impl FromIterator<Digest> for Digests {
    fn from_iter<I: IntoIterator<Item = Digest>>(digests: I) -> Self {
        digests.into_iter().collect::<Vec<_>>().into()
    }
}

impl From<Vec<Digest>> for Digests {
    fn from(digests: Vec<Digest>) -> Self {
        let sha256 = match &*digests {
            [] => return Self::default(),
            [one] if one.algorithm() == Algorithm::Sha256 => one.as_bytes().try_into().ok(),
            _ => None,
        };
        Self(sha256.map_or_else(|| List::Any(digests.into_boxed_slice()), List::Sha256))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_back_as_what_they_were_made_of() {
        let [one, other] = ["one", "other"].map(|content| Digest::sha256(content.as_bytes()));
        let long = Algorithm::Sha512.digest(b"long");
        for list in [vec![], vec![one], vec![long], vec![one, other], vec![long, one, other]] {
            let digests = Digests::from(list.clone());
            assert_eq!(digests.to_vec(), list);
            assert_eq!((digests.is_empty(), digests.last()), (list.is_empty(), list.last().copied()));
            assert!(list.iter().all(|digest| digests.contains(*digest)));
            assert!(!digests.contains(Digest::sha256(b"unknown")));
        }
    }
}
