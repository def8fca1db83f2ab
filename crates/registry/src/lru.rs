//! A bounded cache that drops what was not used for longest.
//!
//! Everything that is remembered about registries, tokens and challenges is kept in one, because the keys come from
//! Pods and from answers of registries: invented names must not fill the memory.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::Mutex;

/// Values are cheap to clone, usually an `Arc`.
#[derive(Debug)]
pub(crate) struct LruCache<K, V> {
    slots: Mutex<Slots<K, V>>,
    capacity: usize,
}

#[derive(Debug)]
struct Slots<K, V> {
    values: HashMap<K, (V, u64)>,
    /// Counts uses; a value carries the count of its last one.
    uses: u64,
}

impl<K: Hash + Eq + Clone, V: Clone> LruCache<K, V> {
    pub(crate) fn new(capacity: usize) -> Self {
        let slots = Mutex::new(Slots { values: HashMap::new(), uses: 0 });
        Self { slots, capacity: capacity.max(1) }
    }

    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.slots.lock().get(key)
    }

    pub(crate) fn insert(&self, key: K, value: V) {
        self.slots.lock().insert(key, value, self.capacity);
    }

    /// The value of a key, which is `made` if there is none.
    pub(crate) fn get_or_insert_with(&self, key: &K, make: impl FnOnce() -> V) -> V {
        let mut slots = self.slots.lock();
        if let Some(value) = slots.get(key) {
            return value;
        }
        let value = make();
        slots.insert(key.clone(), value.clone(), self.capacity);
        value
    }

    pub(crate) fn remove(&self, key: &K) {
        self.slots.lock().values.remove(key);
    }

    /// Everything in the cache. Does not count as use.
    pub(crate) fn all(&self) -> Vec<(K, V)> {
        let slots = self.slots.lock();
        slots.values.iter().map(|(key, (value, _))| (key.clone(), value.clone())).collect()
    }
}

impl<K: Hash + Eq, V: Clone> Slots<K, V> {
    fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.uses += 1;
        let (value, last_use) = self.values.get_mut(key)?;
        *last_use = self.uses;
        Some(value.clone())
    }

    fn insert(&mut self, key: K, value: V, capacity: usize) {
        self.uses += 1;
        if self.values.len() >= capacity && !self.values.contains_key(&key) {
            self.drop_older_half();
        }
        self.values.insert(key, (value, self.uses));
    }

    /// Drops half at once, so that the search for the oldest is paid once in many insertions.
    fn drop_older_half(&mut self) {
        let mut uses: Vec<u64> = self.values.values().map(|(_, last_use)| *last_use).collect();
        let middle = uses.len() / 2;
        let (_, median, _) = uses.select_nth_unstable(middle);
        let median = *median;
        self.values.retain(|_, (_, last_use)| *last_use > median);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_used_lately_stays() {
        let cache = LruCache::new(4);
        for key in 0..4 {
            cache.insert(key, key);
        }
        assert_eq!(cache.get(&0), Some(0));
        assert_eq!(cache.get_or_insert_with(&4, || 4), 4);
        assert_eq!(cache.get_or_insert_with(&0, || panic!("it is there")), 0);
        assert_eq!(cache.get(&1), None);
    }

    proptest! {
        #[test]
        fn the_bound_holds_and_the_newest_is_there(
            capacity in 1_usize..20,
            keys in proptest::collection::vec(0_u8..60, 1..300),
        ) {
            let cache = LruCache::new(capacity);
            for key in keys {
                cache.insert(key, ());
                prop_assert!(cache.all().len() <= capacity);
                prop_assert!(cache.get(&key).is_some());
            }
        }
    }
}
