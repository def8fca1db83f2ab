//! Texts that name an image with or without a repository, as container statuses carry them.

use std::fmt;
use std::str::FromStr;

use super::{Reference, ReferenceError, parse};
use crate::digest::Digest;

/// A reference, or a digest alone. A bare identifier of 64 hexadecimal digits is a sha256 digest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AnyReference {
    Named(Reference),
    Digest(Digest),
}

impl AnyReference {
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        let digest = if parse::is_identifier(text) {
            format!("sha256:{text}").parse::<Digest>()
        } else {
            text.parse()
        };
        match digest {
            Ok(digest) => Ok(Self::Digest(digest)),
            Err(_) => Reference::parse(text).map(Self::Named),
        }
    }

    /// The digest, whether or not a repository comes with it.
    pub fn digest(&self) -> Option<Digest> {
        match self {
            Self::Named(reference) => reference.digest(),
            Self::Digest(digest) => Some(*digest),
        }
    }
}

impl FromStr for AnyReference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        Self::parse(text)
    }
}

impl fmt::Display for AnyReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(reference) => reference.fmt(f),
            Self::Digest(digest) => digest.fmt(f),
        }
    }
}
