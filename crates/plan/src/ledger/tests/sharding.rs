//! Which shard an entry comes to lie in.

use fairlead_api::fairlead::MAX_COPIES;

use super::*;

fn rows(ledger: &Ledger, id: ShardId) -> usize {
    entries_of(ledger.draft(id)).iter().map(|entry| entry.mirrors.len().max(1)).sum()
}

#[test]
fn shards_are_filled_before_new_ones_are_made() {
    for (images, mirrors, shards) in
        [(0, 3, 0), (1, 3, 1), (166, 3, 1), (167, 3, 2), (500, 0, 1), (501, 0, 2), (1000, 1, 2)]
    {
        let ledger = filled(images, mirrors);
        assert_eq!(ledger.shards().count(), shards, "{images} images with {mirrors} copies");
        assert_eq!(ledger.len(), images);
        assert!(ledger.shards().all(|id| rows(&ledger, id) <= MAX_COPIES));
    }
}

#[test]
fn text_counts_as_well_as_rows() {
    let mut ledger = Ledger::new(owner());
    for number in 0..400 {
        let source = source(number);
        let mut entry = entry(&source, 1);
        entry.copies[0].state = CopyState::Failed;
        entry.copies[0].last_error = Some("\u{1}".repeat(256).into());
        ledger.insert(source, entry);
    }
    assert!(ledger.shards().count() > 1);
    for id in ledger.shards() {
        let stored = serde_json::to_vec(&entries_of(ledger.draft(id))).unwrap();
        assert!(stored.len() <= MOST_BYTES, "{}", stored.len());
    }
}

#[test]
fn one_change_dirties_one_shard() {
    let mut ledger = filled(1000, 3);
    store(&mut ledger, "1");
    let shards = ledger.shards().count();
    assert!(ledger.edit(&source(700), |entry| entry.unused_since = Some(at(9))));
    assert_eq!(ledger.dirty().len(), 1);
    assert!(ledger.edit(&source(701), |_| ()));
    assert!(ledger.edit(&source(1), |entry| entry.unused_since = None));
    assert_eq!(ledger.dirty().len(), 1);
    assert!(!ledger.edit(&source(5000), |entry| entry.unused_since = Some(at(9))));
    let objects = store(&mut ledger, "2");
    assert_eq!(objects.len(), 1);
    assert!(ledger.remove(&source(3)).is_some() && ledger.remove(&source(3)).is_none());
    assert_eq!(ledger.dirty().len(), 1);
    // What is new goes where something has to be written anyway.
    ledger.insert(source(2000), entry(&source(2000), 3));
    assert_eq!((ledger.dirty().len(), ledger.shards().count()), (1, shards));
}

#[test]
fn inserting_what_is_there_replaces_it() {
    let mut ledger = filled(3, 2);
    store(&mut ledger, "1");
    ledger.insert(source(1), entry(&source(1), 2));
    assert_eq!(ledger.dirty(), []);
    ledger.insert(source(1), entry(&source(1), 1));
    assert_eq!((ledger.len(), ledger.dirty().len()), (3, 1));
    assert_eq!(ledger.get(&source(1)).unwrap().copies.len(), 1);
}

#[test]
fn entries_that_grow_move_on() {
    let mut ledger = filled(500, 1);
    store(&mut ledger, "1");
    for number in 0..500 {
        let grown = entry(&source(number), 3);
        ledger.edit(&source(number), |entry| *entry = grown);
    }
    assert_eq!(ledger.len(), 500);
    assert!(ledger.shards().all(|id| rows(&ledger, id) <= MAX_COPIES));
    assert_eq!(ledger.shards().map(|id| rows(&ledger, id)).sum::<usize>(), 1500);
    assert!(ledger.shards().count() <= 4);
}

/// Stopping after any number of writes must not lose an entry.
#[test]
fn an_entry_is_stored_where_it_goes_before_it_leaves_where_it_was() {
    let mut ledger = filled(500, 1);
    let before = store(&mut ledger, "1");
    // The full shard is first in line already.
    ledger.edit(&source(0), |entry| entry.unused_since = Some(at(1)));
    ledger.edit(&source(499), |entry| entry.copies.push(pending(&image("m9.io/x:1"))));
    let line = ledger.dirty();
    assert_eq!(line.len(), 2);
    let first = entries_of(ledger.draft(line[0]));
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].source, source(499).to_string());
    let mut objects = before;
    objects.push((
        ledger.draft(line[0]).name().to_owned(),
        None,
        ImageLedgerSpec { owner: owner().named(), manner: LedgerManner::default(), entries: first },
    ));
    assert_eq!(Ledger::load(owner(), objects).len(), 500);
}

#[test]
fn the_oldest_change_is_first_in_line() {
    let mut ledger = filled(1000, 1);
    ledger.insert(source(1000), entry(&source(1000), 1));
    store(&mut ledger, "1");
    let touch = |ledger: &mut Ledger, number: usize, second| {
        ledger.edit(&source(number), |entry| entry.unused_since = Some(at(second)));
    };
    for number in [600, 1000, 0, 601] {
        touch(&mut ledger, number, 1);
    }
    assert_eq!(ledger.dirty(), [1, 2, 0].map(ShardId));
    // One that changes all the time does not hold the others up.
    let draft = ledger.draft(ShardId(1));
    touch(&mut ledger, 602, 2);
    ledger.written(ShardId(1), draft.ticket(), Some("2".into()));
    assert_eq!(ledger.dirty(), [2, 0, 1].map(ShardId));
}

#[test]
fn numbers_that_are_free_again_are_used_again() {
    let mut ledger = filled(1500, 1);
    store(&mut ledger, "1");
    for number in 500..1000 {
        ledger.remove(&source(number));
    }
    store(&mut ledger, "2");
    assert!(ledger.shards().eq([0, 2].map(ShardId)));
    ledger.insert(source(3000), entry(&source(3000), 1));
    assert!(ledger.shards().eq([0, 1, 2].map(ShardId)));
}
