//! Pinning: the tags of a Pod are held to the digests that they had when the Pod's workload revision was first
//! admitted, so that all its Pods run the same bytes.
//!
//! The digests of a revision stand in one `ImagePin`, whose name follows from the workload and the revision
//! ([`Revision::pin_name`]): whichever replica creates it first decides, the others read it ([`write`]). [`opinion`]
//! says whether a Pod is pinned, [`resolve`] which digest a tag stands for, [`report`] whether the Pods of a revision
//! run what is pinned, and [`fate`] when a pin goes.

mod opinion;
mod report;
mod resolve;
mod revision;
mod running;
#[cfg(test)]
mod tests;
mod write;

use fairlead_api::fairlead::{ImagePinSpec, PinnedImage};
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;

use crate::routing::PullPolicy;

pub use self::opinion::{Mode, Opinion, Said, opinion};
pub use self::report::{Fate, GRACE_SECONDS, PodImage, PodImages, fate, report};
pub use self::resolve::{PlaceAnswer, Resolved, resolve};
pub use self::revision::{Revision, revision, revision_label, revision_names};
pub use self::running::{NotRunning, ReadContents, RunningImage, running};
pub use self::write::{PinWrite, Unpinnable, last_known, write};

/// A reference as pins name it: registry included, with its tag, which is `latest` where none is written.
pub fn pin_key(asked: &Reference) -> Reference {
    asked.without_digest().pulled()
}

/// Whether the image is to be given a digest: it has none, and it is pulled from a registry. With `Never` it comes from
/// the node, where it may have no digest at all.
pub fn needs_digest(asked: &Reference, pull_policy: Option<&str>) -> bool {
    asked.digest().is_none() && PullPolicy::effective(pull_policy, asked) != PullPolicy::Never
}

/// The reference held to a digest. Its tag stays for people to read.
#[must_use]
pub fn hold(reference: &Reference, digest: &Digest) -> Reference {
    pin_key(reference).with_digest(digest)
}

/// The same in the spelling of its author.
pub fn hold_written(written: &str, digest: &Digest) -> String {
    match Reference::parse(written) {
        Ok(reference) if reference.digest().is_some() => hold(&reference, digest).to_string(),
        Ok(reference) if reference.tag().is_some() => format!("{written}@{digest}"),
        _ => format!("{written}:{}@{digest}", fairlead_domain::reference::DEFAULT_TAG),
    }
}

/// The digest that a reference is held to by a pin.
pub fn digest_in(images: &[PinnedImage], asked: &Reference) -> Option<Digest> {
    let key = pin_key(asked);
    images.iter().find(|image| image.asked == key.as_str())?.digest.parse().ok()
}

/// Whether a stored pin is the one of the revision. Names are hashes, and every client with the right may create an
/// object.
pub fn is_of(pin: &ImagePinSpec, revision: &Revision) -> bool {
    pin.workload.uid == revision.workload.uid && pin.revision == revision.revision
}
