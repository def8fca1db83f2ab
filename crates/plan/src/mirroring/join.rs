//! A ledger and the images in use, side by side.

use std::cmp::Ordering;

use fairlead_domain::reference::Reference;

use crate::ledger::{Entry, Ledger};
use crate::usage::Used;

/// One image: in the ledger, in use, or both.
#[derive(Debug, Clone, Copy)]
pub(super) struct Joined<'a> {
    pub(super) source: &'a Reference,
    pub(super) entry: Option<&'a Entry>,
    pub(super) used: Option<&'a Used>,
}

/// Lets the images in use share the text of the ledger's sources, which most of them are.
pub fn share_sources(ledger: &Ledger, used: &mut [Used]) {
    let mut sources = ledger.iter().map(|(source, _)| source).peekable();
    for used in used {
        while sources.next_if(|source| **source < used.image).is_some() {}
        if let Some(source) = sources.next_if(|source| **source == used.image) {
            used.image = source.clone();
        }
    }
}

/// Each image once, in order. Both lists are sorted, so that one pass suffices.
pub(super) fn join<'a>(ledger: &'a Ledger, used: &'a [Used]) -> impl Iterator<Item = Joined<'a>> {
    let mut entries = ledger.iter().peekable();
    let mut used = used.iter().peekable();
    std::iter::from_fn(move || {
        let order = match (entries.peek(), used.peek()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((source, _)), Some(used)) => (*source).cmp(&used.image),
        };
        let entry = if order.is_le() { entries.next() } else { None };
        let used = if order.is_ge() { used.next() } else { None };
        let source = entry.map(|(source, _)| source).or_else(|| used.map(|used| &used.image))?;
        Some(Joined { source, entry: entry.map(|(_, entry)| entry), used })
    })
}
