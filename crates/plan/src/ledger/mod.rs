//! The ledger of one policy object: every image that it is about, where its copies are and what they must contain, and
//! what the last look at it found.
//!
//! It is kept in memory whole and stored in pieces. One object for all images would outgrow what the API server takes,
//! and one for each would cost a request for each; so entries lie in shards of bounded size, and a change rewrites one
//! shard. The ledger knows which shards differ from what is stored. The caller that stores them asks for a draft,
//! writes it whenever it suits, and reports back with the draft's ticket: changes made meanwhile are not forgotten.

mod digests;
mod entry;
mod owner;
mod shard;
mod stored;
mod summary;
#[cfg(test)]
mod tests;
mod trust;
mod versions;

use std::collections::BTreeMap;

use fairlead_api::fairlead::LedgerManner;
use fairlead_domain::reference::Reference;

pub use self::digests::Digests;
pub(crate) use self::entry::whole_seconds;
pub use self::entry::{Copy, Entry, MOST_ERROR_CHARACTERS, Named, Watch, storable};
pub(crate) use self::owner::stored_prefix;
pub use self::owner::{Owner, OwnerKind};
use self::shard::Shard;
pub use self::shard::{Draft, ShardId, Ticket};
use self::stored::Size;
pub use self::stored::{MOST_BYTES, StoredShard};
pub use self::summary::sum_up;
pub use self::trust::{Distrust, FoundLedger, FoundReference, row_counts, trusted};
pub use self::versions::{Foreign, foreign_write};

/// All entries of one owner.
#[derive(Debug)]
pub struct Ledger {
    owner: Owner,
    /// How copies are made from now on.
    manner: LedgerManner,
    entries: BTreeMap<Reference, Placed>,
    shards: BTreeMap<ShardId, Shard>,
    /// Counts changes.
    clock: u64,
}

/// One change that a planner wants.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerChange {
    pub source: Reference,
    /// The entry as it is to be. `None`: it goes.
    pub entry: Option<Entry>,
}

impl LedgerChange {
    pub fn set(source: &Reference, entry: Entry) -> Self {
        Self { source: source.clone(), entry: Some(entry) }
    }

    pub fn remove(source: &Reference) -> Self {
        Self { source: source.clone(), entry: None }
    }
}

#[derive(Debug)]
struct Placed {
    /// Boxed, because a map has room to spare for what it holds, and an entry is large.
    entry: Box<Entry>,
    shard: ShardId,
    /// When it came to this shard, or got its newest copy.
    grown: u64,
}

impl Ledger {
    pub fn new(owner: Owner) -> Self {
        Self {
            owner,
            manner: LedgerManner::default(),
            entries: BTreeMap::new(),
            shards: BTreeMap::new(),
            clock: 0,
        }
    }

    /// The ledger that is stored in objects.
    ///
    /// They may have been edited, and a crash may have left an image in two. What cannot be read is left out, of an
    /// image in two shards the first counts, and shards for which that makes a difference are dirty.
    pub fn load(owner: Owner, objects: impl IntoIterator<Item: Into<StoredShard>>) -> Self {
        let mut ledger = Self::new(owner);
        let objects = objects.into_iter().map(Into::<StoredShard>::into);
        let mut objects: Vec<_> =
            objects.map(|object| (ledger.owner.shard_named(&object.name), object)).collect();
        // Names that are not of our making come last, so that they take no number from one that is.
        objects.sort_by(|(one_id, one), (other_id, other)| {
            (one_id.is_none(), one_id, &one.name).cmp(&(other_id.is_none(), other_id, &other.name))
        });
        objects.dedup_by(|(_, one), (_, other)| one.name == other.name);
        let mut read = Vec::with_capacity(objects.iter().map(|(_, object)| object.entries.len()).sum());
        for (numbered, object) in objects {
            let id = numbered.unwrap_or_else(|| ledger.free_number());
            let mut shard = Shard::stored(object.name.into(), object.version, object.manner);
            if !object.whole {
                shard.change(ledger.tick());
            }
            read.extend(object.entries.into_iter().map(|(source, entry)| (id, source, entry)));
            ledger.shards.insert(id, shard);
        }
        ledger.arrange(read);
        ledger
    }

    /// Puts entries where they were found, as far as that is possible.
    fn arrange(&mut self, mut read: Vec<(ShardId, Reference, Box<Entry>)>) {
        read.sort_by(|(_, one, _), (_, other, _)| one.cmp(other));
        let mut placed: Vec<(Reference, Placed)> = Vec::with_capacity(read.len());
        let mut homeless = Vec::new();
        for (id, source, entry) in read {
            let size = Size::of(&source, &entry);
            let Some(shard) = self.shards.get_mut(&id) else { continue };
            if placed.last().is_some_and(|(last, _)| *last == source) {
                self.clock += 1;
                shard.change(self.clock);
            } else if shard.size.has_room_for(&size) {
                shard.size += size;
                placed.push((source, Placed { entry, shard: id, grown: 0 }));
            } else {
                homeless.push((id, source, entry));
            }
        }
        // A map made of a sorted list has no gaps in its memory.
        self.entries = placed.into_iter().collect();
        for (id, source, entry) in homeless {
            if !self.entries.contains_key(&source) {
                self.insert(source, *entry);
            }
            let now = self.tick();
            if let Some(shard) = self.shards.get_mut(&id) {
                shard.change(now);
                shard.stand_back(now);
            }
        }
        let now = self.tick();
        for shard in self.shards.values_mut().filter(|shard| shard.is_empty()) {
            shard.change(now);
        }
    }

    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// From now on copies are made in this manner. Returns the images whose copies were made in another; that is
    /// forgotten hereby.
    pub fn adopt_manner(&mut self, manner: &LedgerManner) -> Vec<Reference> {
        self.manner = manner.clone();
        let now = self.tick();
        let mut outdated = Vec::new();
        for (id, shard) in self.shards.iter_mut().filter(|(_, shard)| shard.manner != *manner) {
            shard.manner = manner.clone();
            shard.change(now);
            outdated.push(*id);
        }
        let entries = self.entries.iter().filter(|(_, placed)| outdated.contains(&placed.shard));
        entries.map(|(source, _)| source.clone()).collect()
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn get(&self, source: &Reference) -> Option<&Entry> {
        self.entries.get(source).map(|placed| &*placed.entry)
    }

    /// In order of source.
    pub fn iter(&self) -> impl Iterator<Item = (&Reference, &Entry)> {
        self.entries.iter().map(|(source, placed)| (source, &*placed.entry))
    }

    /// Whether all copies of an image are among what is stored, in whatever state. Only then may one be made: a crash
    /// would leave an unknown one behind.
    pub fn is_stored(&self, source: &Reference) -> bool {
        self.entries.get(source).is_some_and(|placed| {
            let shard = self.shards.get(&placed.shard);
            shard.and_then(|shard| shard.stored).is_some_and(|stored| placed.grown <= stored)
        })
    }

    /// Carries out what a planner wants, in order.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = LedgerChange>) {
        for LedgerChange { source, entry } in changes {
            match entry {
                Some(entry) => {
                    self.insert(source, entry);
                }
                None => {
                    self.remove(&source);
                }
            }
        }
    }

    /// Changes an entry, for tests; `false` if there is none. What planners want is for [`Self::apply`].
    pub fn edit(&mut self, source: &Reference, change: impl FnOnce(&mut Entry)) -> bool {
        let Some(mut entry) = self.get(source).cloned() else { return false };
        change(&mut entry);
        self.replace(source, entry);
        true
    }

    /// Replaces an entry that is there. Its shard becomes dirty only if the entry is another afterwards.
    ///
    /// The entry is brought into the form in which it can be stored: times to the second, errors cut, `Mirrored` only
    /// with a digest.
    fn replace(&mut self, source: &Reference, mut entry: Entry) {
        let Some(placed) = self.entries.get_mut(source) else { return };
        entry.tidy();
        if *placed.entry == entry {
            return;
        }
        let before = std::mem::replace(&mut *placed.entry, entry);
        self.clock += 1;
        let has_more = placed.entry.copies.iter().any(|copy| before.copy_at(&copy.destination).is_none());
        if has_more {
            placed.grown = self.clock;
        }
        let size = Size::of(source, &placed.entry);
        let id = placed.shard;
        let Some(shard) = self.shards.get_mut(&id) else { return };
        shard.size -= Size::of(source, &before);
        if shard.size.has_room_for(&size) {
            shard.size += size;
            shard.change(self.clock);
        } else {
            self.move_from(id, source, size);
        }
    }

    /// Takes an entry to another shard, which is to be written first: a crash between the two writes then leaves the
    /// entry in both rather than on none.
    fn move_from(&mut self, from: ShardId, source: &Reference, size: Size) {
        let to = self.make_room(size);
        let place = self.shards.get(&from).and_then(Shard::dirty_since).unwrap_or(self.clock);
        let arrived = self.tick();
        if let Some(shard) = self.shards.get_mut(&to) {
            shard.size += size;
            shard.change(arrived);
            shard.hurry(place);
        }
        if let Some(placed) = self.entries.get_mut(source) {
            (placed.shard, placed.grown) = (to, arrived);
        }
        let left = self.tick();
        if let Some(shard) = self.shards.get_mut(&from) {
            shard.change(left);
            shard.stand_back(left);
        }
    }

    /// Adds an entry, or replaces it. `false`: the reference is one that no ledger can hold, see [`storable`]; nothing
    /// has changed then.
    pub fn insert(&mut self, mut source: Reference, mut entry: Entry) -> bool {
        if !storable(&source) {
            return false;
        }
        if self.entries.contains_key(&source) {
            self.replace(&source, entry);
            return true;
        }
        entry::normalise(&mut source);
        entry.tidy();
        let size = Size::of(&source, &entry);
        let id = self.make_room(size);
        let now = self.tick();
        if let Some(shard) = self.shards.get_mut(&id) {
            shard.size += size;
            shard.change(now);
        }
        self.entries.insert(source, Placed { entry: Box::new(entry), shard: id, grown: now });
        true
    }

    pub fn remove(&mut self, source: &Reference) -> Option<Entry> {
        let placed = self.entries.remove(source)?;
        let now = self.tick();
        if let Some(shard) = self.shards.get_mut(&placed.shard) {
            shard.size -= Size::of(source, &placed.entry);
            shard.change(now);
        }
        Some(*placed.entry)
    }

    /// A shard with room: one that has to be written anyway rather than one that has not, else a new one.
    fn make_room(&mut self, size: Size) -> ShardId {
        let roomy = self.shards.iter().filter(|(_, shard)| shard.size.has_room_for(&size));
        if let Some((id, _)) = roomy.min_by_key(|(id, shard)| (shard.dirty_since().is_none(), **id)) {
            return *id;
        }
        let id = self.free_number();
        let shard = Shard::new(self.owner.object_name(id).into(), self.manner.clone());
        self.shards.insert(id, shard);
        id
    }

    fn free_number(&self) -> ShardId {
        let taken = (0..).zip(self.shards.keys()).take_while(|(number, id)| *number == id.0);
        ShardId(taken.last().map_or(0, |(number, _)| number + 1))
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub fn shards(&self) -> impl Iterator<Item = ShardId> {
        self.shards.keys().copied()
    }

    /// Shards that changed since they were stored, in the order in which they are to be written: the oldest change
    /// first.
    pub fn dirty(&self) -> Vec<ShardId> {
        let dirty = self.shards.iter().filter_map(|(id, shard)| Some((shard.dirty_since()?, *id)));
        let mut dirty: Vec<_> = dirty.collect();
        dirty.sort_unstable();
        dirty.into_iter().map(|(_, id)| id).collect()
    }

    /// What to write so that a shard is stored as it is now. A shard without entries is to be deleted, also where it
    /// was never stored as far as is known: a write whose answer was lost may have succeeded.
    pub fn draft(&self, id: ShardId) -> Draft {
        let ticket = Ticket(self.clock);
        let shard = self.shards.get(&id);
        let name = shard.map_or_else(|| self.owner.object_name(id), |shard| shard.name.to_string());
        let version = shard.and_then(|shard| shard.version.as_deref()).map(str::to_owned);
        if shard.is_none_or(Shard::is_empty) {
            return Draft::Delete { name, version, ticket };
        }
        let own = self.entries.iter().filter(|(_, placed)| placed.shard == id);
        let entries = own.map(|(source, placed)| stored::write(source, &placed.entry)).collect();
        let manner = shard.map_or_else(LedgerManner::default, |shard| shard.manner.clone());
        Draft::Write { name, version, manner, entries, ticket }
    }

    /// A draft was carried out: the object now has this version, or is deleted.
    pub fn written(&mut self, id: ShardId, ticket: Ticket, version: Option<String>) {
        if version.is_none() && self.shards.get(&id).is_none_or(Shard::is_empty) {
            self.shards.remove(&id);
            return;
        }
        self.known_shard(id).written(ticket, version);
    }

    /// Another writer changed or deleted the object: it is to be written over that version, or created.
    pub fn lost(&mut self, id: ShardId, version: Option<String>) {
        if version.is_none() && self.shards.get(&id).is_none_or(Shard::is_empty) {
            self.shards.remove(&id);
            return;
        }
        let now = self.tick();
        self.known_shard(id).lost(version, now);
    }

    /// The shard of a number. One that is not there any more, and of which an object turns up, has to be deleted again.
    fn known_shard(&mut self, id: ShardId) -> &mut Shard {
        let now = self.tick();
        self.shards.entry(id).or_insert_with(|| {
            let mut shard = Shard::new(self.owner.object_name(id).into(), self.manner.clone());
            shard.change(now);
            shard
        })
    }

    /// The version of the object that a shard is stored in, as far as it is known.
    pub fn version(&self, id: ShardId) -> Option<&str> {
        self.shards.get(&id)?.version.as_deref()
    }

    /// The shard that is stored in an object of this name, with its version as far as it is known.
    pub fn by_object(&self, name: &str) -> Option<(ShardId, Option<&str>)> {
        let named = |id: &ShardId| self.shards.get(id).is_some_and(|shard| &*shard.name == name);
        let by_number = self.owner.shard_named(name).filter(named);
        let id = by_number.or_else(|| self.shards().find(named))?;
        Some((id, self.shards.get(&id)?.version.as_deref()))
    }
}
