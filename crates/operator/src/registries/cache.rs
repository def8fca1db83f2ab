//! A bounded cache with single-flight loads, for what is read or made once for all callers.
//!
//! Its keys belong to namespaces or to registries, and come from Pods. What was not used for longest makes room, of the
//! namespace or registry that holds most: a namespace with thousands of Secrets displaces its own.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use fairlead_plan::pull_secrets::CopyPlace;
use fairlead_plan::routing::SecretName;
use parking_lot::{Mutex, MutexGuard};

use super::single_flight::SingleFlight;
use crate::cluster::state::Key;

/// A key that belongs to a group of keys: those of a namespace, or of a registry.
pub(super) trait Grouped {
    type Group: Clone + Ord + Hash;

    fn group(&self) -> &Self::Group;
}

impl Grouped for SecretName {
    type Group = Arc<str>;

    fn group(&self) -> &Arc<str> {
        &self.namespace
    }
}

impl Grouped for Key {
    type Group = Arc<str>;

    fn group(&self) -> &Arc<str> {
        &self.namespace
    }
}

impl Grouped for CopyPlace {
    type Group = Arc<str>;

    fn group(&self) -> &Arc<str> {
        &self.namespace
    }
}

/// What a cache holds at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Capacity {
    pub(super) entries: usize,
    pub(super) bytes: usize,
}

/// Values `V` by key, and loads under way that lead to a `R`.
#[derive(Debug)]
pub(super) struct SingleFlightCache<K, V, R> {
    entries: Mutex<BoundedMap<K, V>>,
    pub(super) flights: SingleFlight<K, R>,
}

impl<K: Clone + Eq + Hash + Grouped, V, R> SingleFlightCache<K, V, R> {
    pub(super) fn new(capacity: Capacity) -> Self {
        Self { entries: Mutex::new(BoundedMap::new(capacity)), flights: SingleFlight::default() }
    }

    pub(super) fn entries(&self) -> MutexGuard<'_, BoundedMap<K, V>> {
        self.entries.lock()
    }
}

#[derive(Debug)]
pub(super) struct BoundedMap<K, V> {
    slots: HashMap<K, Slot<V>>,
    bytes: usize,
    /// Counts uses; a slot carries the count of its last one.
    uses: u64,
    capacity: Capacity,
}

#[derive(Debug)]
struct Slot<V> {
    value: V,
    bytes: usize,
    used: u64,
}

impl<K: Clone + Eq + Hash + Grouped, V> BoundedMap<K, V> {
    pub(super) fn new(capacity: Capacity) -> Self {
        Self { slots: HashMap::new(), bytes: 0, uses: 0, capacity }
    }

    /// Counts as a use.
    pub(super) fn get(&mut self, key: &K) -> Option<&mut V> {
        self.uses += 1;
        let slot = self.slots.get_mut(key)?;
        slot.used = self.uses;
        Some(&mut slot.value)
    }

    /// `bytes` is roughly the memory that the value takes beside itself.
    pub(super) fn insert(&mut self, key: &K, value: V, bytes: usize) {
        self.remove(key);
        self.uses += 1;
        self.bytes += bytes;
        self.slots.insert(key.clone(), Slot { value, bytes, used: self.uses });
        if !self.fits(self.capacity) {
            self.shrink();
        }
    }

    pub(super) fn remove(&mut self, key: &K) {
        if let Some(slot) = self.slots.remove(key) {
            self.bytes = self.bytes.saturating_sub(slot.bytes);
        }
    }

    fn fits(&self, capacity: Capacity) -> bool {
        self.slots.len() <= capacity.entries && self.bytes <= capacity.bytes
    }

    /// Makes room for several at once, so that it need not be done at every new entry.
    fn shrink(&mut self) {
        let Capacity { entries, bytes } = self.capacity;
        let wanted = Capacity { entries: entries - entries / 16, bytes: bytes - bytes / 16 };
        let bytes_of_one = (bytes / entries.max(1)).max(1);
        let mut groups: HashMap<K::Group, Holding<K>> = HashMap::new();
        for (key, slot) in &self.slots {
            let holding = groups.entry(key.group().clone()).or_default();
            holding.bytes += slot.bytes;
            holding.kept.push((slot.used, slot.bytes, key.clone()));
        }
        let mut by_size: BinaryHeap<(usize, K::Group)> = BinaryHeap::new();
        for (group, holding) in &mut groups {
            holding.kept.sort_unstable_by_key(|(used, ..)| Reverse(*used));
            by_size.push((holding.size(bytes_of_one), group.clone()));
        }
        while !self.fits(wanted) {
            let Some((_, group)) = by_size.pop() else { break };
            let Some(holding) = groups.get_mut(&group) else { continue };
            let Some((_, bytes, key)) = holding.kept.pop() else { continue };
            holding.bytes = holding.bytes.saturating_sub(bytes);
            by_size.push((holding.size(bytes_of_one), group));
            self.remove(&key);
        }
    }
}

/// What one group holds of the cache.
#[derive(Debug)]
struct Holding<K> {
    bytes: usize,
    /// Use, bytes and key, the least recently used last.
    kept: Vec<(u64, usize, K)>,
}

impl<K> Default for Holding<K> {
    fn default() -> Self {
        Self { bytes: 0, kept: Vec::new() }
    }
}

impl<K> Holding<K> {
    /// In entries, where many bytes count as several.
    fn size(&self, bytes_of_one: usize) -> usize {
        self.kept.len().max(self.bytes / bytes_of_one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Capacity = Capacity { entries: 4096, bytes: 16 << 20 };

    fn name(name: &str) -> SecretName {
        SecretName { namespace: "shop".into(), name: name.into() }
    }

    #[test]
    fn a_namespace_with_many_keys_displaces_its_own() {
        let mut map = BoundedMap::new(CAPACITY);
        let other = SecretName { namespace: "other".into(), name: "only".into() };
        map.insert(&other, (), 1);
        for number in 0..3 * CAPACITY.entries {
            map.insert(&name(&number.to_string()), (), 0);
        }
        for number in 0..64 {
            map.insert(&name(&format!("large-{number}")), (), 1 << 20);
        }
        assert!(map.fits(CAPACITY));
        assert!(map.get(&other).is_some(), "although it was not used since");
    }

    #[test]
    fn what_is_not_used_makes_room() {
        let mut map = BoundedMap::new(CAPACITY);
        map.insert(&name("kept"), (), 1);
        for number in 0..3 * CAPACITY.entries {
            map.insert(&name(&number.to_string()), (), 0);
            assert!(map.get(&name("kept")).is_some());
        }
        assert!(map.fits(CAPACITY), "{}", map.slots.len());
        for number in 0..64 {
            map.insert(&name(&format!("large-{number}")), (), 1 << 20);
        }
        assert!(map.fits(CAPACITY), "{}", map.bytes);
        assert_eq!(map.bytes, map.slots.values().map(|slot| slot.bytes).sum::<usize>());
        map.remove(&name("large-63"));
        assert_eq!(map.bytes, map.slots.values().map(|slot| slot.bytes).sum::<usize>());
    }
}
