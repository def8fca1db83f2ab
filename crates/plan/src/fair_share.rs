//! Bounds for what many namespaces fill together.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Makes room for one more entry where there is none. Of the namespace that takes the most room the oldest entry gives
/// way, so that no namespace can push out what belongs to others.
pub(crate) fn make_room<K: Ord + Clone, V>(
    entries: &mut BTreeMap<K, V>,
    most: usize,
    namespace: impl Fn(&K) -> &Arc<str>,
    age: impl Fn(&V) -> i64,
) {
    if entries.len() < most {
        return;
    }
    let mut taken = BTreeMap::<&Arc<str>, usize>::new();
    for key in entries.keys() {
        *taken.entry(namespace(key)).or_default() += 1;
    }
    let largest = taken.into_iter().max_by_key(|(_, count)| *count).map(|(namespace, _)| namespace.clone());
    let of_largest = entries.iter().filter(|(key, _)| Some(namespace(key)) == largest.as_ref());
    let oldest = of_largest.min_by_key(|(_, value)| age(value)).map(|(key, _)| key.clone());
    if let Some(oldest) = oldest {
        entries.remove(&oldest);
    }
}
