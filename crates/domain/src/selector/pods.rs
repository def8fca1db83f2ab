//! Many Pod matchers against one Pod, without looking at each of them.
//!
//! A selector says of most Pods what it says of a Pod without labels: it asks for labels that they do not carry. So
//! that answer is kept for every matcher, together with the labels that could change it, and only matchers for which
//! the Pod carries such a label are asked. Namespaces go through one set of patterns.

use std::collections::HashMap;

use super::bits::{Bits, Numbers};
use super::filter::{PodFacts, PodMatcher};
use super::label::{Labels, NoLabels, Selector, Sign};
use super::set::{FilterSet, Member};

/// Compiled Pod matchers by number, matched together.
#[derive(Debug, Default)]
pub struct PodMatcherSet {
    matchers: Vec<PodMatcher>,
    /// Matchers whose selectors let a Pod without labels and annotations pass.
    unlabelled: Bits,
    labels: Signs,
    annotations: Signs,
    /// Absent when no matcher looks at namespaces.
    namespaces: Option<FilterSet>,
}

impl PodMatcherSet {
    /// Numbers the matchers in the order given, from 0.
    pub fn new<'m>(matchers: impl IntoIterator<Item = &'m PodMatcher>) -> Self {
        let matchers: Vec<PodMatcher> = matchers.into_iter().cloned().collect();
        let mut unlabelled = Bits::new(matchers.len());
        for (number, matcher) in matchers.iter().enumerate() {
            if matcher.matches_labels(&NoLabels, &NoLabels) {
                unlabelled.insert(number);
            }
        }
        let groups = || matchers.iter().map(PodMatcher::groups);
        let members = groups().map(|groups| Member {
            include: &groups.namespaces.include,
            exclude: &groups.namespaces.exclude,
            open: groups.namespaces.include.is_empty(),
        });
        let by_namespace = groups().any(|groups| !groups.namespaces.is_empty());
        let namespaces = by_namespace.then(|| FilterSet::of_members(members));
        let labels =
            Signs::new(groups().map(|groups| groups.labels.include.iter().chain(&groups.labels.exclude)));
        let annotations = Signs::new(
            groups().map(|groups| groups.annotations.include.iter().chain(&groups.annotations.exclude)),
        );
        Self { matchers, unlabelled, labels, annotations, namespaces }
    }

    /// Number of matchers.
    pub fn len(&self) -> usize {
        self.matchers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.matchers.is_empty()
    }

    /// The matchers that let a Pod pass.
    pub fn matching(&self, pod: &PodFacts<'_>) -> Bits {
        let mut passing = self.unlabelled.clone();
        let mut doubtful = Bits::new(self.matchers.len());
        self.labels.note(pod.labels, &mut doubtful);
        self.annotations.note(pod.annotations, &mut doubtful);
        if let Some(namespaces) = &self.namespaces {
            let here = namespaces.matching([pod.namespace]);
            passing.keep(&here);
            doubtful.keep(&here);
        }
        for number in doubtful.iter() {
            let passes = self
                .matchers
                .get(number)
                .is_some_and(|matcher| matcher.matches_labels(pod.labels, pod.annotations));
            if passes {
                passing.insert(number);
            } else {
                passing.remove(number);
            }
        }
        passing
    }
}

/// Which matchers to ask when a label is there.
#[derive(Debug, Default)]
struct Signs {
    by_key: HashMap<Box<str>, Askers>,
}

#[derive(Debug)]
struct Askers {
    /// Whatever the value is.
    any: Numbers,
    by_value: HashMap<Box<str>, Numbers>,
}

impl Signs {
    fn new<'s, S: Iterator<Item = &'s Selector>>(matchers: impl Iterator<Item = S>) -> Self {
        let choices: Vec<Vec<Vec<Vec<Sign<'s>>>>> =
            matchers.map(|selectors| selectors.map(Selector::signs).collect()).collect();
        // Of several sets of labels to look out for, the one that fewest others look out for is taken: a label that
        // every policy names would otherwise have every policy asked about every Pod.
        let mut popular: HashMap<Sign<'s>, usize> = HashMap::new();
        for sign in choices.iter().flatten().flatten().flatten() {
            *popular.entry(*sign).or_default() += 1;
        }
        let cost = |signs: &&Vec<Sign<'s>>| -> usize {
            signs.iter().map(|sign| popular.get(sign).copied().unwrap_or_default()).sum()
        };
        let mut askers: HashMap<&'s str, HashMap<Option<&'s str>, Vec<usize>>> = HashMap::new();
        let length = choices.len();
        for (number, selectors) in choices.iter().enumerate() {
            for sign in selectors.iter().filter_map(|choices| choices.iter().min_by_key(cost)).flatten() {
                let numbers = askers.entry(sign.key).or_default().entry(sign.value).or_default();
                if numbers.last() != Some(&number) {
                    numbers.push(number);
                }
            }
        }
        let by_key = askers.into_iter().map(|(key, mut values)| {
            let any = Numbers::new(values.remove(&None).unwrap_or_default(), length);
            let by_value = values
                .into_iter()
                .filter_map(|(value, numbers)| Some((value?.into(), Numbers::new(numbers, length))))
                .collect();
            (key.into(), Askers { any, by_value })
        });
        Self { by_key: by_key.collect() }
    }

    fn note(&self, labels: &dyn Labels, doubtful: &mut Bits) {
        if self.by_key.is_empty() {
            return;
        }
        labels.each(&mut |key, value| {
            let Some(askers) = self.by_key.get(key) else {
                return;
            };
            askers.any.add_to(doubtful);
            if let Some(group) = askers.by_value.get(value) {
                group.add_to(doubtful);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::filter::{FilterItem, Rules};
    use super::*;

    fn matcher(include: &[FilterItem<'_>], exclude: &[FilterItem<'_>]) -> PodMatcher {
        PodMatcher::compile(Rules { include, exclude }).unwrap()
    }

    const SELECTORS: [&str; 16] = [
        "a=1",
        "a!=1",
        "a in (1,2),b",
        "a notin (1,2)",
        "!a",
        "b",
        "a,!b",
        "b>1",
        "b<2",
        "",
        "a=,b!=2",
        "a in (),c",
        "c=3",
        "!c,a!=2",
        "a=1,b=1",
        "x=1",
    ];
    const PATTERNS: [&str; 5] = ["prod", "prod-.*", ".*", "team-1", "[a-z]+"];

    fn items() -> impl Strategy<Value = Vec<(u8, usize)>> {
        prop::collection::vec((0u8..4, 0usize..16), 0..4)
    }

    fn read(items: &[(u8, usize)]) -> Vec<FilterItem<'static>> {
        items
            .iter()
            .map(|(kind, text)| match kind {
                0 => FilterItem::Label(SELECTORS[*text]),
                1 => FilterItem::Annotation(SELECTORS[*text]),
                2 => FilterItem::Namespace(PATTERNS[text % PATTERNS.len()]),
                _ => FilterItem::Image("any"),
            })
            .collect()
    }

    fn pairs() -> impl Strategy<Value = BTreeMap<String, String>> {
        prop::collection::btree_map("[a-c]", "[1-3]?", 0..4)
    }

    proptest! {
        #[test]
        fn agrees_with_matching_one_by_one(
            filters in prop::collection::vec((items(), items()), 0..80),
            labels in pairs(),
            annotations in pairs(),
            namespace in prop::sample::select(vec!["prod", "prod-1", "team-1", "team-2"]),
        ) {
            let matchers: Vec<PodMatcher> =
                filters.iter().map(|(include, exclude)| matcher(&read(include), &read(exclude))).collect();
            let set = PodMatcherSet::new(&matchers);
            prop_assert_eq!(set.len(), matchers.len());
            let pod = PodFacts { namespace, labels: &labels, annotations: &annotations };
            let alone = matchers.iter().enumerate().filter(|(_, matcher)| matcher.matches(&pod));
            prop_assert!(set.matching(&pod).iter().eq(alone.map(|(number, _)| number)), "{:?}", filters);
        }
    }

    #[test]
    fn asks_only_those_that_could_change_their_mind() {
        let selectors: Vec<String> = (0..300).map(|n| format!("app=web,team=t{n}")).collect();
        let matchers: Vec<PodMatcher> =
            selectors.iter().map(|text| matcher(&[FilterItem::Label(text)], &[])).collect();
        let set = PodMatcherSet::new(&matchers);
        let labels: BTreeMap<_, _> =
            [("app", "web"), ("team", "t7")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let mut asked = Bits::new(set.len());
        set.labels.note(&labels, &mut asked);
        assert_eq!(asked.iter().collect::<Vec<_>>(), [7]);
        let pod = PodFacts { namespace: "any", labels: &labels, annotations: &NoLabels };
        assert_eq!(set.matching(&pod).iter().collect::<Vec<_>>(), [7]);
    }
}
