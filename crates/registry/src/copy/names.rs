//! Under which names an image is to be found at the destination.

use fairlead_domain::{
    digest::{Algorithm, Digest},
    reference::{Reference, Tag},
};

use super::CopyError;
use crate::manifest::Selector;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// The name that tells whether the image is there, and under which it is published.
    pub(super) main: Selector,
    /// A holding tag that is published besides.
    pub(super) hold_beside: Option<Selector>,
    /// The digest that the destination asks for.
    stated: Option<Digest>,
}

impl Names {
    /// A manifest that is written under a tag is served by its digest, too, so a holding tag takes the digest's place: one
    /// request writes both, one looks for both. Registries name what they store by SHA-256 only; an image that is asked
    /// for by another digest is written under both names.
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

    /// The digest that a tag is to stand for, where the destination asks for one.
    pub(super) fn held(&self) -> Option<Digest> {
        self.stated.filter(|_| self.main.digest().is_none())
    }

    /// Whether an image with this digest may have these names.
    pub(super) fn check(&self, digest: Digest) -> Result<(), CopyError> {
        match self.stated {
            Some(stated) if stated.algorithm() == digest.algorithm() && stated != digest => {
                Err(CopyError::OtherDigest { wanted: Box::new(stated), found: Box::new(digest) })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(reference: &str, hold: Option<&str>) -> (String, Option<String>) {
        let hold = hold.map(|tag| Tag::parse(tag).unwrap());
        let names = Names::of(&Reference::parse(reference).unwrap(), hold.as_ref());
        (names.main.to_string(), names.hold_beside.map(|hold| hold.to_string()))
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
        let (one, other) = (Digest::sha256(b"x"), Digest::sha256(b"y"));
        let wanted = Reference::parse(&format!("r.io/a:1@{one}")).unwrap();
        let names = Names::of(&wanted, None);
        assert!(names.check(one).is_ok());
        assert!(matches!(names.check(other), Err(CopyError::OtherDigest { .. })));
        assert_eq!(names.held(), Some(one));
    }
}
