//! Fits a record into the room that a Pod's other annotations leave.

use std::collections::BTreeMap;

use super::{BY_ORIGINAL, Record, Route, VERSION};

/// What `"omitted"` may take, and the comma that the last entry does not have.
const COUNT_BYTES: usize = 40;

/// What the mark of a key of harbor-reef takes. An entry that was left out has lost it when the Pod comes again, so
/// room is kept for it either way: else the next turn would come to another result.
const MARK_BYTES: usize = r#","wroteUpstream":true"#.len();

/// Writes the record within `limit` bytes: first alternatives and differing places go, then reasons, then whole
/// entries, those that only say "as asked" before the others. None if not a single entry fits.
pub(super) fn write(images: BTreeMap<String, Route>, limit: usize) -> Option<String> {
    let mut record = Record { v: VERSION, images, omitted: 0 };
    let mut text = serialise(&record)?;
    if size(&text, &record) > limit {
        for route in record.images.values_mut() {
            route.alternatives.clear();
            route.differs.clear();
        }
        text = serialise(&record)?;
    }
    if size(&text, &record) > limit {
        record.images.values_mut().for_each(|route| route.why.clear());
        text = serialise(&record)?;
    }
    if size(&text, &record) > limit {
        // The count of what is left out takes some room itself.
        let mut excess = size(&text, &record) + COUNT_BYTES - limit;
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

/// The length of the text if every entry were marked.
fn size(text: &str, record: &Record) -> usize {
    text.len() + record.images.values().map(unmarked_bytes).sum::<usize>()
}

fn unmarked_bytes(route: &Route) -> usize {
    if route.wrote_upstream { 0 } else { MARK_BYTES }
}

/// What an entry takes of that: key, colon, value, comma.
fn entry_bytes(key: &str, route: &Route) -> Option<usize> {
    let text = serde_json::to_string(key).ok()?.len() + serde_json::to_string(route).ok()?.len();
    Some(text + unmarked_bytes(route) + 2)
}

fn serialise(record: &Record) -> Option<String> {
    serde_json::to_string(record).ok()
}
