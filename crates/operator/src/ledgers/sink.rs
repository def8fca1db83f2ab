//! Takes the events of the watch.

use std::collections::BTreeMap;

use super::{
    Claims, LeanLedger,
    index::{Content, Index},
};
use crate::{
    state::Key,
    watch::{
        Tolerant,
        sink::{Counts, Faults, Sink},
    },
};

#[derive(Debug)]
pub(crate) struct LedgerSink {
    claims: Claims,
    fresh: Option<BTreeMap<Key, Content>>,
    faults: Faults,
}

impl LedgerSink {
    pub(crate) fn new(kind: &'static str, claims: Claims) -> Self {
        Self { claims, fresh: None, faults: Faults::new(kind) }
    }
}

impl Sink<LeanLedger> for LedgerSink {
    fn begin(&mut self) {
        self.fresh = Some(BTreeMap::new());
        self.faults.begin();
    }

    fn listed(&mut self, object: Tolerant<LeanLedger>) {
        match object.0 {
            Ok(LeanLedger { metadata, content }) => {
                self.fresh.get_or_insert_default().insert(Key::of(&metadata), content);
            }
            Err(unreadable) => self.faults.note(unreadable),
        }
    }

    fn finish(&mut self) {
        if let Some(fresh) = self.fresh.take() {
            self.claims.replace(Index::of(fresh));
        }
        self.faults.finish();
    }

    fn applied(&mut self, object: Tolerant<LeanLedger>) {
        match object.0 {
            Ok(LeanLedger { metadata, content }) => {
                let key = Key::of(&metadata);
                self.faults.mended(&key);
                self.claims.change(|index| index.insert(key, content));
            }
            // Nobody knows what it claims.
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
        self.claims.change(|index| index.remove(&key));
    }

    fn publish(&mut self) -> Counts {
        self.claims.tell();
        Counts { objects: self.claims.count(), malformed: self.faults.len(), images: None }
    }

    fn clear(&mut self) {
        self.claims.clear();
        self.faults.clear();
        self.publish();
    }
}
