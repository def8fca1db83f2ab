//! A map with a bound: when it is full, what was not used for longest makes room.
//!
//! Everything remembered about strangers (registries, tokens, challenges) lives in one, because the names come from Pods
//! and from registries' answers, and nobody may fill our memory by inventing names.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

#[derive(Debug)]
pub(crate) struct LruMap<K, V> {
    entries: HashMap<K, Slot<V>>,
    capacity: usize,
    uses: u64,
}

#[derive(Debug)]
struct Slot<V> {
    value: V,
    last_use: u64,
}

impl<K: Hash + Eq + Clone, V> LruMap<K, V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { entries: HashMap::new(), capacity: capacity.max(1), uses: 0 }
    }

    pub(crate) fn get<Q>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.uses += 1;
        let entry = self.entries.get_mut(key)?;
        entry.last_use = self.uses;
        Some(&entry.value)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.uses += 1;
        if self.entries.len() >= self.capacity && !self.entries.contains_key(&key) {
            self.make_room();
        }
        self.entries.insert(key, Slot { value, last_use: self.uses });
    }

    pub(crate) fn remove<Q>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.entries.remove(key);
    }

    /// Looking at everything is no use of anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.value))
    }

    /// Drops the older half at once, so that the search for the oldest is paid once in many insertions.
    fn make_room(&mut self) {
        let mut ages: Vec<u64> = self.entries.values().map(|entry| entry.last_use).collect();
        let middle = ages.len() / 2;
        let (_, median, _) = ages.select_nth_unstable(middle);
        let median = *median;
        self.entries.retain(|_, entry| entry.last_use > median);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_used_lately_stays() {
        let mut map = LruMap::new(4);
        for key in 0..4 {
            map.insert(key, key);
        }
        assert_eq!(map.get(&0), Some(&0));
        map.insert(4, 4);
        assert_eq!(map.get(&0), Some(&0));
        assert_eq!(map.get(&1), None);
    }

    proptest! {
        #[test]
        fn the_bound_holds_and_the_newest_is_there(capacity in 1_usize..20, keys in proptest::collection::vec(0_u8..60, 1..300)) {
            let mut map = LruMap::new(capacity);
            for key in keys {
                map.insert(key, ());
                prop_assert!(map.entries.len() <= capacity);
                prop_assert!(map.get(&key).is_some());
            }
        }
    }
}
