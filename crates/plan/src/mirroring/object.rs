//! One mirror object as planning sees it.

use std::sync::Arc;

use fairlead_domain::reference::Reference;

use crate::credentials::Principal;
use crate::ledger::Ledger;
use crate::routing::Policy;
use crate::usage::{Holder, Used};

/// What is known of one mirror object.
#[derive(Debug, Clone, Copy)]
pub struct MirrorObject<'a> {
    pub ledger: &'a Ledger,
    /// `None` while the object is invalid. No policy vouches for its rows then: they own nothing, but what they
    /// name is not deleted either.
    pub policy: Option<&'a Policy>,
    /// The images in use that it selects, in order.
    pub used: &'a [Used],
    /// It is being deleted: it claims nothing any more, and asks only what others need of its copies.
    pub leaving: bool,
}

impl<'a> MirrorObject<'a> {
    pub fn namespace(&self) -> Option<&'a Arc<str>> {
        self.ledger.owner().namespace.as_ref()
    }

    /// On whose behalf registries are asked.
    pub fn principal(&self) -> Principal {
        Principal::of_namespace(self.namespace())
    }

    /// Whether a copy lies in one of the object's mirrors. What its ledger says of others leads to nothing.
    pub fn keeps(&self, copy: &Reference) -> bool {
        self.policy.is_some_and(|policy| policy.keeps(copy))
    }

    /// How an image is used, if it is.
    pub fn use_of(&self, source: &Reference) -> Option<&'a Used> {
        let at = self.used.binary_search_by(|used| used.image.cmp(source)).ok()?;
        self.used.get(at)
    }

    /// Who uses an image, with which pull secrets.
    pub fn holders(&self, source: &Reference) -> Arc<[Holder]> {
        self.use_of(source).map(|used| Arc::clone(&used.holders)).unwrap_or_default()
    }
}
