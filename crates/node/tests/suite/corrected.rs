//! The corrected merge once more, written from its rules in the plainest way: texts and lists, no tree, no order of
//! evaluation to share with the planner. It predicts every entry, so that no difference from the reference is merely
//! excused.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_plan::node_config::{Location, MirrorPolicy, NodeConfig, PolicyKind, PullKind, Set};

type Mirrors = Vec<(String, bool)>;

/// What is expected of one scope.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Predicted {
    closed: bool,
    insecure: bool,
    digest: Mirrors,
    tag: Mirrors,
}

/// What is said about one source, by all objects.
#[derive(Default)]
struct Source {
    never: bool,
    digest: Vec<Vec<String>>,
    tag: Vec<Vec<String>>,
}

impl Source {
    /// Mirrors of one kind in their order; inside a closed source there are none.
    fn mirrors(&self, name: &str, kind: PullKind) -> Vec<String> {
        let lists = if kind == PullKind::Digest { &self.digest } else { &self.tag };
        let lists: Vec<Vec<String>> = lists
            .iter()
            .map(|list| {
                list.iter().filter(|mirror| !(self.never && is_inside(mirror, name, "/:"))).cloned().collect()
            })
            .collect();
        sorted(name, &lists)
    }
}

/// Whether a place is a scope or lies in it; of the characters in `after`, one may follow the scope's text.
fn is_inside(place: &str, scope: &str, after: &str) -> bool {
    if let Some(domain) = scope.strip_prefix('*') {
        return place.split(['/', ':']).next().unwrap().ends_with(domain);
    }
    place == scope || after.chars().any(|letter| place.starts_with(&format!("{scope}{letter}")))
}

/// Scopes around a place, nearest first: the longest text, hosts and paths before domains.
fn around<'a>(place: &str, scopes: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut found: Vec<&String> = scopes.filter(|scope| is_inside(place, scope, "/")).collect();
    found.sort_by_key(|scope| (scope.starts_with('*') && scope.as_str() != place, usize::MAX - scope.len()));
    found
}

/// What is left of a place after the scope that it lies in; a port belongs to the host.
fn rest(place: &str, scope: &str) -> String {
    if scope.starts_with('*') {
        return place.find('/').map_or(String::new(), |at| place[at..].to_owned());
    }
    place[scope.len()..].to_owned()
}

/// Takes one by one what nothing is left before; several that become free at once in the order of the alphabet. In a
/// circle the first by alphabet is taken.
fn sorted(source: &str, lists: &[Vec<String>]) -> Vec<String> {
    let mut left: BTreeSet<&str> = lists.iter().flatten().map(String::as_str).collect();
    let is_named = left.contains(source);
    let mut before: BTreeSet<(&str, &str)> = BTreeSet::new();
    for list in lists {
        for pair in list.windows(2) {
            before.insert((&pair[0], &pair[1]));
        }
        if let Some(last) = list.last().filter(|_| is_named && !list.iter().any(|one| one == source)) {
            before.insert((last, source));
        }
    }
    let is_free = |one: &str, before: &BTreeSet<(&str, &str)>| !before.iter().any(|(_, later)| *later == one);
    let mut line: Vec<&str> = left.iter().copied().filter(|one| is_free(one, &before)).collect();
    let mut result: Vec<&str> = Vec::new();
    while !left.is_empty() {
        let next = if line.is_empty() { *left.first().unwrap() } else { line.remove(0) };
        if !left.remove(next) {
            continue;
        }
        result.push(next);
        let after: BTreeSet<&str> =
            before.iter().filter(|(one, _)| *one == next).map(|(_, later)| *later).collect();
        before.retain(|(one, _)| *one != next);
        line.extend(after.into_iter().filter(|one| left.contains(one) && is_free(one, &before)));
    }
    if is_named && result.last() == Some(&source) {
        result.pop();
    }
    result.into_iter().map(str::to_owned).collect()
}

fn take(sources: &mut BTreeMap<String, Source>, kind: PolicyKind, set: &Set) {
    let Set { source: name, mirrors, never_contact_source: never } = set;
    let is_wrong =
        |mirror: &String| Location::parse(mirror).is_err() || (*never && is_inside(mirror, name, "/:"));
    if mirrors.iter().any(is_wrong) {
        if *never {
            sources.entry(name.clone()).or_default().never = true;
        }
        return;
    }
    if mirrors.iter().all(|mirror| mirror == name) {
        return;
    }
    let mut once = Vec::new();
    for mirror in mirrors {
        if !once.contains(mirror) {
            once.push(mirror.clone());
        }
    }
    let source = sources.entry(name.clone()).or_default();
    source.never |= *never;
    if kind != PolicyKind::ImageTagMirrorSet {
        source.digest.push(once.clone());
    }
    if matches!(kind, PolicyKind::ImageTagMirrorSet | PolicyKind::ImageSourceTagPolicy) {
        source.tag.push(once);
    }
}

pub(crate) fn predicted(
    policies: &[MirrorPolicy],
    insecure: &[&str],
    blocked: &[&str],
) -> BTreeMap<String, Predicted> {
    let mut sources: BTreeMap<String, Source> = BTreeMap::new();
    for policy in policies {
        for set in &policy.sets {
            take(&mut sources, policy.id.kind, set);
        }
    }
    let is_listed = |list: &[&str], place: &str| list.iter().any(|scope| is_inside(place, scope, "/"));
    let mut scopes: BTreeSet<String> = sources.keys().cloned().collect();
    scopes.extend(insecure.iter().chain(blocked).map(|scope| (*scope).to_owned()));
    let one = |scope: &String| {
        let nearest = around(scope, sources.keys());
        let never = nearest.first().is_some_and(|name| sources[*name].never);
        let of_kind = |kind| {
            let from = nearest.iter().map(|name| (*name, sources[*name].mirrors(name, kind)));
            let Some((name, mirrors)) = from.into_iter().find(|(_, mirrors)| !mirrors.is_empty()) else {
                return (Vec::new(), false);
            };
            let places = mirrors.into_iter().map(|mirror| mirror + &rest(scope, name));
            let places = places.map(|place| {
                let is_insecure = is_listed(insecure, &place);
                (place, is_insecure)
            });
            (places.collect(), sources[name].never)
        };
        let ((digest, by_digest), (tag, by_tag)) = (of_kind(PullKind::Digest), of_kind(PullKind::Tag));
        let closed = never || by_digest || by_tag || is_listed(blocked, scope);
        (scope.clone(), Predicted { closed, insecure: is_listed(insecure, scope), digest, tag })
    };
    scopes.iter().map(one).collect()
}

/// The planner's result in the same form.
pub(crate) fn planned(config: &NodeConfig) -> BTreeMap<String, Predicted> {
    let mut shown = BTreeMap::new();
    for (scope, entry) in config.entries.iter().filter(|(_, entry)| !entry.is_alias) {
        let of_kind = |kind| {
            let mirrors = entry.mirrors(kind).list.iter();
            mirrors.map(|mirror| (mirror.location.to_string(), mirror.insecure)).collect()
        };
        let (digest, tag) = (of_kind(PullKind::Digest), of_kind(PullKind::Tag));
        let entry = Predicted { closed: entry.is_closed(), insecure: entry.insecure, digest, tag };
        shown.insert(scope.to_string(), entry);
    }
    shown
}
