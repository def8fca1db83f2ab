//! The rows of all ledgers as hashes, found by what they are about.
//!
//! Texts would be ten times as large, and this index never prints one. Hashes are keyed anew in every process,
//! so names that collide cannot be chosen.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};

use fairlead_api::fairlead::CopyState;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use fairlead_plan::ledger::Owner;
use jiff::Timestamp;

use crate::cluster::state::Key;

static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// What a reference stands for in its registry: spellings that a runtime would pull as the same are the same.
pub(super) fn name_of(reference: &Reference) -> u64 {
    KEYS.hash_one(reference.key())
}

/// A namespace, as proofs name it.
pub(super) fn namespace_name(namespace: &str) -> u64 {
    KEYS.hash_one(namespace)
}

/// Short, since it only has to tell two digests of one image apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark(NonZeroU32);

impl Mark {
    pub(super) fn of(digest: &Digest) -> Self {
        let [a, b, c, d, ..] = KEYS.hash_one(digest).to_le_bytes();
        Self(NonZeroU32::new(u32::from_le_bytes([a, b, c, d])).unwrap_or(NonZeroU32::MIN))
    }
}

/// One copy, found by its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HashedRow {
    pub(super) source: u64,
    /// The digest that it must have.
    pub(super) digest: Option<Mark>,
    pub(super) state: CopyState,
    /// Another source's copy is there until this one is made.
    pub(super) replaces: bool,
    /// We wrote what is there.
    pub(super) written: bool,
}

/// Proof that a namespace has access to a source, found by the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Proof {
    pub(super) namespace: u64,
    pub(super) at: Timestamp,
}

/// What one ledger says, as it was decoded.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    /// By destination.
    pub(super) copies: Vec<(u64, HashedRow)>,
    /// By source: the digest that it had.
    pub(super) sources: Vec<(u64, Mark)>,
    /// By source: the namespaces that have proven access to it.
    pub(super) proofs: Vec<(u64, Proof)>,
    /// What a replica asks the lease holder to look at again.
    pub(super) look_again: Arc<[Reference]>,
}

/// One ledger that counts.
#[derive(Debug, Clone)]
pub(super) struct IndexedLedger {
    pub(super) head: Head,
    pub(super) rows: Rows,
}

/// What is known of a ledger as an object.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) version: Arc<str>,
    /// The object that it belongs to.
    pub(super) owner: Arc<Owner>,
    /// What a replica asks the lease holder to look at again.
    pub(super) look_again: Arc<[Reference]>,
}

/// All ledgers.
#[derive(Debug, Default)]
pub(super) struct RowIndex {
    ledgers: BTreeMap<Key, (LedgerId, Head)>,
    owners: HashMap<LedgerId, Arc<Owner>>,
    next: LedgerId,
    rows: Table<HashedRow>,
    sources: Table<Mark>,
    proofs: Table<Proof>,
}

type LedgerId = u32;

impl RowIndex {
    /// All at once, which is cheaper than one after the other.
    pub(super) fn of(ledgers: BTreeMap<Key, IndexedLedger>) -> Self {
        let mut index = Self::default();
        let all = || ledgers.values().map(|content| &content.rows);
        let mut rows = Vec::with_capacity(all().map(|rows| rows.copies.len()).sum());
        let mut sources = Vec::with_capacity(all().map(|rows| rows.sources.len()).sum());
        let mut proofs = Vec::with_capacity(all().map(|rows| rows.proofs.len()).sum());
        for (key, content) in ledgers {
            let id = index.enter(key, content.head);
            rows.extend(items(id, content.rows.copies));
            sources.extend(items(id, content.rows.sources));
            proofs.extend(items(id, content.rows.proofs));
        }
        index.rows.add(rows);
        index.sources.add(sources);
        index.proofs.add(proofs);
        index
    }

    pub(super) fn insert(&mut self, key: Key, content: IndexedLedger) {
        self.remove(&key);
        let id = self.enter(key, content.head);
        self.rows.add(items(id, content.rows.copies).collect());
        self.sources.add(items(id, content.rows.sources).collect());
        self.proofs.add(items(id, content.rows.proofs).collect());
    }

    pub(super) fn remove(&mut self, key: &Key) {
        if let Some((id, _)) = self.ledgers.remove(key) {
            self.owners.remove(&id);
            self.rows.take_away(id);
            self.sources.take_away(id);
            self.proofs.take_away(id);
        }
    }

    fn enter(&mut self, key: Key, head: Head) -> LedgerId {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        self.owners.insert(id, Arc::clone(&head.owner));
        self.ledgers.insert(key, (id, head));
        id
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.items.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.ledgers.len()
    }

    pub(super) fn ledgers(&self) -> impl Iterator<Item = (&Key, &Head)> {
        self.ledgers.iter().map(|(key, (_, head))| (key, head))
    }

    pub(super) fn rows(&self, destination: u64) -> impl Iterator<Item = &HashedRow> {
        self.rows.get(destination).map(|item| &item.value)
    }

    /// The same, with the object that each row is of.
    pub(super) fn owned_rows(&self, destination: u64) -> impl Iterator<Item = (&Owner, &HashedRow)> {
        self.rows.get(destination).filter_map(|item| Some((&**self.owners.get(&item.ledger)?, &item.value)))
    }

    /// The proofs of access to a source, with the object whose ledger has each.
    pub(super) fn owned_proofs(&self, source: u64) -> impl Iterator<Item = (&Owner, &Proof)> {
        self.proofs.get(source).filter_map(|item| Some((&**self.owners.get(&item.ledger)?, &item.value)))
    }

    /// The digests that ledgers know of a source.
    pub(super) fn source(&self, source: u64) -> impl Iterator<Item = Mark> {
        self.sources.get(source).map(|item| item.value)
    }

    /// The ledgers that have the reference as a copy in place or as a source, at most so many.
    pub(super) fn holders(&self, name: u64, most: usize) -> impl Iterator<Item = (&Key, &Head)> {
        let copies = self.rows.get(name).filter(|item| item.value.state == CopyState::Mirrored);
        let sources = self.sources.get(name).map(|item| item.ledger);
        let wanted: BTreeSet<LedgerId> = copies.map(|item| item.ledger).chain(sources).collect();
        let found = self.ledgers.iter().filter(move |(_, (id, _))| wanted.contains(id));
        found.map(|(key, (_, head))| (key, head)).take(most)
    }
}

fn items<T>(ledger: LedgerId, content: Vec<(u64, T)>) -> impl Iterator<Item = Item<T>> {
    content.into_iter().map(move |(name, value)| Item { name, ledger, value })
}

#[derive(Debug)]
pub(super) struct Item<T> {
    name: u64,
    ledger: LedgerId,
    value: T,
}

/// Values in the order of their names. There are many, they are looked up all the time, and a ledger changes now and
/// then: nothing is smaller, and moving a megabyte takes less than a millisecond.
#[derive(Debug)]
struct Table<T> {
    items: Vec<Item<T>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { items: Vec::new() }
    }
}

impl<T> Table<T> {
    fn get(&self, name: u64) -> impl Iterator<Item = &Item<T>> {
        let first = self.items.partition_point(|item| item.name < name);
        self.items.iter().skip(first).take_while(move |item| item.name == name)
    }

    fn add(&mut self, items: Vec<Item<T>>) {
        if self.items.is_empty() {
            self.items = items;
        } else {
            self.items.reserve_exact(items.len());
            self.items.extend(items);
        }
        // Made for what is mostly in order already.
        self.items.sort_by_key(|item| item.name);
    }

    fn take_away(&mut self, ledger: LedgerId) {
        self.items.retain(|item| item.ledger != ledger);
    }
}
