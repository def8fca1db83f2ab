//! How copies were made, and for which of them that is not how they are to be made.

use fairlead_api::fairlead::MAX_COPIES;

use super::*;

fn platforms(names: &[&str]) -> LedgerManner {
    LedgerManner { platforms: names.iter().map(|name| (*name).to_owned()).collect(), referrers: false }
}

#[test]
fn a_manner_is_stored_and_read_again() {
    let mut ledger = Ledger::new(owner());
    let chosen = platforms(&["linux/amd64"]);
    assert_eq!(ledger.adopt_manner(&chosen), []);
    ledger.insert(source(1), entry(&source(1), 1));
    let objects = store(&mut ledger, "1");
    assert!(objects.iter().all(|(_, _, stored)| stored.manner == chosen));
    let mut loaded = Ledger::load(owner(), objects);
    assert_eq!(loaded.adopt_manner(&chosen), []);
    assert_eq!(loaded.dirty(), [], "nothing is new");
    assert_eq!(loaded.adopt_manner(&LedgerManner::default()), [source(1)]);
    assert_eq!(store(&mut loaded, "2")[0].2.manner, LedgerManner::default());
}

#[test]
fn a_change_that_was_half_stored_is_completed() {
    let mut ledger = filled(MAX_COPIES + 1, 1);
    let mut objects = store(&mut ledger, "1");
    let chosen = platforms(&["linux/amd64"]);
    objects[0].2.manner = chosen.clone();
    let mut loaded = Ledger::load(owner(), objects);
    assert_eq!(loaded.adopt_manner(&chosen), [source(MAX_COPIES)], "what is in the other shard");
    assert_eq!(loaded.dirty().len(), 1);
}
