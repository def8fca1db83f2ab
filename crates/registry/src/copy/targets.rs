//! The names of an image at the destination.

use fairlead_domain::digest::{Algorithm, Digest};
use fairlead_domain::reference::{Reference, Tag};

use super::CopyError;
use crate::manifest::{Manifest, Selector};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Targets {
    /// The name under which the image is looked for and published.
    pub(super) main: Selector,
    /// A holding tag that is published as well.
    pub(super) hold_beside: Option<Selector>,
    /// The digest in the destination's reference.
    stated: Option<Digest>,
}

impl Targets {
    /// A manifest under a tag is served by its digest too, so a holding tag takes the place of the digest: one request
    /// writes both, one looks for both. Registries use SHA-256 for that; an image with another digest is written under
    /// both names.
    pub(super) fn of(wanted: &Reference, hold: Option<&Tag>) -> Self {
        let stated = wanted.digest();
        let (main, hold_beside) = match (wanted.tag(), stated, hold) {
            (None, Some(digest), Some(tag)) if digest.algorithm() == Algorithm::Sha256 => {
                (Selector::from(tag), None)
            }
            (None, Some(digest), tag) => (Selector::from(digest), tag.map(Selector::from)),
            _ => (Selector::of(&wanted.without_digest()), None),
        };
        Self { main, hold_beside, stated }
    }

    /// Every name of the image.
    pub(super) fn all(&self) -> impl Iterator<Item = &Selector> {
        std::iter::once(&self.main).chain(&self.hold_beside)
    }

    /// The digest that the tag must have, if the destination states one.
    pub(super) fn held(&self) -> Option<Digest> {
        self.stated.filter(|_| self.main.digest().is_none())
    }

    /// Whether an image has the stated digest.
    pub(super) fn check(&self, image: &Manifest) -> Result<(), CopyError> {
        match self.stated {
            Some(stated) if !stated.matches(&image.bytes) => {
                let found = stated.algorithm().digest(&image.bytes);
                Err(CopyError::OtherDigest { wanted: Box::new(stated), found: Box::new(found) })
            }
            _ => Ok(()),
        }
    }

    /// Whether an image with this digest may have these names, without its bytes.
    pub(super) fn admit(&self, digest: Digest) -> bool {
        self.stated.is_none_or(|stated| stated == digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::OCI_INDEX;

    fn names(reference: &str, hold: Option<&str>) -> (String, Option<String>) {
        let hold = hold.map(|tag| Tag::parse(tag).unwrap());
        let targets = Targets::of(&Reference::parse(reference).unwrap(), hold.as_ref());
        (targets.main.to_string(), targets.hold_beside.map(|hold| hold.to_string()))
    }

    #[test]
    fn a_holding_tag_stands_in_for_a_digest_and_for_nothing_else() {
        let digest = Digest::sha256(b"x");
        let long = Algorithm::Sha512.digest(b"x");
        for (reference, hold, main, beside) in [
            ("r.io/a".to_owned(), None, ":latest".to_owned(), None),
            ("r.io/a:1".to_owned(), Some("held"), ":1".to_owned(), None),
            (format!("r.io/a:1@{digest}"), Some("held"), ":1".to_owned(), None),
            (format!("r.io/a@{digest}"), None, format!("@{digest}"), None),
            (format!("r.io/a@{digest}"), Some("held"), ":held".to_owned(), None),
            (format!("r.io/a@{long}"), Some("held"), format!("@{long}"), Some(":held".to_owned())),
        ] {
            assert_eq!(names(&reference, hold), (main, beside), "{reference} {hold:?}");
        }
    }

    #[test]
    fn a_digest_that_was_asked_for_must_come_out() {
        let manifest = |content: &'static [u8]| Manifest {
            media_type: OCI_INDEX.to_owned(),
            digest: Digest::sha256(content),
            bytes: content.into(),
        };
        for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
            let (one, other) = (algorithm.digest(b"x"), algorithm.digest(b"y"));
            let targets = Targets::of(&Reference::parse(&format!("r.io/a:1@{one}")).unwrap(), None);
            assert!(targets.check(&manifest(b"x")).is_ok());
            let refusal = targets.check(&manifest(b"y")).unwrap_err();
            assert!(
                matches!(refusal, CopyError::OtherDigest { ref found, .. } if **found == other),
                "{refusal}"
            );
            assert!(targets.admit(one) && !targets.admit(other));
            assert_eq!(targets.held(), Some(one));
        }
    }
}
