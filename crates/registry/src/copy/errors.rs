//! Why a copy failed, and on which side.

use fairlead_domain::{digest::Digest, platform::PlatformFilter};
use thiserror::Error;

use crate::error::{Error, ErrorClass};

#[derive(Clone, Debug, Error)]
pub enum CopyError {
    #[error("source: {0}")]
    Source(Error),
    #[error("destination: {0}")]
    Destination(Error),
    #[error(
        "the destination is to have the digest {wanted}, but the source's is {found}; name the one that is meant"
    )]
    OtherDigest { wanted: Box<Digest>, found: Box<Digest> },
    #[error("the image is for {offered}, of which none was asked for ({})", listed(.wanted))]
    NoPlatform { offered: String, wanted: Vec<PlatformFilter> },
    #[error("the index at {digest} holds indexes within indexes, deeper than images go")]
    TooDeep { digest: Box<Digest> },
}

fn listed(wanted: &[PlatformFilter]) -> String {
    wanted.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl CopyError {
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Source(error) | Self::Destination(error) => error.class(),
            Self::OtherDigest { .. } | Self::NoPlatform { .. } => ErrorClass::Misconfigured,
            Self::TooDeep { .. } => ErrorClass::Broken,
        }
    }
}
