//! Input for properties: something valid with a few things wrong with it. Such input gets deeper into a parser than
//! arbitrary bytes do.

use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Clone, Debug)]
enum Edit {
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    Repeat(Index, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let telling = prop::sample::select(vec![
        "\"", "\\", "{", "}", "[", "]", ",", ":", "=", "null", "-1", "1e999", "\\ud800", " ",
    ]);
    prop_oneof![
        (any::<Index>(), 1_usize..40).prop_map(|(place, length)| Edit::Remove(place, length)),
        (any::<Index>(), telling).prop_map(|(place, text)| Edit::Insert(place, text.into())),
        (any::<Index>(), any::<u8>()).prop_map(|(place, byte)| Edit::Insert(place, vec![byte])),
        (any::<Index>(), 1_usize..40).prop_map(|(place, length)| Edit::Repeat(place, length)),
    ]
}

/// One of these texts with up to six changes.
pub fn mutated(texts: Vec<String>) -> impl Strategy<Value = Vec<u8>> {
    (prop::sample::select(texts), prop::collection::vec(edit(), 0..6)).prop_map(|(text, edits)| {
        let mut bytes = text.into_bytes();
        for edit in edits {
            let (Edit::Remove(place, _) | Edit::Insert(place, _) | Edit::Repeat(place, _)) = &edit;
            let start = place.index(bytes.len() + 1);
            match edit {
                Edit::Remove(_, length) => drop(bytes.drain(start..(start + length).min(bytes.len()))),
                Edit::Insert(_, piece) => drop(bytes.splice(start..start, piece)),
                Edit::Repeat(_, length) => {
                    let end = (start + length).min(bytes.len());
                    let piece = bytes.get(start..end).unwrap_or_default().to_vec();
                    drop(bytes.splice(start..start, piece));
                }
            }
        }
        bytes
    })
}
