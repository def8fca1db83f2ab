//! Copies that are known to be there, and attempts that failed lately: what admission need not ask for again.

use std::{collections::HashMap, time::Duration};

use fairlead_plan::pull_secrets::{Content, Place};
use tokio::time::Instant;

use super::CopyError;
use crate::controller::backoff::Backoff;

/// See `fairlead_plan::pull_secrets::GRACE` for why it is not longer.
const THERE: Duration = Duration::from_mins(10);

const RETRY: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(1));

/// Beyond this, what has expired is dropped, and if that does not help, everything: it can be asked for again.
const MOST: usize = 65_536;

#[derive(Debug, Clone)]
pub(super) enum CopyStanding {
    There,
    Failed(CopyError),
    Unknown,
}

#[derive(Debug)]
enum Remembered {
    There { content: Content },
    Failed { error: CopyError, failures: u32 },
}

#[derive(Debug, Default)]
pub(super) struct KnownCopies {
    entries: HashMap<Place, (Remembered, Instant)>,
}

impl KnownCopies {
    pub(super) fn state(&self, place: &Place, wanted: Content, now: Instant) -> CopyStanding {
        match self.entries.get(place) {
            Some((_, until)) if *until <= now => CopyStanding::Unknown,
            Some((Remembered::There { content }, _)) if *content == wanted => CopyStanding::There,
            Some((Remembered::Failed { error, .. }, _)) => CopyStanding::Failed(error.clone()),
            Some((Remembered::There { .. }, _)) | None => CopyStanding::Unknown,
        }
    }

    pub(super) fn there(&mut self, place: &Place, content: Content, now: Instant) {
        self.insert(place, Remembered::There { content }, now + THERE, now);
    }

    pub(super) fn failed(&mut self, place: &Place, error: CopyError, now: Instant) {
        let failures = match self.entries.get(place) {
            Some((Remembered::Failed { failures, .. }, _)) => failures.saturating_add(1),
            _ => 0,
        };
        let retry = now + RETRY.pause(failures, 0.5);
        self.insert(place, Remembered::Failed { error, failures }, retry, now);
    }

    pub(super) fn forget(&mut self, place: &Place) {
        self.entries.remove(place);
    }

    fn insert(&mut self, place: &Place, memory: Remembered, until: Instant, now: Instant) {
        if self.entries.len() >= MOST {
            self.entries.retain(|_, (_, until)| *until > now);
            if self.entries.len() >= MOST {
                self.entries.clear();
            }
        }
        self.entries.insert(place.clone(), (memory, until));
    }
}
