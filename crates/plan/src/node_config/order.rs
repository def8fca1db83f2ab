//! The order of one source's mirrors when several lists name them.
//!
//! A topological sort: whatever follows directly in a list comes later in the result. What is free at the same time
//! comes in the order of the alphabet. Lists that contradict each other form a cycle, which is broken at its
//! alphabetically first mirror. The source comes last by itself, unless a list gives it another place.

use std::collections::{HashMap, VecDeque};

use super::{Location, Scope};

/// The mirrors of a source in their order.
pub(super) struct Ordered {
    /// All mirrors of the lists, each once. The source is among them only if a list names it and it does not come last.
    pub(super) mirrors: Vec<Location>,
    /// Places of a mirror here and of a list that names it.
    pub(super) listed: Vec<(usize, usize)>,
}

pub(super) fn order(source: &Scope, lists: &[Vec<&str>]) -> Ordered {
    let mut numbers: HashMap<&str, usize> = lists.iter().flatten().map(|name| (*name, 0)).collect();
    let mut names: Vec<&str> = numbers.keys().copied().collect();
    names.sort_unstable();
    for (number, name) in names.iter().enumerate() {
        numbers.insert(name, number);
    }
    // A source that no list names has nothing after it, so it would end up last and be dropped.
    let source = numbers.get(source.as_str()).copied();

    let (mut edges, mut listed) = (Vec::new(), Vec::new());
    for (at, list) in lists.iter().enumerate() {
        let numbered = list.iter().filter_map(|name| numbers.get(name).copied());
        let mut numbered = numbered.inspect(|number| listed.push((*number, at)));
        let mut last = numbered.next();
        let mut names_source = last.is_some() && last == source;
        for number in numbered {
            edges.extend(last.map(|last| (last, number)));
            names_source |= Some(number) == source;
            last = Some(number);
        }
        if !names_source && let (Some(last), Some(source)) = (last, source) {
            edges.push((last, source));
        }
    }
    let mut sorted = Graph::new(names.len(), edges).sorted();
    if source.is_some() && sorted.last().copied() == source {
        sorted.pop();
    }
    let mut places = vec![None; names.len()];
    let mut mirrors = Vec::with_capacity(sorted.len());
    for vertex in sorted {
        let location = names.get(vertex).and_then(|name| Location::parse(name).ok());
        if let (Some(place), Some(location)) = (places.get_mut(vertex), location) {
            *place = Some(mirrors.len());
            mirrors.push(location);
        }
    }
    let place = |number: usize| places.get(number).copied().flatten();
    let listed = listed.into_iter().filter_map(|(number, list)| Some((place(number)?, list))).collect();
    Ordered { mirrors, listed }
}

/// Vertices are numbered in the order of the alphabet.
struct Graph {
    size: usize,
    /// In order, each once.
    edges: Vec<(usize, usize)>,
}

impl Graph {
    fn new(size: usize, mut edges: Vec<(usize, usize)>) -> Self {
        edges.sort_unstable();
        edges.dedup();
        Self { size, edges }
    }

    fn edges_from(&self, vertex: usize) -> impl Iterator<Item = usize> {
        let first = self.edges.partition_point(|(from, _)| *from < vertex);
        let own = self.edges.iter().skip(first).take_while(move |(from, _)| *from == vertex);
        own.map(|(_, to)| *to)
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
            for successor in self.edges_from(vertex) {
                let Some(count) = incoming.get_mut(successor) else { continue };
                *count = count.saturating_sub(1);
                if *count == 0 && used.get(successor) == Some(&false) {
                    queue.push_back(successor);
                }
            }
        }
        sorted
    }
}
