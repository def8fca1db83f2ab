//! What mirrors want looked at: sources, which may move, and copies, which may go.

use std::sync::Arc;

use fairlead_api::fairlead::CopyState;
use fairlead_domain::cause::Cause;
use fairlead_domain::reference::Reference;
use jiff::Timestamp;

use crate::credentials::Principal;
use crate::mirroring::MirrorObject;
use crate::routing::{Index, SecretName};
use crate::usage::Holder;

/// One image that a mirror wants looked at: a source or a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorLook {
    pub reference: Reference,
    /// When it was last looked at, or copied.
    pub last: Timestamp,
    /// Whose pull secrets open it.
    pub holders: Arc<[Holder]>,
    /// Shared by all images that are looked at in the same way.
    pub access: Arc<LookAccess>,
}

/// Whose request a look is, and what it may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookAccess {
    /// What the look finds is used for this principal only.
    pub principal: Principal,
    /// The mirror's own Secret, for its copies; it is tried first.
    pub secret: Option<SecretName>,
    /// Who chose the host.
    pub cause: Cause,
}

/// Everything that mirrors want looked at.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MirrorLooks {
    /// In order of references and principals, each once.
    list: Vec<MirrorLook>,
}

impl MirrorLooks {
    /// Of an image that is named twice on behalf of one principal the first counts, and what an administrator answers
    /// for before all.
    pub fn new(mut list: Vec<MirrorLook>) -> Self {
        list.sort_by(|one, other| {
            let [by, others] =
                [one, other].map(|look| (&look.reference, &look.access.principal, look.access.cause));
            by.cmp(&others)
        });
        list.dedup_by(|one, other| {
            one.reference == other.reference && one.access.principal == other.access.principal
        });
        Self { list }
    }

    /// The copies that objects keep in their mirrors, and the sources of these in use. A digest names the same image
    /// for ever, so a source with one is not looked at.
    pub fn of_objects<'a>(objects: impl IntoIterator<Item = MirrorObject<'a>>, index: &Index) -> Self {
        let objects: Vec<_> = objects.into_iter().filter(|object| !object.leaving).collect();
        let rows = |object: &MirrorObject<'a>| {
            object.ledger.iter().map(|(_, entry)| 1 + entry.copies.len()).sum::<usize>()
        };
        // There are tens of thousands, so the list has no room to grow.
        let mut looks = Vec::with_capacity(objects.iter().map(rows).sum());
        for object in objects {
            let Some(policy) = object.policy else { continue };
            let principal = object.principal();
            let mut known = KnownAccess { principal: &principal, list: Vec::new() };
            for (source, entry) in object.ledger.iter() {
                let made = entry.copies.iter().filter(|copy| {
                    copy.state == CopyState::Mirrored
                        && copy.kept.is_none()
                        && policy.keeps(&copy.destination)
                });
                let Some(last) = made.clone().map(|copy| copy.since).max() else { continue };
                if entry.unused_since.is_none() && source.digest().is_none() {
                    looks.push(MirrorLook {
                        reference: source.clone(),
                        last,
                        holders: object.holders(source),
                        access: known.share(None, index.cause_of(source)),
                    });
                }
                looks.extend(made.map(|copy| MirrorLook {
                    reference: copy.destination.clone(),
                    last: copy.since,
                    holders: Arc::default(),
                    access: known.share(policy.pull_secret(&copy.destination), principal.cause()),
                }));
            }
        }
        let mut looks = Self::new(looks);
        looks.list.shrink_to_fit();
        looks
    }

    /// These and those of others, which come second where both want the same.
    #[must_use]
    pub fn and(self: Arc<Self>, others: &Self) -> Arc<Self> {
        if others.list.is_empty() {
            return self;
        }
        Arc::new(Self::new(self.list.iter().chain(&others.list).cloned().collect()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &MirrorLook> {
        self.list.iter()
    }

    /// Those of one image.
    pub fn of(&self, reference: &Reference) -> impl Iterator<Item = &MirrorLook> {
        let first = self.list.partition_point(|look| look.reference < *reference);
        self.list.iter().skip(first).take_while(move |look| look.reference == *reference)
    }
}

/// The few ways in which the thousands of images of one object are looked at.
struct KnownAccess<'a> {
    principal: &'a Principal,
    list: Vec<Arc<LookAccess>>,
}

impl KnownAccess<'_> {
    fn share(&mut self, secret: Option<&SecretName>, cause: Cause) -> Arc<LookAccess> {
        let same = |known: &&Arc<LookAccess>| known.secret.as_ref() == secret && known.cause == cause;
        if let Some(known) = self.list.iter().find(same) {
            return Arc::clone(known);
        }
        let access =
            Arc::new(LookAccess { principal: self.principal.clone(), secret: secret.cloned(), cause });
        self.list.push(Arc::clone(&access));
        access
    }
}
