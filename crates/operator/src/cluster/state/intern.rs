//! One copy of every text that many Pods share: image names, namespaces, nodes, whole sets of labels.
//!
//! Ten thousand Pods of some hundred images repeat the same few thousand strings; keeping each once is what makes the
//! index small.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Gives equal values the same allocation.
#[derive(Debug)]
pub(crate) struct Interner<T: ?Sized> {
    known: HashSet<Arc<T>>,
    /// Size at which unused values are collected.
    sweep_at: usize,
}

const SMALLEST_SWEEP: usize = 1024;

impl<T: ?Sized + Eq + Hash> Default for Interner<T> {
    fn default() -> Self {
        Self { known: HashSet::new(), sweep_at: SMALLEST_SWEEP }
    }
}

impl<T: ?Sized + Eq + Hash> Interner<T>
where
    Arc<T>: for<'a> From<&'a T>,
{
    pub(crate) fn get(&mut self, value: &T) -> Arc<T> {
        if let Some(known) = self.known.get(value) {
            return known.clone();
        }
        if self.known.len() >= self.sweep_at {
            self.sweep();
        }
        let fresh: Arc<T> = Arc::from(value);
        self.known.insert(fresh.clone());
        fresh
    }

    /// Forgets what is used nowhere else. Runs by itself whenever the number of values has doubled.
    pub(crate) fn sweep(&mut self) {
        self.known.retain(|value| Arc::strong_count(value) > 1);
        self.known.shrink_to(self.known.len() * 2);
        self.sweep_at = (self.known.len() * 2).max(SMALLEST_SWEEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_one_allocation() {
        let mut interner = Interner::<str>::default();
        let (one, two) = (interner.get("nginx"), interner.get("nginx"));
        assert!(Arc::ptr_eq(&one, &two));
    }

    #[test]
    fn unused_texts_do_not_pile_up() {
        let mut interner = Interner::<str>::default();
        let kept = interner.get("kept");
        for number in 0..100_000 {
            interner.get(&format!("image-{number}"));
        }
        assert!(interner.known.len() <= SMALLEST_SWEEP + 1, "{} texts are kept", interner.known.len());
        assert!(Arc::ptr_eq(&kept, &interner.get("kept")));
    }
}
