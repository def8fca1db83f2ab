//! The annotations of kuik and of harbor-reef: the originals of images that were changed.

use std::collections::BTreeMap;

use super::{Entry, claims::read_map};

/// What becomes of an annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Remove,
    Write(String),
}

/// kuik's: the originals of all images that changed, and of no other. Keys of images that the Pod does not have stay.
pub(super) fn for_kuik(found: Option<&str>, entries: &[Entry<'_>]) -> Change {
    let rewritten = entries.iter().any(|entry| entry.route.is_rewritten());
    if found.is_none() && !rewritten {
        return Change::None;
    }
    let Some(before) = found.map_or_else(|| Some(BTreeMap::new()), read_map) else {
        // Nobody can read it, so there is nothing in it to keep or to correct.
        return if rewritten { write(&originals(BTreeMap::new(), entries)) } else { Change::None };
    };
    let after = originals(before.clone(), entries);
    if after == before {
        Change::None
    } else if after.is_empty() {
        Change::Remove
    } else {
        write(&after)
    }
}

fn originals(mut map: BTreeMap<String, String>, entries: &[Entry<'_>]) -> BTreeMap<String, String> {
    for Entry { place, route } in entries {
        if route.is_rewritten() {
            map.insert(place.kuik_key(), route.asked.clone());
        } else {
            map.remove(&place.kuik_key());
        }
    }
    map
}

/// harbor-reef's: the keys that are missing. What somebody wrote stays, readable or not.
pub(super) fn for_reef(found: Option<&str>, entries: &[Entry<'_>]) -> Change {
    let rewritten = entries.iter().filter(|entry| entry.route.is_rewritten());
    let mut missing =
        rewritten.filter_map(|entry| Some((entry.place.reef_key()?, &entry.route.asked))).peekable();
    if missing.peek().is_none() {
        return Change::None;
    }
    let Some(before) = found.filter(|text| !text.is_empty()).map_or_else(|| Some(BTreeMap::new()), read_map)
    else {
        return Change::None;
    };
    let mut after = before.clone();
    for (key, asked) in missing {
        after.entry(key.to_owned()).or_insert_with(|| asked.clone());
    }
    if after == before { Change::None } else { write(&after) }
}

fn write(map: &BTreeMap<String, String>) -> Change {
    serde_json::to_string(map).map_or(Change::None, Change::Write)
}
