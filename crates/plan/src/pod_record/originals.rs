//! The annotations of kuik and of harbor-reef: the originals of images that were changed.

use std::collections::{BTreeMap, BTreeSet};

use super::claims::read_map;
use super::{Entry, Record};

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
        // It cannot be read, so there is nothing in it to keep or to correct.
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

/// What becomes of harbor-reef's annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Upstreams {
    pub(super) change: Change,
    /// Its keys that are written here, now or before.
    pub(super) ours: BTreeSet<String>,
}

/// harbor-reef's: the keys that are missing. What others wrote stays, readable or not. `recorded` is the record of an
/// earlier turn: a key that it proves to be written here follows the image when another webhook has changed that since.
pub(super) fn for_reef(found: Option<&str>, recorded: Option<&Record>, entries: &[Entry<'_>]) -> Upstreams {
    let nothing = Upstreams { change: Change::None, ours: BTreeSet::new() };
    let rewritten =
        entries.iter().filter(|entry| entry.route.is_rewritten() && !entry.route.is_pinned_original());
    let mut wanted =
        rewritten.filter_map(|entry| Some((entry.place.reef_key()?, &entry.route.asked))).peekable();
    if wanted.peek().is_none() && recorded.is_none() {
        return nothing;
    }
    let Some(before) = found.filter(|text| !text.is_empty()).map_or_else(|| Some(BTreeMap::new()), read_map)
    else {
        return nothing;
    };
    let is_ours = |key: &str, original: &str| {
        let route = recorded.and_then(|record| record.images.get(key));
        route.is_some_and(|route| route.wrote_upstream && route.asked == original)
    };
    let mut after = before.clone();
    after.retain(|key, original| !is_ours(key, original));
    let mut ours = BTreeSet::new();
    for (key, asked) in wanted {
        if !after.contains_key(key) {
            after.insert(key.to_owned(), asked.clone());
            ours.insert(key.to_owned());
        }
    }
    let change = if after == before {
        Change::None
    } else if after.is_empty() {
        Change::Remove
    } else {
        write(&after)
    };
    Upstreams { change, ours }
}

fn write(map: &BTreeMap<String, String>) -> Change {
    serde_json::to_string(map).map_or(Change::None, Change::Write)
}
