//! Which source a copy belongs to, as every replica knows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fairlead_api::fairlead::CopyState;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use fairlead_plan::access::{self, Made, Recorded, Standing};
use fairlead_plan::consistency::Pair;
use fairlead_plan::ledger::{Owner, OwnerKind, row_counts};
use fairlead_plan::mirroring::{Claimed, is_foreign};
use fairlead_plan::routing::{self, GuardedCopy};
use jiff::Timestamp;
use kube::api::DynamicObject;
use parking_lot::{RwLock, RwLockReadGuard};

use super::index::{HashedRow, Head, Mark, RowIndex, name_of, namespace_name};
use super::sink::LedgerSink;
use crate::cluster::state::{Bell, Changes, Key};
use crate::cluster::watch::sink::Sink;

/// What the ledgers say, as hashes. Clones share everything; the watch of ledgers alone writes it.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    shared: Arc<ClaimsInner>,
}

#[derive(Debug, Default)]
struct ClaimsInner {
    index: RwLock<RowIndex>,
    listed: AtomicBool,
    changed: Bell,
}

/// A ledger as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerObject {
    pub key: Key,
    /// Its resource version.
    pub version: Arc<str>,
    /// The object that it belongs to.
    pub owner: Arc<Owner>,
}

/// Ledgers that are asked to have one image looked at again.
const MOST_HOLDERS: usize = 8;

impl Claims {
    /// Takes a ledger as it is stored, where no watch runs. One that cannot be read counts for nothing.
    pub fn learn(&self, ledger: &DynamicObject, operator_namespace: &str) {
        let text = serde_json::to_string(ledger).unwrap_or_default();
        if let Ok(ledger) = serde_json::from_str(&text) {
            LedgerSink::new(operator_namespace, self.clone()).applied(ledger);
        }
    }

    /// Whether the destination belongs to other sources only, so that what is there must not be taken for a copy of
    /// this one. An unclaimed destination refuses no source, nor does one that is named by its digest: it cannot
    /// hold anything else. A row counts only within the mirrors of its object, as the policies have them.
    pub fn refuses(&self, source: &Reference, destination: &Reference, policies: &routing::Index) -> bool {
        let index = self.read();
        if index.is_empty() || destination.digest().is_some() {
            return false;
        }
        let source = name_of(source);
        let rows = index.owned_rows(name_of(destination));
        let rows = rows.filter(|(owner, _)| row_counts(owner.kind, policies.owner(owner), destination));
        is_foreign(rows.map(|(_, row)| Claimed {
            own: row.source == source,
            state: row.state,
            filled: row.digest.is_some(),
            replaces: row.replaces,
        }))
    }

    /// Where a namespace stands with a copy of a mirror that asks for proof of access.
    pub fn standing(
        &self,
        copy: &GuardedCopy<'_>,
        namespace: &str,
        policies: &routing::Index,
        counts: impl Fn(Timestamp) -> bool,
    ) -> Standing {
        let index = self.read();
        let (source, namespace) = (name_of(copy.source), namespace_name(namespace));
        let is_own = |owner: &Owner| policies.owner(owner).is_some_and(|policy| policy.id() == copy.policy);
        let rows = index.owned_rows(name_of(copy.copy)).map(|(owner, row)| Made {
            by: Recorded::by_mirror(is_own(owner)),
            of_source: row.source == source,
            state: row.state,
            replaces: row.replaces,
            written: row.written,
        });
        access::standing(copy.source, rows, || {
            let mut proofs = index.owned_proofs(source).filter(|(_, proof)| proof.namespace == namespace);
            proofs.any(|(owner, proof)| counts(proof.at) && is_own(owner))
        })
    }

    /// Whether a ledger says that the copy was made of the source as both are now. With `mirroring.platforms` a copy
    /// has a digest of its own.
    pub fn has_pair(&self, pair: &Pair<'_>, policies: &routing::Index) -> bool {
        let index = self.read();
        let (source, copied) = (name_of(pair.source), Some(Mark::of(pair.copy_digest)));
        let is_copy = |row: &HashedRow| {
            row.state == CopyState::Mirrored && row.source == source && row.digest == copied
        };
        let counts = |owner: &Owner| row_counts(owner.kind, policies.owner(owner), pair.copy);
        !index.is_empty()
            && index.owned_rows(name_of(pair.copy)).any(|(owner, row)| is_copy(row) && counts(owner))
            && index.source(source).any(|known| known == Mark::of(pair.source_digest))
    }

    /// Every ledger there is, by namespace and name.
    pub fn objects(&self) -> Vec<LedgerObject> {
        let object = |(key, head): (&Key, &Head)| LedgerObject {
            key: key.clone(),
            version: head.version.clone(),
            owner: head.owner.clone(),
        };
        self.read().ledgers().map(object).collect()
    }

    /// Word of every change that follows. To miss none, listen first and look then.
    pub fn changes(&self) -> Changes {
        self.shared.changed.listen()
    }

    /// Whether all ledgers are known, and not just the first of a list under way.
    pub fn listed(&self) -> bool {
        self.shared.listed.load(Ordering::Acquire)
    }

    /// Whether a ledger says that a copy is in place there.
    pub(super) fn is_copy(&self, image: &Reference) -> bool {
        let index = self.read();
        !index.is_empty() && index.rows(name_of(image)).any(|row| row.state == CopyState::Mirrored)
    }

    /// Whether a ledger has another digest for a copy that is in place there, or for an image that is copied from
    /// there.
    pub(super) fn contradict(&self, image: &Reference, digest: &Digest) -> bool {
        let index = self.read();
        if index.is_empty() || image.digest().is_some() {
            return false;
        }
        let (name, digest) = (name_of(image), Mark::of(digest));
        let copies = index.rows(name).filter(|row| row.state == CopyState::Mirrored);
        let mut known = copies.filter_map(|row| row.digest).chain(index.source(name));
        known.any(|known| known != digest)
    }

    /// Ledgers of objects of a kind.
    pub fn count_of(&self, kind: OwnerKind) -> usize {
        self.read().ledgers().filter(|(_, head)| head.owner.kind == kind).count()
    }

    /// Ledgers in which the image is, and what they ask to be looked at again.
    pub(super) fn holders(&self, image: &Reference) -> Vec<(Key, Arc<[Reference]>)> {
        let index = self.read();
        let holders = index.holders(name_of(image), MOST_HOLDERS);
        holders.map(|(key, head)| (key.clone(), head.look_again.clone())).collect()
    }

    /// The ledgers that ask for something to be looked at again.
    pub(super) fn asking(&self) -> Vec<(Key, Head)> {
        let index = self.read();
        let asking = index.ledgers().filter(|(_, head)| !head.look_again.is_empty());
        asking.map(|(key, head)| (key.clone(), head.clone())).collect()
    }

    /// Everything was listed.
    pub(super) fn replace(&self, index: RowIndex) {
        *self.shared.index.write() = index;
        self.shared.listed.store(true, Ordering::Release);
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut RowIndex)) {
        change(&mut self.shared.index.write());
    }

    /// Lets those who listen look again.
    pub(super) fn tell(&self) {
        self.shared.changed.ring();
    }

    pub(super) fn count(&self) -> usize {
        self.read().len()
    }

    fn read(&self) -> RwLockReadGuard<'_, RowIndex> {
        self.shared.index.read()
    }
}
