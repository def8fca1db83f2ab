//! Takes the events of the watch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::index::{Head, IndexedLedger, RowIndex};
use super::{Claims, LeanLedger, trusted};
use crate::cluster::state::Key;
use crate::cluster::watch::Tolerant;
use crate::cluster::watch::sink::{Counts, Faults, Sink};

/// Ledgers that count for nothing and were reported. Users of any namespace can make them, in any number.
const MOST_REPORTED: usize = 1024;

#[derive(Debug)]
pub(crate) struct LedgerSink {
    operator_namespace: Box<str>,
    claims: Claims,
    fresh: Option<BTreeMap<Key, IndexedLedger>>,
    faults: Faults,
    reported: BTreeSet<Key>,
}

impl LedgerSink {
    pub(crate) fn new(operator_namespace: &str, claims: Claims) -> Self {
        Self {
            operator_namespace: operator_namespace.into(),
            claims,
            fresh: None,
            faults: Faults::new("ImageLedger"),
            reported: BTreeSet::new(),
        }
    }

    /// What a ledger says, if it counts.
    fn content(&mut self, key: &Key, ledger: LeanLedger) -> Option<IndexedLedger> {
        let LeanLedger { metadata, owner, rows } = ledger;
        match trusted(&metadata, &owner, &self.operator_namespace) {
            Ok((owner, _)) => {
                self.reported.remove(key);
                let head = Head {
                    version: metadata.resource_version.unwrap_or_default().into(),
                    owner: Arc::new(owner),
                    look_again: Arc::clone(&rows.look_again),
                };
                Some(IndexedLedger { head, rows })
            }
            Err(why) => {
                if self.reported.len() < MOST_REPORTED && self.reported.insert(key.clone()) {
                    tracing::warn!(ledger = %key, %why, "ImageLedger counts for nothing; delete it");
                }
                None
            }
        }
    }
}

impl Sink<LeanLedger> for LedgerSink {
    fn begin(&mut self) {
        self.fresh = Some(BTreeMap::new());
        self.faults.begin();
    }

    fn listed(&mut self, object: Tolerant<LeanLedger>) {
        match object.0 {
            Ok(ledger) => {
                let key = Key::of(&ledger.metadata);
                if let Some(content) = self.content(&key, ledger) {
                    self.fresh.get_or_insert_default().insert(key, content);
                }
            }
            Err(unreadable) => self.faults.note(unreadable),
        }
    }

    fn finish(&mut self) {
        if let Some(fresh) = self.fresh.take() {
            self.claims.replace(RowIndex::of(fresh));
        }
        self.faults.finish();
    }

    fn applied(&mut self, object: Tolerant<LeanLedger>) {
        match object.0 {
            Ok(ledger) => {
                let key = Key::of(&ledger.metadata);
                self.faults.mended(&key);
                let content = self.content(&key, ledger);
                self.claims.change(|index| match content {
                    Some(content) => index.insert(key, content),
                    None => index.remove(&key),
                });
            }
            // What it claims cannot be known.
            Err(unreadable) => {
                let key = Key::of(&unreadable.metadata);
                self.claims.change(|index| index.remove(&key));
                self.faults.note(unreadable);
            }
        }
    }

    fn deleted(&mut self, object: Tolerant<LeanLedger>) {
        let key = match &object.0 {
            Ok(lean) => Key::of(&lean.metadata),
            Err(unreadable) => Key::of(&unreadable.metadata),
        };
        self.faults.mended(&key);
        self.reported.remove(&key);
        self.claims.change(|index| index.remove(&key));
    }

    fn publish(&mut self) -> Counts {
        self.claims.tell();
        Counts { objects: self.claims.count(), malformed: self.faults.len(), images: None }
    }
}
