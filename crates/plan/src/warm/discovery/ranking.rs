//! Rankings: the signals of each image in one score.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_domain::reference::ImageKey;

use super::sample::{Samples, bounded};

/// A signal's number for each image that it says something about.
pub(super) type Values = BTreeMap<ImageKey, f64>;

/// How scores are made. Signals are named by their place.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ranking {
    /// By the largest value that a query returned.
    Largest,
    Signal(usize),
    WeightedSum {
        terms: Vec<(usize, f64)>,
        drops_missing: bool,
    },
    /// The waiting time that a warm image is expected to save.
    Exposure {
        before: usize,
        target: usize,
        pull_time: usize,
    },
}

impl Ranking {
    /// The images that have a place, with their scores.
    pub(super) fn scores(
        &self,
        candidates: &BTreeSet<ImageKey>,
        samples: &[Option<Samples>],
        signals: &[Values],
        nodes: u32,
    ) -> BTreeMap<ImageKey, f64> {
        let none = Values::new();
        let values = |signal: usize| signals.get(signal).unwrap_or(&none);
        let value = |signal: usize, image: &ImageKey| values(signal).get(image).copied().unwrap_or_default();
        let scored = |score: &dyn Fn(&ImageKey) -> f64| {
            candidates.iter().map(|image| (image.clone(), bounded(score(image)))).collect()
        };
        match self {
            Self::Largest => scored(&|image| largest(image, samples)),
            Self::Signal(signal) => scored(&|image| value(*signal, image)),
            Self::Exposure { before, target, pull_time } => {
                let missing = 1.0 - 1.0 / f64::from(nodes.max(1));
                scored(&|image| {
                    value(*target, image)
                        * missing.powf(value(*before, image).max(0.0))
                        * value(*pull_time, image)
                })
            }
            Self::WeightedSum { terms, drops_missing } => {
                let terms: Vec<_> = terms
                    .iter()
                    .map(|(signal, weight)| (normalized(values(*signal), candidates), weight))
                    .collect();
                let mut sums: BTreeMap<_, _> = scored(&|image| {
                    terms.iter().map(|(values, weight)| *weight * values.get(image).unwrap_or(&0.0)).sum()
                });
                if *drops_missing {
                    sums.retain(|image, _| terms.iter().all(|(values, _)| values.contains_key(image)));
                }
                sums
            }
        }
    }
}

fn largest(image: &ImageKey, samples: &[Option<Samples>]) -> f64 {
    let series = samples.iter().flatten().filter_map(|samples| samples.get(image));
    series.flat_map(|series| &series.values).map(|sample| sample.value).reduce(f64::max).unwrap_or_default()
}

/// Values on a scale from 0 to 1. If all are equal they say the same of all who have one: 1. Those without a value are
/// left alone, so that they add nothing.
fn normalized(values: &Values, candidates: &BTreeSet<ImageKey>) -> Values {
    let known = values.iter().filter(|(image, _)| candidates.contains(*image));
    let (low, high) =
        known.clone().fold((f64::MAX, f64::MIN), |(low, high), (_, v)| (low.min(*v), high.max(*v)));
    // Halves, because the distance of two finite numbers need not be finite.
    let range = high / 2.0 - low / 2.0;
    known
        .map(|(image, v)| {
            let normal = if range > 0.0 { (v / 2.0 - low / 2.0) / range } else { 1.0 };
            (image.clone(), normal)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use fairlead_domain::reference::Reference;
    use proptest::prelude::*;

    use super::*;

    fn key(name: &str) -> ImageKey {
        Reference::parse(name).unwrap().key()
    }

    fn values(pairs: &[(&str, f64)]) -> Values {
        pairs.iter().map(|(name, value)| (key(name), *value)).collect()
    }

    fn scores(ranking: &Ranking, names: &[&str], signals: &[Values], nodes: u32) -> Vec<(String, f64)> {
        let candidates = names.iter().map(|name| key(name)).collect();
        let scores = ranking.scores(&candidates, &[], signals, nodes);
        scores.into_iter().map(|(image, score)| (image.reference().written().to_owned(), score)).collect()
    }

    fn expect(found: &[(String, f64)], expected: &[(&str, f64)]) {
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((name, score), (expected_name, expected_score)) in found.iter().zip(expected) {
            assert!(
                name == expected_name && (score - expected_score).abs() < 1e-12,
                "{found:?} {expected:?}"
            );
        }
    }

    #[test]
    fn exposure_is_the_time_that_a_warm_image_saves() {
        let ranking = Ranking::Exposure { before: 0, target: 1, pull_time: 2 };
        let signals = [
            values(&[("a", 1.0), ("b", 3.0)]),
            values(&[("a", 4.0), ("b", 4.0), ("c", 4.0)]),
            values(&[("a", 1.0), ("b", 1.0), ("c", 1.0)]),
        ];
        let names = ["a", "b", "c", "d"];
        expect(&scores(&ranking, &names, &signals, 2), &[("a", 2.0), ("b", 0.5), ("c", 4.0), ("d", 0.0)]);
        for nodes in [0, 1] {
            let expected = [("a", 0.0), ("b", 0.0), ("c", 4.0), ("d", 0.0)];
            expect(&scores(&ranking, &names, &signals, nodes), &expected);
        }
    }

    #[test]
    fn weighted_signals_add_up() {
        let sum = |drops_missing, weights: [f64; 2]| Ranking::WeightedSum {
            terms: weights.into_iter().enumerate().collect(),
            drops_missing,
        };
        let signals = [values(&[("a", 100.0), ("b", 10.0)]), values(&[("a", 5.0), ("b", 50.0)])];
        expect(&scores(&sum(false, [0.7, 0.3]), &["a", "b"], &signals, 1), &[("a", 0.7), ("b", 0.3)]);
        expect(&scores(&sum(false, [-1.0, 0.3]), &["a", "b"], &signals, 1), &[("a", -1.0), ("b", 0.3)]);

        let all = ["a", "b", "c"];
        let kept = scores(&sum(false, [0.7, 0.3]), &all, &signals, 1);
        expect(&kept, &[("a", 0.7), ("b", 0.3), ("c", 0.0)]);
        expect(&scores(&sum(true, [0.7, 0.3]), &all, &signals, 1), &[("a", 0.7), ("b", 0.3)]);

        let constant = [values(&[("a", 7.0), ("b", 7.0)]), Values::new()];
        expect(&scores(&sum(false, [0.7, 0.3]), &all, &constant, 1), &[("a", 0.7), ("b", 0.7), ("c", 0.0)]);
        expect(&scores(&sum(true, [0.7, 0.3]), &all, &constant, 1), &[]);
    }

    proptest! {
        #[test]
        fn every_score_is_finite(
            numbers in proptest::collection::vec(proptest::array::uniform3(-f64::MAX..f64::MAX), 1..8), nodes in 0_u32..9,
        ) {
            let names: Vec<String> = (0..numbers.len()).map(|n| format!("r.example/i{n}")).collect();
            let signal = |at: usize| -> Values {
                names.iter().zip(&numbers).map(|(name, values)| (key(name), values[at])).collect()
            };
            let signals = [signal(0), signal(1), signal(2)];
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            for ranking in [
                Ranking::Exposure { before: 0, target: 1, pull_time: 2 },
                Ranking::WeightedSum { terms: vec![(0, 1e300), (1, -1e300)], drops_missing: false },
                Ranking::Signal(2),
            ] {
                for (name, score) in scores(&ranking, &names, &signals, nodes) {
                    prop_assert!(score.is_finite(), "{ranking:?} {name} {score}");
                }
            }
        }
    }
}
