//! Fits a record into the room that a Pod's other annotations leave.

use std::collections::BTreeMap;

use super::{BY_ORIGINAL, Record, Route, VERSION};

/// What `"omitted"` may take, and the comma that the last entry does not have.
const COUNT_BYTES: usize = 40;

/// Writes the record within `limit` bytes: first alternatives and differing places go, then reasons, then whole
/// entries, those that only say "as asked" before the others. None if not a single entry fits.
pub(super) fn write(images: BTreeMap<String, Route>, limit: usize) -> Option<String> {
    let mut record = Record { v: VERSION, images, omitted: 0 };
    let mut text = serialise(&record)?;
    if text.len() > limit {
        for route in record.images.values_mut() {
            route.alternatives.clear();
            route.differs.clear();
        }
        text = serialise(&record)?;
    }
    if text.len() > limit {
        record.images.values_mut().for_each(|route| route.why.clear());
        text = serialise(&record)?;
    }
    if text.len() > limit {
        // The count of what is left out takes some room itself.
        let mut excess = text.len() + COUNT_BYTES - limit;
        let (plain, rewritten): (Vec<_>, Vec<_>) =
            record.images.iter().rev().partition(|(_, route)| route.by == BY_ORIGINAL);
        let mut omitted = Vec::new();
        for (key, route) in plain.into_iter().chain(rewritten) {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(entry_bytes(key, route)?);
            omitted.push(key.clone());
        }
        if omitted.len() == record.images.len() {
            return None;
        }
        for key in &omitted {
            record.images.remove(key);
        }
        record.omitted = omitted.len();
        text = serialise(&record)?;
    }
    Some(text)
}

/// What an entry takes of the text: key, colon, value, comma.
fn entry_bytes(key: &str, route: &Route) -> Option<usize> {
    Some(serde_json::to_string(key).ok()?.len() + serde_json::to_string(route).ok()?.len() + 2)
}

fn serialise(record: &Record) -> Option<String> {
    serde_json::to_string(record).ok()
}
