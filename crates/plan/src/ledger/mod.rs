//! The ledger of one policy object: every image that it is about, where its copies are and what they must contain, and
//! what the last look at it found.
//!
//! It is kept in memory whole and stored in pieces. One object for all images would outgrow what the API server takes,
//! and one for each would cost a request for each; so entries lie on shelves of bounded size, and a change rewrites one
//! shelf. The ledger knows which shelves differ from what is stored. The caller that stores them asks for a draft,
//! writes it whenever it suits, and reports back with the draft's ticket: changes made meanwhile are not forgotten.

#![expect(clippy::similar_names, reason = "a shelf and self are told apart well enough")]

mod digests;
mod entry;
mod owner;
mod shelf;
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
use self::shelf::Shelf;
pub use self::shelf::{Draft, ShelfId, Ticket};
use self::stored::Size;
pub use self::stored::{MOST_BYTES, StoredShelf};
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
    shelves: BTreeMap<ShelfId, Shelf>,
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
    shelf: ShelfId,
    /// When it came to this shelf, or got its newest copy.
    grown: u64,
}

impl Ledger {
    pub fn new(owner: Owner) -> Self {
        Self {
            owner,
            manner: LedgerManner::default(),
            entries: BTreeMap::new(),
            shelves: BTreeMap::new(),
            clock: 0,
        }
    }

    /// The ledger that is stored in objects.
    ///
    /// They may have been edited, and a crash may have left an image in two. What cannot be read is left out, of an
    /// image in two shelves the first counts, and shelves for which that makes a difference are dirty.
    pub fn load(owner: Owner, objects: impl IntoIterator<Item: Into<StoredShelf>>) -> Self {
        let mut ledger = Self::new(owner);
        let objects = objects.into_iter().map(Into::<StoredShelf>::into);
        let mut objects: Vec<_> =
            objects.map(|object| (ledger.owner.shelf_named(&object.name), object)).collect();
        // Names that are not of our making come last, so that they take no number from one that is.
        objects.sort_by(|(one_id, one), (other_id, other)| {
            (one_id.is_none(), one_id, &one.name).cmp(&(other_id.is_none(), other_id, &other.name))
        });
        objects.dedup_by(|(_, one), (_, other)| one.name == other.name);
        let mut read = Vec::with_capacity(objects.iter().map(|(_, object)| object.entries.len()).sum());
        for (numbered, object) in objects {
            let id = numbered.unwrap_or_else(|| ledger.free_number());
            let mut shelf = Shelf::stored(object.name.into(), object.version, object.manner);
            if !object.whole {
                shelf.change(ledger.tick());
            }
            read.extend(object.entries.into_iter().map(|(source, entry)| (id, source, entry)));
            ledger.shelves.insert(id, shelf);
        }
        ledger.arrange(read);
        ledger
    }

    /// Puts entries where they were found, as far as that is possible.
    fn arrange(&mut self, mut read: Vec<(ShelfId, Reference, Box<Entry>)>) {
        read.sort_by(|(_, one, _), (_, other, _)| one.cmp(other));
        let mut placed: Vec<(Reference, Placed)> = Vec::with_capacity(read.len());
        let mut homeless = Vec::new();
        for (id, source, entry) in read {
            let size = Size::of(&source, &entry);
            let Some(shelf) = self.shelves.get_mut(&id) else { continue };
            if placed.last().is_some_and(|(last, _)| *last == source) {
                self.clock += 1;
                shelf.change(self.clock);
            } else if shelf.size.has_room_for(&size) {
                shelf.size += size;
                placed.push((source, Placed { entry, shelf: id, grown: 0 }));
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
            if let Some(shelf) = self.shelves.get_mut(&id) {
                shelf.change(now);
                shelf.stand_back(now);
            }
        }
        let now = self.tick();
        for shelf in self.shelves.values_mut().filter(|shelf| shelf.is_empty()) {
            shelf.change(now);
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
        for (id, shelf) in self.shelves.iter_mut().filter(|(_, shelf)| shelf.manner != *manner) {
            shelf.manner = manner.clone();
            shelf.change(now);
            outdated.push(*id);
        }
        let entries = self.entries.iter().filter(|(_, placed)| outdated.contains(&placed.shelf));
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
            let shelf = self.shelves.get(&placed.shelf);
            shelf.and_then(|shelf| shelf.stored).is_some_and(|stored| placed.grown <= stored)
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

    /// Replaces an entry that is there. Its shelf becomes dirty only if the entry is another afterwards.
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
        let id = placed.shelf;
        let Some(shelf) = self.shelves.get_mut(&id) else { return };
        shelf.size -= Size::of(source, &before);
        if shelf.size.has_room_for(&size) {
            shelf.size += size;
            shelf.change(self.clock);
        } else {
            self.move_from(id, source, size);
        }
    }

    /// Takes an entry to another shelf, which is to be written first: a crash between the two writes then leaves the
    /// entry on both rather than on none.
    fn move_from(&mut self, from: ShelfId, source: &Reference, size: Size) {
        let to = self.make_room(size);
        let place = self.shelves.get(&from).and_then(Shelf::dirty_since).unwrap_or(self.clock);
        let arrived = self.tick();
        if let Some(shelf) = self.shelves.get_mut(&to) {
            shelf.size += size;
            shelf.change(arrived);
            shelf.hurry(place);
        }
        if let Some(placed) = self.entries.get_mut(source) {
            (placed.shelf, placed.grown) = (to, arrived);
        }
        let left = self.tick();
        if let Some(shelf) = self.shelves.get_mut(&from) {
            shelf.change(left);
            shelf.stand_back(left);
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
        if let Some(shelf) = self.shelves.get_mut(&id) {
            shelf.size += size;
            shelf.change(now);
        }
        self.entries.insert(source, Placed { entry: Box::new(entry), shelf: id, grown: now });
        true
    }

    pub fn remove(&mut self, source: &Reference) -> Option<Entry> {
        let placed = self.entries.remove(source)?;
        let now = self.tick();
        if let Some(shelf) = self.shelves.get_mut(&placed.shelf) {
            shelf.size -= Size::of(source, &placed.entry);
            shelf.change(now);
        }
        Some(*placed.entry)
    }

    /// A shelf with room: one that has to be written anyway rather than one that has not, else a new one.
    fn make_room(&mut self, size: Size) -> ShelfId {
        let roomy = self.shelves.iter().filter(|(_, shelf)| shelf.size.has_room_for(&size));
        if let Some((id, _)) = roomy.min_by_key(|(id, shelf)| (shelf.dirty_since().is_none(), **id)) {
            return *id;
        }
        let id = self.free_number();
        let shelf = Shelf::new(self.owner.object_name(id).into(), self.manner.clone());
        self.shelves.insert(id, shelf);
        id
    }

    fn free_number(&self) -> ShelfId {
        let taken = (0..).zip(self.shelves.keys()).take_while(|(number, id)| *number == id.0);
        ShelfId(taken.last().map_or(0, |(number, _)| number + 1))
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub fn shelves(&self) -> impl Iterator<Item = ShelfId> {
        self.shelves.keys().copied()
    }

    /// Shelves that changed since they were stored, in the order in which they are to be written: the oldest change
    /// first.
    pub fn dirty(&self) -> Vec<ShelfId> {
        let dirty = self.shelves.iter().filter_map(|(id, shelf)| Some((shelf.dirty_since()?, *id)));
        let mut dirty: Vec<_> = dirty.collect();
        dirty.sort_unstable();
        dirty.into_iter().map(|(_, id)| id).collect()
    }

    /// What to write so that a shelf is stored as it is now. A shelf without entries is to be deleted, also where it
    /// was never stored as far as is known: a write whose answer was lost may have succeeded.
    pub fn draft(&self, id: ShelfId) -> Draft {
        let ticket = Ticket(self.clock);
        let shelf = self.shelves.get(&id);
        let name = shelf.map_or_else(|| self.owner.object_name(id), |shelf| shelf.name.to_string());
        let version = shelf.and_then(|shelf| shelf.version.as_deref()).map(str::to_owned);
        if shelf.is_none_or(Shelf::is_empty) {
            return Draft::Delete { name, version, ticket };
        }
        let own = self.entries.iter().filter(|(_, placed)| placed.shelf == id);
        let entries = own.map(|(source, placed)| stored::write(source, &placed.entry)).collect();
        let manner = shelf.map_or_else(LedgerManner::default, |shelf| shelf.manner.clone());
        Draft::Write { name, version, manner, entries, ticket }
    }

    /// A draft was carried out: the object now has this version, or is deleted.
    pub fn written(&mut self, id: ShelfId, ticket: Ticket, version: Option<String>) {
        if version.is_none() && self.shelves.get(&id).is_none_or(Shelf::is_empty) {
            self.shelves.remove(&id);
            return;
        }
        self.known_shelf(id).written(ticket, version);
    }

    /// Another writer changed or deleted the object: it is to be written over that version, or created.
    pub fn lost(&mut self, id: ShelfId, version: Option<String>) {
        if version.is_none() && self.shelves.get(&id).is_none_or(Shelf::is_empty) {
            self.shelves.remove(&id);
            return;
        }
        let now = self.tick();
        self.known_shelf(id).lost(version, now);
    }

    /// The shelf of a number. One that is not there any more, and of which an object turns up, has to be deleted again.
    fn known_shelf(&mut self, id: ShelfId) -> &mut Shelf {
        let now = self.tick();
        self.shelves.entry(id).or_insert_with(|| {
            let mut shelf = Shelf::new(self.owner.object_name(id).into(), self.manner.clone());
            shelf.change(now);
            shelf
        })
    }

    /// The version of the object that a shelf is stored in, as far as it is known.
    pub fn version(&self, id: ShelfId) -> Option<&str> {
        self.shelves.get(&id)?.version.as_deref()
    }

    /// The shelf that is stored in an object of this name, with its version as far as it is known.
    pub fn by_object(&self, name: &str) -> Option<(ShelfId, Option<&str>)> {
        let named = |id: &ShelfId| self.shelves.get(id).is_some_and(|shelf| &*shelf.name == name);
        let by_number = self.owner.shelf_named(name).filter(named);
        let id = by_number.or_else(|| self.shelves().find(named))?;
        Some((id, self.shelves.get(&id)?.version.as_deref()))
    }
}
