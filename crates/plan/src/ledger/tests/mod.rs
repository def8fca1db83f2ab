mod forms;
mod manners;
mod names;
mod properties;
mod reading;
mod sharding;
mod storing;
mod trusting;

use fairlead_api::fairlead::{CopyState, ImageLedgerSpec, LedgerEntry, LedgerManner};
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use jiff::Timestamp;

use super::*;

fn owner() -> Owner {
    Owner {
        kind: OwnerKind::ClusterImageSetMirror,
        namespace: None,
        name: "all".into(),
        uid: "0f5a3c71-9d2e-4b60-8a11-27c4d3e5f609".into(),
    }
}

fn image(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

fn source(number: usize) -> Reference {
    image(&format!("quay.io/team/app-{number:05}:1"))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn pending(destination: &Reference) -> Copy {
    Copy::pending(destination.clone(), at(0))
}

/// An entry with copies in so many mirrors.
fn entry(of: &Reference, mirrors: usize) -> Entry {
    let copies =
        (0..mirrors).map(|mirror| pending(&image(&format!("m{mirror}.example.com/copies/{}", of.path()))));
    Entry { copies: copies.collect(), ..Entry::default() }
}

fn filled(images: usize, mirrors: usize) -> Ledger {
    let mut ledger = Ledger::new(owner());
    for number in 0..images {
        let source = source(number);
        let entry = entry(&source, mirrors);
        assert!(ledger.insert(source, entry));
    }
    ledger
}

/// Writes every dirty shard, as if nothing could go wrong.
fn store(ledger: &mut Ledger, version: &str) -> Vec<(String, Option<String>, ImageLedgerSpec)> {
    let drafts: Vec<_> = ledger.dirty().into_iter().map(|id| (id, ledger.draft(id))).collect();
    let mut objects = Vec::new();
    for (id, draft) in drafts {
        match draft {
            Draft::Write { name, manner, entries, ticket, .. } => {
                ledger.written(id, ticket, Some(version.to_owned()));
                objects.push((
                    name,
                    Some(version.to_owned()),
                    ImageLedgerSpec { owner: owner().named(), manner, entries },
                ));
            }
            Draft::Delete { ticket, .. } => ledger.written(id, ticket, None),
        }
    }
    assert_eq!(ledger.dirty(), []);
    objects
}

fn entries_of(draft: Draft) -> Vec<LedgerEntry> {
    match draft {
        Draft::Write { entries, .. } => entries,
        Draft::Delete { .. } => Vec::new(),
    }
}

fn assert_same(one: &Ledger, other: &Ledger) {
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(other.iter()) {
        assert_eq!(one, other);
    }
}

fn digest(number: usize) -> Digest {
    Digest::sha256(format!("content {number}").as_bytes())
}
