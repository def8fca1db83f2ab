//! The total order of alternatives, and the entries of several policies in that order, one at a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::policy::{Offer, Policy};

/// The place of an entry in the order: CR priority, kind (the original before all), entry priority, CR name,
/// declaration order.
pub(super) type Key<'p> = (i64, u8, u64, &'p str, usize);

pub(super) fn key(policy: &Policy, priority: u64, entry: usize) -> Key<'_> {
    (policy.priority, 1 + policy.id.kind as u8, priority, &policy.id.name, entry)
}

/// An entry whose turn it is: of which policy, at which position there.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head<'p> {
    pub(super) key: Key<'p>,
    pub(super) policy: usize,
    pub(super) position: usize,
    /// How many entries of the policy came before it.
    turn: usize,
}

/// A k-way merge: each policy knows its own order, and a heap holds the next entry of each.
#[derive(Debug)]
pub(super) struct Merge<'p> {
    policies: Vec<&'p Policy>,
    heads: BinaryHeap<Reverse<Head<'p>>>,
}

impl<'p> Merge<'p> {
    /// Policies are numbered as given.
    pub(super) fn new(policies: impl Iterator<Item = &'p Policy>) -> Self {
        let policies: Vec<&Policy> = policies.collect();
        let heads = policies.iter().enumerate().filter_map(|(number, policy)| head(policy, number, 0));
        Self { heads: heads.map(Reverse).collect(), policies }
    }

    pub(super) fn peek(&self) -> Option<Key<'p>> {
        self.heads.peek().map(|Reverse(head)| head.key)
    }
}

impl<'p> Iterator for Merge<'p> {
    type Item = Head<'p>;

    fn next(&mut self) -> Option<Head<'p>> {
        let Reverse(taken) = self.heads.pop()?;
        let policy = self.policies.get(taken.policy)?;
        self.heads.extend(head(policy, taken.policy, taken.turn + 1).map(Reverse));
        Some(taken)
    }
}

fn head(policy: &Policy, number: usize, turn: usize) -> Option<Head<'_>> {
    let position = *policy.order.get(turn)?;
    let (priority, entry) = match &policy.offer {
        Offer::Mirrors { mirrors, .. } => mirrors.get(position).map(|one| (one.priority, one.entry))?,
        Offer::Upstreams(upstreams) => upstreams.get(position).map(|one| (one.priority, one.entry))?,
    };
    Some(Head { key: key(policy, priority, entry), policy: number, position, turn })
}
