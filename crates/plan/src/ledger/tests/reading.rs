//! Stored ledgers are read with tolerance: a user may have edited them.

use fairlead_api::kuik::Availability;
use serde_json::{Value, json};

use super::*;

fn object(name: &str, entries: &Value) -> (String, Option<String>, ImageLedgerSpec) {
    let content = json!({ "owner": owner().named(), "entries": entries });
    (name.to_owned(), Some("1".to_owned()), serde_json::from_value(content).unwrap())
}

const FIRST: &str = "cism-all-0f5a3c71-0";
const SECOND: &str = "cism-all-0f5a3c71-1";

#[test]
fn everything_comes_back() {
    let mut ledger = filled(400, 2);
    ledger.edit(&source(0), |entry| {
        entry.source_digest = Some(digest(0));
        entry.unused_since = Some(at(7));
        entry.copies[0].state = CopyState::Mirrored;
        entry.copies[0].digest = Some(digest(0));
        entry.copies[1].state = CopyState::Failed;
        entry.copies[1].last_error = Some("the registry said \"no\"\n".into());
        entry.watch = Some(Box::new(Watch {
            status: Availability::QuotaExceeded,
            last_monitor: Some(at(8)),
            last_error: Some("429".into()),
            original: true,
        }));
    });
    let objects = store(&mut ledger, "1");
    assert_eq!(objects.len(), 2);
    let as_text = objects.into_iter().rev().map(|(name, version, content)| {
        let text = serde_json::to_string(&content).unwrap();
        (name, version, serde_json::from_str(&text).unwrap())
    });
    let loaded = Ledger::load(owner(), as_text);
    assert_same(&ledger, &loaded);
    assert_eq!(loaded.dirty(), []);
    assert!(loaded.shards().eq(ledger.shards()));
}

#[test]
fn what_cannot_be_read_is_left_out_and_written_over() {
    let time = "2026-11-15T12:00:00Z";
    let good = json!({ "destination": "m.io/a:1", "state": "Pending", "since": time });
    let cases = [
        (json!([{ "source": "no such thing" }]), 0, true),
        (
            json!([{ "source": "a.io/a:1", "mirrors": [good, { "destination": "M/:", "state": "Pending", "since": time }] }]),
            1,
            true,
        ),
        (json!([{ "source": "a.io/a:1", "sourceDigest": "md5:1", "mirrors": [good] }]), 1, true),
        (json!([{ "source": "a.io/a:1", "mirrors": [good] }]), 1, false),
        (
            json!([{ "source": "a.io/a:1", "mirrors": [good] }, { "source": "a.io/a:1", "mirrors": [good] }]),
            1,
            true,
        ),
        (json!([]), 0, true),
    ];
    for (entries, images, dirty) in cases {
        let ledger = Ledger::load(owner(), [object(FIRST, &entries)]);
        assert_eq!((ledger.len(), !ledger.dirty().is_empty()), (images, dirty), "{entries}");
        if let Some((_, entry)) = ledger.iter().next() {
            assert_eq!(entry.copies.len(), 1, "{entries}");
            assert_eq!(entry.source_digest, None);
        }
    }
}

#[test]
fn a_copy_whose_digest_cannot_be_read_is_looked_at_again() {
    let copy = json!({ "destination": "m.io/a:1", "state": "Mirrored", "digest": "sha256:12", "since": "2026-11-15T12:00:00Z" });
    let ledger =
        Ledger::load(owner(), [object(FIRST, &json!([{ "source": "a.io/a:1", "mirrors": [copy] }]))]);
    assert_eq!(ledger.get(&image("a.io/a:1")).unwrap().copies[0].state, CopyState::Pending);
    assert_eq!(ledger.dirty().len(), 1);
}

#[test]
fn an_image_in_two_shards_stays_in_the_first() {
    let watched = |status: &str| json!([{ "source": "a.io/a:1", "watch": { "status": status } }]);
    let objects = || [object(SECOND, &watched("NotFound")), object(FIRST, &watched("Available"))];
    let ledger = Ledger::load(owner(), objects());
    assert_eq!(ledger.len(), 1);
    let watch = ledger.get(&image("a.io/a:1")).unwrap().watch.as_ref();
    assert_eq!(watch.map(|watch| watch.status), Some(Availability::Available));
    let (second, _) = ledger.by_object(SECOND).unwrap();
    assert_eq!(ledger.dirty(), [second]);
    assert!(matches!(ledger.draft(second), Draft::Delete { .. }));
    // In whatever order they are listed.
    assert_same(&ledger, &Ledger::load(owner(), objects().into_iter().rev()));
}

#[test]
fn objects_of_other_names_are_kept_under_theirs() {
    let entries = |image: &str| json!([{ "source": image }]);
    let mut ledger = Ledger::load(
        owner(),
        [
            object("restored", &entries("a.io/a:1")),
            object(FIRST, &entries("a.io/b:1")),
            object("another", &entries("a.io/c:1")),
        ],
    );
    assert_eq!((ledger.len(), ledger.dirty()), (3, Vec::new()));
    for (name, image_of) in [("restored", "a.io/a:1"), (FIRST, "a.io/b:1"), ("another", "a.io/c:1")] {
        let (id, version) = ledger.by_object(name).unwrap();
        assert_eq!(version, Some("1"));
        let draft = ledger.draft(id);
        assert_eq!(draft.name(), name);
        assert_eq!(entries_of(draft)[0].source, image_of);
    }
    assert_eq!(ledger.by_object(SECOND), None);
    assert_eq!(ledger.by_object("nobody's"), None);
    for number in 0..2000 {
        ledger.insert(source(number), Entry::default());
    }
    let mut names: Vec<_> = ledger.shards().map(|id| ledger.draft(id).name().to_owned()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), ledger.shards().count());
}

#[test]
fn a_shard_that_is_too_full_is_emptied_into_others() {
    let crowded: Vec<_> = (0..1200).map(|number| json!({ "source": source(number).to_string() })).collect();
    let ledger = Ledger::load(owner(), [object(FIRST, &json!(crowded))]);
    assert_eq!(ledger.len(), 1200);
    assert_eq!(ledger.shards().count(), 3);
    assert_eq!(ledger.dirty().last(), Some(&ShardId(0)));
    assert!(ledger.shards().all(|id| entries_of(ledger.draft(id)).len() <= 500));
}
