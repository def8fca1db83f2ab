//! What is written, and what is known of it afterwards.

use super::*;

fn touch(ledger: &mut Ledger, number: usize, second: i64) {
    assert!(ledger.edit(&source(number), |entry| entry.unused_since = Some(at(second))));
}

#[test]
fn a_new_shard_is_created_then_replaced_then_deleted() {
    let mut ledger = filled(1, 1);
    let id = ledger.dirty()[0];
    let draft = ledger.draft(id);
    assert!(matches!(&draft, Draft::Write { version: None, entries, .. } if entries.len() == 1));
    assert_eq!(draft.name(), "cism-all-0f5a3c71-0");
    ledger.written(id, draft.ticket(), Some("7".into()));
    assert_eq!(ledger.dirty(), []);
    assert_eq!(ledger.by_object(draft.name()), Some((id, Some("7"))));

    touch(&mut ledger, 0, 1);
    let draft = ledger.draft(id);
    assert!(matches!(&draft, Draft::Write { version: Some(version), .. } if version == "7"));
    ledger.written(id, draft.ticket(), Some("8".into()));

    ledger.remove(&source(0));
    let draft = ledger.draft(id);
    assert!(matches!(&draft, Draft::Delete { version: Some(version), .. } if version == "8"));
    assert_eq!(draft.version(), Some("8"));
    ledger.written(id, draft.ticket(), None);
    assert_eq!((ledger.shards().count(), ledger.dirty()), (0, Vec::new()));
    assert_eq!(ledger.by_object(draft.name()), None);
}

#[test]
fn changes_made_while_it_is_written_are_written_next() {
    let mut ledger = filled(2, 1);
    let id = ledger.dirty()[0];
    let draft = ledger.draft(id);
    touch(&mut ledger, 1, 5);
    ledger.written(id, draft.ticket(), Some("1".into()));
    assert_eq!(ledger.dirty(), [id]);
    let draft = ledger.draft(id);
    assert_eq!(draft.version(), Some("1"));
    assert!(entries_of(draft).iter().any(|entry| entry.unused_since.is_some()));
}

/// The answer to the write was lost, so it may have happened.
#[test]
fn what_was_never_seen_to_be_stored_is_deleted_all_the_same() {
    let mut ledger = filled(1, 1);
    let id = ledger.dirty()[0];
    let create = ledger.draft(id);
    ledger.remove(&source(0));
    assert_eq!(ledger.dirty(), [id]);
    let delete = ledger.draft(id);
    assert!(matches!(&delete, Draft::Delete { version: None, .. }));
    // The creation turns out to have succeeded after the deletion found nothing.
    ledger.written(id, delete.ticket(), None);
    assert_eq!(ledger.shards().count(), 0);
    ledger.written(id, create.ticket(), Some("3".into()));
    assert_eq!(ledger.dirty(), [id]);
    assert!(matches!(ledger.draft(id), Draft::Delete { version: Some(version), .. } if version == "3"));
}

#[test]
fn a_shard_that_is_used_again_while_it_is_deleted_is_created_anew() {
    let mut ledger = filled(1, 1);
    store(&mut ledger, "1");
    ledger.remove(&source(0));
    let id = ledger.dirty()[0];
    let delete = ledger.draft(id);
    ledger.insert(source(1), entry(&source(1), 1));
    assert_eq!(ledger.shards().count(), 1);
    ledger.written(id, delete.ticket(), None);
    assert_eq!(ledger.dirty(), [id]);
    assert!(matches!(ledger.draft(id), Draft::Write { version: None, .. }));
}

#[test]
fn what_others_change_is_written_over() {
    let mut ledger = filled(1, 1);
    store(&mut ledger, "1");
    let id = ledger.shards().next().unwrap();
    ledger.lost(id, Some("9".into()));
    assert_eq!(ledger.dirty(), [id]);
    assert!(matches!(ledger.draft(id), Draft::Write { version: Some(version), .. } if version == "9"));
    ledger.lost(id, None);
    assert!(matches!(ledger.draft(id), Draft::Write { version: None, .. }));
    // A write that was under way when the object was lost does not count.
    let draft = ledger.draft(id);
    ledger.lost(id, Some("12".into()));
    ledger.written(id, draft.ticket(), Some("11".into()));
    assert_eq!(ledger.dirty(), [id]);
}

#[test]
fn an_empty_shard_whose_object_is_gone_is_gone() {
    let mut ledger = filled(1, 1);
    store(&mut ledger, "1");
    ledger.remove(&source(0));
    let id = ledger.dirty()[0];
    ledger.lost(id, None);
    assert_eq!((ledger.dirty(), ledger.shards().count()), (Vec::new(), 0));
    assert!(matches!(ledger.draft(id), Draft::Delete { version: None, .. }));
}

#[test]
fn copies_may_be_made_once_they_are_stored() {
    let mut ledger = filled(2, 1);
    let id = ledger.dirty()[0];
    assert!(!ledger.is_stored(&source(0)) && !ledger.is_stored(&source(77)));
    let draft = ledger.draft(id);
    ledger.insert(source(2), entry(&source(2), 1));
    ledger.written(id, draft.ticket(), Some("1".into()));
    // The shard is dirty, but not for want of these.
    assert!(ledger.is_stored(&source(0)) && ledger.is_stored(&source(1)) && !ledger.is_stored(&source(2)));
    touch(&mut ledger, 0, 1);
    assert!(ledger.is_stored(&source(0)));
    ledger.edit(&source(0), |entry| entry.copies.push(pending(&image("m9.io/x:1"))));
    assert!(!ledger.is_stored(&source(0)) && ledger.is_stored(&source(1)));
    let objects = store(&mut ledger, "2");
    assert!((0..3).all(|number| ledger.is_stored(&source(number))));
    let loaded = Ledger::load(owner(), objects);
    assert!((0..3).all(|number| loaded.is_stored(&source(number))));
    ledger.lost(id, Some("3".into()));
    assert!(!ledger.is_stored(&source(0)));
}
