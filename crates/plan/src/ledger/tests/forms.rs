//! Entries take the form in which they can be stored.

use fairlead_api::kuik::{MAX_MIRRORS, NO_LONGER_MATCHING};

use super::*;

/// A ledger with one entry, after a change to it.
fn edited(change: impl FnOnce(&mut Entry)) -> Entry {
    let mut ledger = filled(1, 1);
    assert!(ledger.edit(&source(0), change));
    ledger.get(&source(0)).unwrap().clone()
}

#[test]
fn errors_are_cut_between_characters() {
    for (error, kept) in [
        ("a".repeat(256), "a".repeat(256)),
        ("a".repeat(257), "a".repeat(256)),
        ("ü".repeat(400), "ü".repeat(256)),
        ("€🚢".repeat(200), "€🚢".repeat(128)),
        (String::new(), String::new()),
    ] {
        let entry = edited(|entry| {
            entry.copies[0].state = CopyState::Failed;
            entry.copies[0].last_error = Some(error.as_str().into());
            entry.watch = Some(Watch { last_error: Some(error.as_str().into()), ..Watch::default() }.into());
        });
        assert_eq!(entry.copies[0].last_error.as_deref(), Some(&*kept));
        assert_eq!(entry.watch.unwrap().last_error.as_deref(), Some(&*kept));
    }
}

#[test]
fn an_error_that_is_cut_to_what_it_was_is_no_change() {
    let mut ledger = filled(1, 1);
    let fail = |entry: &mut Entry| {
        entry.copies[0].state = CopyState::Failed;
        entry.copies[0].last_error = Some("no route to host; ".repeat(50).into());
    };
    ledger.edit(&source(0), fail);
    store(&mut ledger, "1");
    ledger.edit(&source(0), fail);
    assert_eq!(ledger.dirty(), []);
}

#[test]
fn times_are_whole_seconds() {
    let precise = Timestamp::new(1_800_000_000, 987_654_321).unwrap();
    let entry = edited(|entry| {
        entry.unused_since = Some(precise);
        entry.copies[0].since = precise;
        entry.watch = Some(Watch { last_monitor: Some(precise), ..Watch::default() }.into());
    });
    assert_eq!(entry.unused_since, Some(at(0)));
    assert_eq!(entry.copies[0].since, at(0));
    assert_eq!(entry.watch.unwrap().last_monitor, Some(at(0)));
}

#[test]
fn the_time_of_what_no_longer_matches_survives() {
    let sentinel: Timestamp = NO_LONGER_MATCHING.parse().unwrap();
    let mut ledger = filled(1, 1);
    ledger.edit(&source(0), |entry| entry.unused_since = Some(sentinel));
    let stored = entries_of(ledger.draft(ShardId(0)));
    assert_eq!(serde_json::to_value(&stored).unwrap()[0]["unusedSince"], NO_LONGER_MATCHING);
    assert_eq!(stored::read(stored[0].clone(), &mut true).unwrap().1.unused_since, Some(sentinel));
}

/// The API server would refuse the whole shard.
#[test]
fn states_come_with_what_they_need() {
    let entry = edited(|entry| entry.copies[0].state = CopyState::Mirrored);
    assert_eq!(entry.copies[0].state, CopyState::Pending);
    for state in [CopyState::Failed, CopyState::Refused] {
        let entry = edited(|entry| entry.copies[0].state = state);
        assert_eq!(entry.copies[0].state, state);
        assert!(entry.copies[0].last_error.is_some());
    }
    let entry = edited(|entry| {
        entry.copies[0].state = CopyState::Mirrored;
        entry.copies[0].digest = Some(digest(1));
    });
    assert_eq!((entry.copies[0].state, entry.copies[0].last_error.as_deref()), (CopyState::Mirrored, None));
}

#[test]
fn copies_that_exist_come_before_those_that_do_not() {
    let entry = edited(|entry| {
        entry.copies = (0..MAX_MIRRORS + 10)
            .map(|number| {
                let copy = pending(&image(&format!("m.io/{number}/x:1")));
                match number {
                    // To be deleted, as their mirrors are gone from the object.
                    5..20 => Copy { state: CopyState::Deleting, digest: Some(digest(number)), ..copy },
                    // Deletion of what was never seen to be complete.
                    20..25 => Copy { state: CopyState::Deleting, ..copy },
                    _ => copy,
                }
            })
            .collect();
    });
    assert_eq!(entry.copies.len(), MAX_MIRRORS);
    assert_eq!(entry.copies.iter().filter(|copy| copy.state == CopyState::Deleting).count(), 20);
    assert_eq!(entry.copies[0].destination, image("m.io/0/x:1"));

    let entry = edited(|entry| {
        let copy = |number| Copy {
            digest: Some(digest(0)),
            state: CopyState::Mirrored,
            ..pending(&image(&format!("m.io/{number}/x:1")))
        };
        entry.copies = (0..=MAX_MIRRORS).map(copy).collect();
    });
    assert_eq!(entry.copies.len(), MAX_MIRRORS);
}

#[test]
fn references_that_no_registry_has_are_kept_out() {
    let host = format!("[{}]", ":".repeat(300));
    let fine = [
        "nginx".to_owned(),
        "localhost/x".to_owned(),
        "reg:5000/x:1".to_owned(),
        "[::1]:5000/x".to_owned(),
        "[2001:db8::1]/x:1".to_owned(),
        "UPPER/x".to_owned(),
        format!("quay.io/{}:{}@{}", "a".repeat(247), "t".repeat(128), digest(0)),
    ];
    let refused = [
        "reg.io:123456/x".to_owned(),
        "reg:123456/x".to_owned(),
        "[::1]:123456/x".to_owned(),
        "[abc]:5000/x".to_owned(),
        format!("{host}/{}:{}", "a".repeat(200), "t".repeat(128)),
    ];
    for text in fine {
        assert!(storable(&image(&text)), "{text}");
    }
    for text in refused {
        let refused = image(&text);
        assert!(!storable(&refused), "{text}");
        let mut ledger = filled(1, 1);
        store(&mut ledger, "1");
        assert!(!ledger.insert(refused.clone(), Entry::default()));
        ledger.edit(&source(0), |entry| entry.copies.push(pending(&refused)));
        assert_eq!((ledger.len(), ledger.dirty()), (1, Vec::new()));
    }
}

#[test]
fn only_normalised_texts_are_held() {
    let mut ledger = Ledger::new(owner());
    let copy = pending(&image("nginx:copy"));
    ledger.insert(image("nginx"), Entry { copies: vec![copy], ..Entry::default() });
    let (source, entry) = ledger.iter().next().unwrap();
    assert_eq!(source.written(), "docker.io/library/nginx");
    assert_eq!(entry.copies[0].destination.written(), "docker.io/library/nginx:copy");
    assert!(ledger.get(&image("docker.io/nginx")).is_some());
}

/// Twenty thousand images in three mirrors are sixty thousand copies, all in memory.
#[test]
fn a_copy_takes_few_hundred_bytes() {
    // What an allocation takes: its header, rounded up.
    let allocated = |bytes: usize| (bytes + 8).next_multiple_of(16);
    let text = |reference: &Reference| allocated(16 + reference.as_str().len());
    let source = image("registry.example.com/team/application:1.25.3");
    let destination = image("mirror.example.com:5000/mirror/team/application:1.25.3");
    let copies = allocated(3 * size_of::<Copy>()) + 3 * text(&destination);
    // A map is two thirds full.
    let in_map = size_of::<(Reference, Box<Placed>)>() * 3 / 2;
    let per_copy = (copies + in_map + allocated(size_of::<Placed>()) + text(&source)) / 3;
    assert!(per_copy <= 336, "{per_copy}");
    let ledger = filled(1, 3);
    assert_eq!(ledger.get(&super::source(0)).unwrap().copies.capacity(), 3);
}
