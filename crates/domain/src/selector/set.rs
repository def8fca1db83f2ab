//! Many patterns, and many filters, against one text in one pass.
//!
//! A cluster may hold a thousand policies, and every container of every Pod is held against all of them. Almost every
//! pattern contains some text that must occur. One automaton looks for all those texts at once; only patterns
//! whose text was found are then matched. Patterns that are written alike are one pattern.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, MatchKind};

use super::{filter::ImageFilter, pattern::Pattern};

/// A pattern's place in a [`PatternSet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PatternId(usize);

/// Members of `0..n`, one bit each.
#[derive(Debug, Clone, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(length: usize) -> Self {
        Self(vec![0; length.div_ceil(64)])
    }

    /// `true` if the member is new.
    fn insert(&mut self, member: usize) -> bool {
        let Some(word) = self.0.get_mut(member / 64) else {
            return false;
        };
        let bit = 1 << (member % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    fn contains(&self, member: usize) -> bool {
        self.0.get(member / 64).is_some_and(|word| word >> (member % 64) & 1 == 1)
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                (left != 0).then(|| {
                    left &= left - 1;
                    index * 64 + bit as usize
                })
            })
        })
    }
}

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
        for (id, pattern) in self.patterns.iter().enumerate() {
            if let Some(text) = pattern.fixed() {
                fixed.entry(text.into()).or_default().push(id);
                continue;
            }
            let Some(texts) = pattern.needles() else {
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
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .ascii_case_insensitive(true)
            .build(&needles)
            .ok();
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
            tried.0.fill(0);
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

/// Compiled image filters by number, matched together.
#[derive(Debug, Default)]
pub struct FilterSet {
    patterns: PatternSet,
    /// By pattern: the filters that include, and those that exclude, what it matches.
    including: Vec<Vec<usize>>,
    excluding: Vec<Vec<usize>>,
    /// Filters that apply to everything they do not exclude.
    open: Vec<usize>,
    filters: usize,
}

impl FilterSet {
    /// Numbers the filters in the order given, from 0.
    pub fn new<'f>(filters: impl IntoIterator<Item = &'f ImageFilter>) -> Self {
        let mut set = Self::default();
        for filter in filters {
            set.push(filter);
        }
        set.patterns.build();
        set
    }

    fn push(&mut self, filter: &ImageFilter) {
        let number = self.filters;
        self.filters += 1;
        if filter.is_open() {
            self.open.push(number);
        }
        for pattern in filter.include() {
            let id = self.patterns.insert(pattern);
            note(&mut self.including, id, number);
        }
        for pattern in filter.exclude() {
            let id = self.patterns.insert(pattern);
            note(&mut self.excluding, id, number);
        }
    }

    /// Number of filters.
    pub fn len(&self) -> usize {
        self.filters
    }

    pub fn is_empty(&self) -> bool {
        self.filters == 0
    }

    /// The filters that let an image pass, in ascending order, given the image's forms.
    pub fn matching<'t>(&self, forms: impl IntoIterator<Item = &'t str>) -> Vec<usize> {
        let matched = self.patterns.matches(forms);
        let mut included = Bits::new(self.filters);
        let mut excluded = Bits::new(self.filters);
        for number in &self.open {
            included.insert(*number);
        }
        for PatternId(id) in matched.iter() {
            for (uses, marked) in [(&self.including, &mut included), (&self.excluding, &mut excluded)] {
                for number in uses.get(id).into_iter().flatten() {
                    marked.insert(*number);
                }
            }
        }
        included.iter().filter(|number| !excluded.contains(*number)).collect()
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
            assert_eq!(set.matching(texts.iter().copied()), one_by_one(&filters, texts), "{texts:?}");
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
    fn many_filters_keep_their_numbers() {
        let filters: Vec<_> = (0..200).map(|n| filter(&[&format!(r"quay\.io/team-{n}/.+")], &[])).collect();
        let set = FilterSet::new(&filters);
        assert_eq!(set.matching(["quay.io/team-137/app:1"]), [137]);
        assert_eq!(set.matching(["quay.io/team-1/app:1", "quay.io/team-199/app:1"]), [1, 199]);
        assert_eq!(set.matching(["quay.io/team-999/app:1"]), [0usize; 0]);
    }
}
