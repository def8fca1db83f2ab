//! What holds whatever happens: a ledger that changes while it is stored, by writes that may fail, be answered late or
//! not at all, beside others who write too.

use std::collections::BTreeMap;

use fairlead_api::fairlead::{LedgerEntry, MAX_COPIES};
use fairlead_api::kuik::{Availability, MAX_MIRRORS};
use proptest::prelude::*;

use super::*;

const SOURCES: usize = 60;

#[derive(Debug, Clone)]
enum LedgerStep {
    Insert(usize, Entry),
    Edit(usize, Change),
    Remove(usize),
    /// Sends the draft of one of the dirty shards.
    Send(usize),
    /// The API server takes one of the drafts that were sent, and the answer arrives or does not.
    Take {
        sent: usize,
        answered: bool,
    },
    /// One of the drafts that were sent never arrives.
    Drop(usize),
    /// Another client writes to a stored object, or deletes it, and it is noticed.
    Meddle {
        object: usize,
        delete: bool,
    },
}

#[derive(Debug, Clone)]
enum Change {
    Nothing,
    Unused(Option<i64>),
    State(usize, CopyState),
    Error(usize, String),
    Copies(usize),
}

/// Errors as registries send them: some of what they contain is several characters in JSON.
fn error() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-z ]{0,40}", 1 => "[\"\\\\\n\u{1}€🚢]{0,300}"]
}

fn state() -> impl Strategy<Value = CopyState> {
    use CopyState::{Deleting, Failed, Mirrored, Pending, Refused};
    prop::sample::select(vec![Pending, Mirrored, Failed, Refused, Deleting])
}

fn time() -> impl Strategy<Value = Timestamp> {
    (0i64..2_000_000_000, 0i32..3)
        .prop_map(|(second, nanosecond)| Timestamp::new(second, nanosecond).unwrap())
}

/// What is known of who wrote a copy and who names it.
fn provenance() -> impl Strategy<Value = Copy> {
    let written = prop::collection::vec(0usize..5, 0..6);
    let named = prop::option::of(prop::option::of(time()));
    (written, any::<bool>(), any::<bool>(), named, prop::option::of(error())).prop_map(
        |(written, adopted, replaces, named, kept)| Copy {
            written: written.into_iter().map(digest).collect(),
            adopted,
            replaces,
            named: named.map(|until| until.map_or(Named::Now, Named::Until)),
            kept: kept.map(Into::into),
            ..pending(&image("m.example.com/copy:1"))
        },
    )
}

fn copies(most: usize) -> impl Strategy<Value = Vec<Copy>> {
    let one = (state(), prop::option::of(0usize..5), prop::option::of(error()), time(), provenance());
    prop::collection::vec(one, 0..=most).prop_map(|all| {
        let copy = |(mirror, (state, content, error, since, known)): (
            usize,
            (_, Option<usize>, Option<String>, _, Copy),
        )| Copy {
            destination: image(&format!("m{mirror}.example.com/copy:1")),
            digest: content.map(digest),
            state,
            since,
            last_error: error.map(Into::into),
            ..known
        };
        all.into_iter().enumerate().map(copy).collect()
    })
}

fn an_entry(most: usize) -> impl Strategy<Value = Entry> {
    let watch = (any::<bool>(), prop::option::of(error()), prop::option::of(0i64..2_000_000_000)).prop_map(
        |(original, error, second)| Watch {
            status: if error.is_some() { Availability::UnavailableSecret } else { Availability::Available },
            last_monitor: second.map(|second| Timestamp::from_second(second).unwrap()),
            last_error: error.map(Into::into),
            original,
        },
    );
    let access = prop::collection::btree_map("[a-z]{0,70}".prop_map(Into::into), time(), 0..70);
    (prop::option::of(0usize..5), prop::option::of(0i64..9), access, copies(most), prop::option::of(watch))
        .prop_map(|(content, unused, access, copies, watch)| Entry {
            source_digest: content.map(digest),
            unused_since: unused.map(at),
            uncopyable: content.is_none() && unused.is_some(),
            access,
            copies,
            watch: watch.map(Box::new),
        })
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        Just(Change::Nothing),
        prop::option::of(0i64..3).prop_map(Change::Unused),
        (0..MAX_MIRRORS, state()).prop_map(|(copy, state)| Change::State(copy, state)),
        (0..MAX_MIRRORS, error()).prop_map(|(copy, error)| Change::Error(copy, error)),
        (0..MAX_MIRRORS + 5).prop_map(Change::Copies),
    ]
}

fn step() -> impl Strategy<Value = LedgerStep> {
    prop_oneof![
        4 => (0..SOURCES, an_entry(MAX_MIRRORS + 3)).prop_map(|(source, entry)| LedgerStep::Insert(source, entry)),
        4 => (0..SOURCES, change()).prop_map(|(source, change)| LedgerStep::Edit(source, change)),
        2 => (0..SOURCES).prop_map(LedgerStep::Remove),
        3 => any::<usize>().prop_map(LedgerStep::Send),
        3 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(sent, answered)| LedgerStep::Take { sent, answered }),
        1 => any::<usize>().prop_map(LedgerStep::Drop),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(object, delete)| LedgerStep::Meddle { object, delete }),
    ]
}

/// The API server: objects by name, with their version.
#[derive(Debug, Default)]
struct Server {
    objects: BTreeMap<String, (u64, Vec<LedgerEntry>)>,
    version: u64,
}

impl Server {
    fn version_of(&self, name: &str) -> Option<String> {
        self.objects.get(name).map(|(version, _)| version.to_string())
    }

    /// The version afterwards, or the one that is in the way.
    fn take(&mut self, draft: &Draft) -> Result<Option<String>, Option<String>> {
        let stored = self.version_of(draft.name());
        match draft {
            Draft::Write { version, name, entries, .. } if *version == stored => {
                self.version += 1;
                self.objects.insert(name.clone(), (self.version, entries.clone()));
                Ok(self.version_of(name))
            }
            Draft::Delete { version, name, .. }
                if version.is_none() || stored.is_none() || *version == stored =>
            {
                self.objects.remove(name);
                Ok(None)
            }
            _ => Err(stored),
        }
    }

    fn load(&self) -> Ledger {
        let objects = self.objects.iter().map(|(name, (version, entries))| {
            // As it goes over the wire.
            let text = serde_json::to_string(entries).unwrap();
            let entries = serde_json::from_str(&text).unwrap();
            (
                name.clone(),
                Some(version.to_string()),
                ImageLedgerSpec { owner: owner().named(), manner: LedgerManner::default(), entries },
            )
        });
        Ledger::load(owner(), objects)
    }
}

#[derive(Debug)]
struct World {
    ledger: Ledger,
    server: Server,
    sent: Vec<(ShardId, Draft)>,
}

impl World {
    /// Images with so many copies each, none of which is stored yet.
    fn new(copies: Vec<usize>) -> Self {
        let mut ledger = Ledger::new(owner());
        for (number, copies) in copies.into_iter().enumerate() {
            let source = source(number);
            let entry = entry(&source, copies);
            ledger.insert(source, entry);
        }
        Self { ledger, server: Server::default(), sent: Vec::new() }
    }

    fn report(&mut self, id: ShardId, draft: &Draft, outcome: Result<Option<String>, Option<String>>) {
        match outcome {
            Ok(version) => self.ledger.written(id, draft.ticket(), version),
            Err(version) => self.ledger.lost(id, version),
        }
    }

    fn step(&mut self, step: LedgerStep) {
        match step {
            LedgerStep::Insert(number, entry) => assert!(self.ledger.insert(source(number), entry)),
            LedgerStep::Edit(number, change) => self.edit(&source(number), change),
            LedgerStep::Remove(number) => {
                let known = self.ledger.get(&source(number)).cloned();
                assert_eq!(self.ledger.remove(&source(number)), known);
            }
            LedgerStep::Send(choice) => {
                let dirty = self.ledger.dirty();
                // One shard is written once at a time.
                let idle: Vec<_> =
                    dirty.into_iter().filter(|id| self.sent.iter().all(|(sent, _)| sent != id)).collect();
                if let Some(id) = idle.get(choice % idle.len().max(1)) {
                    self.sent.push((*id, self.ledger.draft(*id)));
                }
            }
            LedgerStep::Take { sent, answered } if !self.sent.is_empty() => {
                let (id, draft) = self.sent.swap_remove(sent % self.sent.len());
                let outcome = self.server.take(&draft);
                if answered {
                    self.report(id, &draft, outcome);
                }
            }
            LedgerStep::Drop(sent) if !self.sent.is_empty() => {
                self.sent.swap_remove(sent % self.sent.len());
            }
            LedgerStep::Take { .. } | LedgerStep::Drop(_) => {}
            LedgerStep::Meddle { object, delete } => self.meddle(object, delete),
        }
    }

    fn edit(&mut self, source: &Reference, change: Change) {
        let before = self.ledger.get(source).cloned();
        let dirty = self.ledger.dirty();
        let known = self.ledger.edit(source, |entry| {
            let copy = |entry: &mut Entry, number: usize, change: &mut dyn FnMut(&mut Copy)| {
                entry.copies.get_mut(number).into_iter().for_each(change);
            };
            match change {
                Change::Nothing => {}
                Change::Unused(second) => entry.unused_since = second.map(at),
                Change::State(number, state) => copy(entry, number, &mut |copy| copy.state = state),
                Change::Error(number, error) => {
                    copy(entry, number, &mut |copy| copy.last_error = Some(error.as_str().into()));
                }
                Change::Copies(count) => {
                    entry.copies.truncate(count);
                    let more = entry.copies.len()..count;
                    entry.copies.extend(more.map(|mirror| pending(&image(&format!("n{mirror}.io/copy:1")))));
                }
            }
        });
        assert_eq!(known, before.is_some());
        let newly_dirty = self.ledger.dirty().into_iter().filter(|id| !dirty.contains(id)).count();
        let grew =
            |before: &Entry, after: &Entry| Size::of(source, after).bytes > Size::of(source, before).bytes;
        match (before, self.ledger.get(source)) {
            (Some(before), Some(after)) if before == *after => assert_eq!(newly_dirty, 0),
            // One that outgrows its shard moves to another.
            (Some(before), Some(after)) if grew(&before, after) => assert!(newly_dirty <= 2),
            _ => assert!(newly_dirty <= 1),
        }
    }

    fn meddle(&mut self, object: usize, delete: bool) {
        let count = self.server.objects.len().max(1);
        let Some(name) = self.server.objects.keys().nth(object % count).cloned() else { return };
        if delete {
            self.server.objects.remove(&name);
        } else {
            self.server.version += 1;
            self.server.objects.insert(name.clone(), (self.server.version, Vec::new()));
        }
        if let Some((id, _)) = self.ledger.by_object(&name) {
            self.ledger.lost(id, self.server.version_of(&name));
        }
    }

    fn check(&self) {
        let mut images = 0;
        for id in self.ledger.shards() {
            let entries = entries_of(self.ledger.draft(id));
            images += entries.len();
            assert!(entries.iter().map(|entry| entry.mirrors.len().max(1)).sum::<usize>() <= MAX_COPIES);
            assert!(self.ledger.shards[&id].size.bytes <= MOST_BYTES);
            let mut size = Size::default();
            for (source, placed) in self.ledger.entries.iter().filter(|(_, placed)| placed.shard == id) {
                size += Size::of(source, &placed.entry);
            }
            assert_eq!(self.ledger.shards[&id].size, size);
        }
        assert_eq!(images, self.ledger.len());
        let dirty = self.ledger.dirty();
        for id in self.ledger.shards().filter(|id| !dirty.contains(id)) {
            let draft = self.ledger.draft(id);
            assert_eq!(self.server.version_of(draft.name()).as_deref(), draft.version());
            assert_eq!(self.server.objects[draft.name()].1, entries_of(draft));
        }
        self.check_promises();
    }

    /// What is said to be stored is.
    fn check_promises(&self) {
        for (source, entry) in self.ledger.iter().filter(|(source, _)| self.ledger.is_stored(source)) {
            let stored = self.server.objects.values().flat_map(|(_, entries)| entries);
            let stored: Vec<_> = stored.filter(|stored| stored.source == source.as_str()).collect();
            for copy in &entry.copies {
                let is_it = |stored: &&LedgerEntry| {
                    stored.mirrors.iter().any(|mirror| mirror.destination == copy.destination.as_str())
                };
                assert!(stored.iter().any(is_it), "{} of {source}", copy.destination);
            }
        }
    }

    /// Everything that is still to be written, by a server that fails no more.
    fn settle(&mut self) {
        self.sent.clear();
        for _ in 0..100 {
            let Some(id) = self.ledger.dirty().first().copied() else { return };
            let draft = self.ledger.draft(id);
            let outcome = self.server.take(&draft);
            self.report(id, &draft, outcome);
        }
        panic!("there is no end to it: {:?}", self.ledger.dirty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_stored_in_the_end_is_what_was_meant(
        counts in prop::collection::vec(0..=MAX_MIRRORS, 0..SOURCES),
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut world = World::new(counts);
        for (number, step) in steps.into_iter().enumerate() {
            world.step(step);
            // Looking at everything takes longer than the step did.
            if number % 8 == 0 {
                world.check();
            }
        }
        world.settle();
        world.check();
        let loaded = world.server.load();
        assert_same(&world.ledger, &loaded);
        prop_assert_eq!(loaded.dirty(), []);
        let stored: usize = world.server.objects.values().map(|(_, entries)| entries.len()).sum();
        prop_assert_eq!(stored, world.ledger.len());
        prop_assert!(world.ledger.iter().all(|(source, _)| world.ledger.is_stored(source)));
    }

    /// A crash after any number of writes loses no entry that was stored before and is still wanted.
    #[test]
    fn moving_between_shards_loses_nothing(
        before in prop::collection::vec(0..=12usize, SOURCES),
        after in prop::collection::vec(0..=MAX_MIRRORS, SOURCES),
        writes in 0usize..6,
    ) {
        let mut world = World::new(before);
        world.settle();
        for (number, count) in after.into_iter().enumerate() {
            world.edit(&source(number), Change::Copies(count));
        }
        for id in world.ledger.dirty().into_iter().take(writes) {
            let draft = world.ledger.draft(id);
            let outcome = world.server.take(&draft);
            world.report(id, &draft, outcome);
        }
        prop_assert_eq!(world.server.load().len(), SOURCES);
    }

    #[test]
    fn the_size_is_a_little_more_than_the_text(mut entry in an_entry(MAX_MIRRORS), name in "[a-z]{1,100}") {
        entry.tidy();
        let source = image(&format!("registry.example.com/{name}:1"));
        let text = serde_json::to_string(&stored::write(&source, &entry)).unwrap();
        let estimated = Size::of(&source, &entry).bytes;
        prop_assert!(estimated > text.len(), "{} for {}", estimated, text);
        // Control characters may take six bytes and mostly take two.
        let plain = text.bytes().filter(|byte| *byte == b'\\').count() == 0;
        prop_assert!(!plain || estimated < text.len() + 200 + 60 * entry.copies.len(), "{} for {}", estimated, text);
    }

    #[test]
    fn tidying_once_is_enough(mut entry in an_entry(MAX_MIRRORS + 5)) {
        entry.tidy();
        let once = entry.clone();
        entry.tidy();
        prop_assert_eq!(&entry, &once);
        let mut whole = true;
        let (_, read) = stored::read(stored::write(&source(0), &entry), &mut whole).unwrap();
        prop_assert!(whole);
        prop_assert_eq!(*read, once);
    }
}
