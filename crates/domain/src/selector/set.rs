//! Many patterns, and many filters, against one text in one pass.
//!
//! A cluster may hold a thousand policies, and every container of every Pod is held against all of them. Almost every
//! pattern contains some text that must occur. One automaton looks for all those texts at once; only patterns
//! whose text was found are then matched. Patterns that are written alike are one pattern.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::bits::{Bits, Numbers};
use super::filter::ImageFilter;
use super::pattern::Pattern;

/// A pattern's place in a [`PatternSet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PatternId(usize);

/// The patterns that matched.
#[derive(Debug, Clone, Default)]
pub struct Matched(Bits);

impl Matched {
    pub fn contains(&self, pattern: PatternId) -> bool {
        self.0.contains(pattern.0)
    }

    pub fn iter(&self) -> impl Iterator<Item = PatternId> {
        self.0.iter().map(PatternId)
    }
}

/// Distinct patterns, ready to be matched together.
#[derive(Debug, Default)]
pub struct PatternSet {
    patterns: Vec<Pattern>,
    by_text: HashMap<Pattern, PatternId>,
    index: Option<Index>,
}

#[derive(Debug)]
struct Index {
    /// Patterns that match one text only.
    fixed: HashMap<Box<str>, Vec<usize>>,
    finder: Option<AhoCorasick>,
    /// For each text the finder looks for, the patterns that need it.
    needed_by: Vec<Vec<usize>>,
    /// Patterns in which nothing in particular has to occur.
    always: Vec<usize>,
}

impl PatternSet {
    /// Adds a pattern, or finds the equal one that is there already.
    pub fn insert(&mut self, pattern: &Pattern) -> PatternId {
        if let Some(id) = self.by_text.get(pattern) {
            return *id;
        }
        let id = PatternId(self.patterns.len());
        self.patterns.push(pattern.clone());
        self.by_text.insert(pattern.clone(), id);
        self.index = None;
        id
    }

    /// Number of distinct patterns.
    pub fn len(&self) -> usize {
        self.patterns.len()
    }

    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Prepares for matching. Without it, and after another insertion, patterns are matched one by one.
    pub fn build(&mut self) {
        let mut fixed: HashMap<Box<str>, Vec<usize>> = HashMap::new();
        let mut needles: Vec<&[u8]> = Vec::new();
        let mut places: HashMap<&[u8], usize> = HashMap::new();
        let mut needed_by: Vec<Vec<usize>> = Vec::new();
        let mut always = Vec::new();
        // A registry that all patterns begin with selects nothing; the texts that differ do.
        let mut popular: HashMap<&[u8], usize> = HashMap::new();
        for text in self.patterns.iter().flat_map(Pattern::needles).flatten() {
            *popular.entry(text).or_default() += 1;
        }
        let work = |texts: &&Vec<Vec<u8>>| -> usize {
            let users = |text: &Vec<u8>| popular.get(&**text).copied().unwrap_or_default();
            texts.iter().map(|text| users(text) * by_chance(text)).sum()
        };
        for (id, pattern) in self.patterns.iter().enumerate() {
            if let Some(text) = pattern.fixed() {
                fixed.entry(text.into()).or_default().push(id);
                continue;
            }
            let Some(texts) = pattern.needles().iter().min_by_key(work) else {
                always.push(id);
                continue;
            };
            for text in texts {
                let place = *places.entry(text).or_insert_with(|| {
                    needles.push(text);
                    needed_by.push(Vec::new());
                    needles.len() - 1
                });
                if let Some(users) = needed_by.get_mut(place) {
                    users.push(id);
                }
            }
        }
        let finder = if needles.is_empty() { None } else { finder(&needles) };
        if finder.is_none() {
            // The texts to look for did not fit; every pattern is then matched each time.
            always.extend(needed_by.drain(..).flatten());
        }
        self.index = Some(Index { fixed, finder, needed_by, always });
    }

    /// The patterns that match at least one of the texts.
    pub fn matches<'t>(&self, texts: impl IntoIterator<Item = &'t str>) -> Matched {
        let mut matched = Bits::new(self.patterns.len());
        let mut tried = Bits::new(self.patterns.len());
        for text in texts {
            let mut attempt = |id: usize| {
                if !matched.contains(id) && self.patterns.get(id).is_some_and(|pattern| pattern.matches(text))
                {
                    matched.insert(id);
                }
            };
            let Some(index) = &self.index else {
                (0..self.patterns.len()).for_each(attempt);
                continue;
            };
            index.fixed.get(text).into_iter().flatten().copied().for_each(&mut attempt);
            index.always.iter().copied().for_each(&mut attempt);
            tried.clear();
            for found in index.finder.iter().flat_map(|finder| finder.find_overlapping_iter(text)) {
                let users = index.needed_by.get(found.pattern().as_usize());
                for id in users.into_iter().flatten().copied() {
                    if tried.insert(id) {
                        attempt(id);
                    }
                }
            }
        }
        Matched(matched)
    }
}

/// Compiled filters by number, matched together.
#[derive(Debug, Default)]
pub struct FilterSet {
    patterns: PatternSet,
    /// By pattern: the filters that include, and those that exclude, what it matches.
    including: Vec<Numbers>,
    excluding: Vec<Numbers>,
    /// Filters that let everything pass that they do not exclude.
    open: Bits,
    filters: usize,
}

/// A filter as a set sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member<'f> {
    pub(super) include: &'f [Pattern],
    pub(super) exclude: &'f [Pattern],
    pub(super) open: bool,
}

impl FilterSet {
    /// Numbers the filters in the order given, from 0.
    pub fn new<'f>(filters: impl IntoIterator<Item = &'f ImageFilter>) -> Self {
        Self::of_members(filters.into_iter().map(|filter| Member {
            include: filter.include(),
            exclude: filter.exclude(),
            open: filter.is_open(),
        }))
    }

    pub(super) fn of_members<'f>(members: impl IntoIterator<Item = Member<'f>>) -> Self {
        let mut patterns = PatternSet::default();
        let (mut including, mut excluding) = (Vec::new(), Vec::new());
        let mut open = Vec::new();
        let mut filters = 0;
        for (number, member) in members.into_iter().enumerate() {
            filters = number + 1;
            if member.open {
                open.push(number);
            }
            for (listed, users) in [(member.include, &mut including), (member.exclude, &mut excluding)] {
                for pattern in listed {
                    note(users, patterns.insert(pattern), number);
                }
            }
        }
        patterns.build();
        let group =
            |users: Vec<Vec<usize>>| users.into_iter().map(|one| Numbers::new(one, filters)).collect();
        let mut set = Self {
            patterns,
            including: group(including),
            excluding: group(excluding),
            open: Bits::new(filters),
            filters,
        };
        Numbers::new(open, filters).add_to(&mut set.open);
        set
    }

    /// Number of filters.
    pub fn len(&self) -> usize {
        self.filters
    }

    pub fn is_empty(&self) -> bool {
        self.filters == 0
    }

    /// The filters that pass an image, given its forms: one included form suffices, and one excluded form refuses it.
    pub fn matching<'t>(&self, forms: impl IntoIterator<Item = &'t str>) -> Bits {
        let mut passing = self.open.clone();
        if self.patterns.is_empty() {
            return passing;
        }
        let matched = self.patterns.matches(forms);
        let mut excluded = Bits::new(self.filters);
        for PatternId(id) in matched.iter() {
            for (groups, marked) in [(&self.including, &mut passing), (&self.excluding, &mut excluded)] {
                if let Some(group) = groups.get(id) {
                    group.add_to(marked);
                }
            }
        }
        passing.take_out(&excluded);
        passing
    }
}

/// Up to so many bytes of texts a full DFA looks for them, at the same speed for any number of texts. It takes up to
/// 256 times their size; beyond, a smaller automaton that is several times slower is used.
const FAST_LIMIT: usize = 16 << 10;

fn finder(needles: &[&[u8]]) -> Option<AhoCorasick> {
    let mut builder = AhoCorasick::builder();
    // Our texts are short: searching them for a rare character first costs more than it saves.
    builder.match_kind(MatchKind::Standard).ascii_case_insensitive(true).prefilter(false);
    if needles.iter().map(|text| text.len()).sum::<usize>() <= FAST_LIMIT {
        builder.kind(Some(AhoCorasickKind::DFA));
    }
    builder.build(needles).ok()
}

/// How much more often than a long text a short one occurs where it means nothing; a guess that only costs time.
fn by_chance(text: &[u8]) -> usize {
    match text.len() {
        0 | 1 => 16,
        2 => 8,
        3 => 2,
        _ => 1,
    }
}

fn note(uses: &mut Vec<Vec<usize>>, PatternId(id): PatternId, filter: usize) {
    if uses.len() <= id {
        uses.resize_with(id + 1, Vec::new);
    }
    if let Some(users) = uses.get_mut(id) {
        users.push(filter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(include: &[&str], exclude: &[&str]) -> ImageFilter {
        ImageFilter::legacy(include, exclude).unwrap()
    }

    fn one_by_one(filters: &[ImageFilter], texts: &[&str]) -> Vec<usize> {
        let passing = |filter: &ImageFilter| filter.matches(texts.iter().copied());
        filters.iter().enumerate().filter(|(_, filter)| passing(filter)).map(|(number, _)| number).collect()
    }

    #[test]
    fn agrees_with_matching_one_by_one() {
        let filters = [
            filter(&[r"docker\.io/library/.+"], &[]),
            filter(&[".*"], &[r".*:latest"]),
            filter(&[], &[r"docker\.io/.*"]),
            filter(&[], &[]),
            filter(&[r"docker\.io/library/nginx:1"], &[]),
            filter(&[r"quay\.io/.+|ghcr\.io/.+"], &[r".*/secret/.*", "(?i).*SNAPSHOT"]),
            filter(&[".*nginx.*", r"docker\.io/library/.+"], &[".*nginx.*:1"]),
            filter(&["[a-z.]+/[a-z]+/[a-z]+(:[0-9]+)?"], &[]),
        ];
        let set = FilterSet::new(&filters);
        assert_eq!(set.len(), filters.len());
        for texts in [
            &["docker.io/library/nginx:1"][..],
            &["docker.io/library/nginx:latest", "docker.io/library/nginx"],
            &["quay.io/a/secret/b:1"],
            &["quay.io/a/b:snapshot"],
            &["ghcr.io/a/b:2", "x"],
            &[""],
            &[],
        ] {
            let together: Vec<usize> = set.matching(texts.iter().copied()).iter().collect();
            assert_eq!(together, one_by_one(&filters, texts), "{texts:?}");
        }
    }

    #[test]
    fn equal_patterns_are_one() {
        let mut set = PatternSet::default();
        let first = set.insert(&Pattern::parse("a+").unwrap());
        let second = set.insert(&Pattern::parse("b+").unwrap());
        assert_eq!(set.insert(&Pattern::parse("a+").unwrap()), first);
        assert_eq!(set.len(), 2);
        let unbuilt = set.matches(["bb"]);
        set.build();
        let built = set.matches(["bb"]);
        for matched in [unbuilt, built] {
            assert!(matched.contains(second) && !matched.contains(first));
            assert_eq!(matched.iter().collect::<Vec<_>>(), [second]);
        }
    }

    #[test]
    fn looks_for_what_sets_patterns_apart() {
        let mut set = PatternSet::default();
        for n in 0..100 {
            set.insert(&Pattern::parse(&format!(r"registry\.example\.com/(a|b)/app-{n}:.+")).unwrap());
        }
        set.build();
        let index = set.index.as_ref().unwrap();
        assert!(index.needed_by.iter().all(|users| users.len() == 1), "{:?}", index.needed_by);
        let matched = set.matches(["registry.example.com/b/app-42:1"]);
        assert_eq!(matched.iter().collect::<Vec<_>>(), [PatternId(42)]);
    }

    #[test]
    fn many_filters_keep_their_numbers() {
        let filters: Vec<_> = (0..200).map(|n| filter(&[&format!(r"quay\.io/team-{n}/.+")], &[])).collect();
        let set = FilterSet::new(&filters);
        let matching = |texts: &[&str]| set.matching(texts.iter().copied()).iter().collect::<Vec<_>>();
        assert_eq!(matching(&["quay.io/team-137/app:1"]), [137]);
        assert_eq!(matching(&["quay.io/team-1/app:1", "quay.io/team-199/app:1"]), [1, 199]);
        assert_eq!(matching(&["quay.io/team-999/app:1"]), [0usize; 0]);
    }
}
