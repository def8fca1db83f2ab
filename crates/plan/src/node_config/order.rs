//! The order of one source's mirrors when several lists name them.
//!
//! A topological sort: whatever follows directly in a list comes later in the result. What is free at the same time
//! comes in the order of the alphabet. Lists that contradict each other form a cycle, which is broken at its
//! alphabetically first mirror. The source comes last by itself, unless a list gives it another place.

use std::collections::{BTreeSet, VecDeque};

use super::{Location, Scope};

/// All mirrors of the lists, each once. The source is among them only if a list names it and it does not come last.
pub(super) fn order(source: &Scope, lists: &[Vec<Location>]) -> Vec<Location> {
    let mut names: Vec<&str> = lists.iter().flatten().map(Location::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let index = |name: &str| names.binary_search(&name).ok();
    // A source that no list names has nothing after it, so it would end up last and be dropped.
    let source = index(source.as_str());

    let mut graph = Graph::new(names.len());
    for list in lists {
        let list: Vec<usize> = list.iter().filter_map(|mirror| index(mirror.as_str())).collect();
        for (from, to) in list.iter().zip(list.iter().skip(1)) {
            graph.edges.insert((*from, *to));
        }
        if let (Some(source), Some(last)) = (source, list.last())
            && !list.contains(&source)
        {
            graph.edges.insert((*last, source));
        }
    }
    let mut sorted = graph.sorted();
    if source.is_some() && sorted.last().copied() == source {
        sorted.pop();
    }
    let location = |vertex: usize| names.get(vertex).and_then(|name| Location::parse(name).ok());
    sorted.into_iter().filter_map(location).collect()
}

/// Vertices are numbered in the order of the alphabet.
struct Graph {
    size: usize,
    edges: BTreeSet<(usize, usize)>,
}

impl Graph {
    fn new(size: usize) -> Self {
        Self { size, edges: BTreeSet::new() }
    }

    fn sorted(&self) -> Vec<usize> {
        let mut incoming = vec![0_usize; self.size];
        for (_, to) in &self.edges {
            if let Some(count) = incoming.get_mut(*to) {
                *count += 1;
            }
        }
        let mut used = vec![false; self.size];
        let is_free = |vertex: &usize| incoming.get(*vertex) == Some(&0);
        let mut queue: VecDeque<usize> = (0..self.size).filter(is_free).collect();
        let mut unvisited = 0..self.size;
        let mut sorted = Vec::with_capacity(self.size);
        while let Some(vertex) = queue.pop_front().or_else(|| unvisited.next()) {
            let Some(is_used) = used.get_mut(vertex) else { continue };
            if std::mem::replace(is_used, true) {
                continue;
            }
            sorted.push(vertex);
            for (_, successor) in self.edges.range((vertex, 0)..=(vertex, usize::MAX)) {
                let Some(count) = incoming.get_mut(*successor) else { continue };
                *count = count.saturating_sub(1);
                if *count == 0 && used.get(*successor) == Some(&false) {
                    queue.push_back(*successor);
                }
            }
        }
        sorted
    }
}
