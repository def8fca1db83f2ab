//! Errors of copies, by side.

use fairlead_domain::digest::Digest;
use fairlead_domain::platform::PlatformFilter;
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
    #[error("{}", no_platform(.offered, .wanted))]
    NoPlatform { offered: String, wanted: Vec<PlatformFilter> },
    #[error("the index at {digest} holds indexes within indexes, deeper than images go")]
    TooDeep { digest: Box<Digest> },
    #[error(
        "more refers to {digest}, at first or at second hand, than belongs to an image; copy it without its referrers"
    )]
    TooManyReferrers { digest: Box<Digest> },
    #[error(
        "the destination has signatures or other documents under the tag {tag} that the source does not have there, and would \
         lose them; delete that tag at the destination if they are not needed, or copy the image without its referrers"
    )]
    OtherDocuments { tag: String },
}

fn no_platform(offered: &str, wanted: &[PlatformFilter]) -> String {
    let wanted = wanted.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if offered.is_empty() {
        format!("the image names no platform that could be chosen, but {wanted} was asked for")
    } else {
        format!("the image is for {offered}, of which none was asked for ({wanted})")
    }
}

impl CopyError {
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Source(error) | Self::Destination(error) => error.class(),
            Self::OtherDigest { .. } | Self::NoPlatform { .. } | Self::OtherDocuments { .. } => {
                ErrorClass::Misconfigured
            }
            Self::TooDeep { .. } | Self::TooManyReferrers { .. } => ErrorClass::Broken,
        }
    }
}
