//! From answers to a list of images, best first.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_api::drop::{AggregateMethod, QueryType, ScoreMethod};
use fairlead_domain::reference::{ImageKey, Reference};
use fairlead_domain::selector::Search;
use jiff::Timestamp;

use super::failure::Failure;
use super::ranking::Values;
use super::sample::{Answer, Samples, Series, bounded, by_image};
use super::signals::aggregate;
use super::{Discovery, Form};

/// An image and its score.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scored {
    pub(super) image: Reference,
    pub(super) score: f64,
    /// Place of the source that gave the score.
    pub(super) source: Option<usize>,
}

/// What the answers amount to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Evaluation {
    /// Best first, filtered, not cut.
    pub(super) images: Vec<Scored>,
    /// What a person should know, with the place of the query.
    pub(super) notes: Vec<(usize, String)>,
}

impl Discovery {
    /// Puts the answers together, and takes their series: there may be millions of values. Queries that failed count as
    /// if they had returned nothing.
    pub(super) fn evaluate(
        &self,
        answers: &mut [Result<Answer, Failure>],
        nodes: u32,
        now: Timestamp,
    ) -> Evaluation {
        let mut evaluation = match &self.form {
            Form::Sources { scores } => {
                Evaluation { images: self.of_sources(answers, scores), notes: Vec::new() }
            }
            Form::Queries { .. } => self.of_queries(answers, nodes, now),
        };
        evaluation.images.sort_by(|one, other| {
            (other.score.total_cmp(&one.score)).then_with(|| one.image.written().cmp(other.image.written()))
        });
        evaluation
    }

    /// Every series has a score, and of several for one image the highest counts.
    fn of_sources(&self, answers: &[Result<Answer, Failure>], scores: &[Option<ScoreMethod>]) -> Vec<Scored> {
        let mut best: BTreeMap<ImageKey, Scored> = BTreeMap::new();
        for (source, answer) in answers.iter().enumerate() {
            let method = scores.get(source).copied().flatten();
            for series in answer.iter().flat_map(|answer| &answer.series) {
                let Some(score) = score(series, method).filter(|_| self.keeps(&series.image)) else {
                    continue;
                };
                keep_best(&mut best, Scored { image: series.image.clone(), score, source: Some(source) });
            }
        }
        best.into_values().collect()
    }

    fn of_queries(&self, answers: &mut [Result<Answer, Failure>], nodes: u32, now: Timestamp) -> Evaluation {
        let Form::Queries { signals, ranking, .. } = &self.form else { return Evaluation::default() };
        let samples: Vec<Option<Samples>> = (answers.iter_mut().zip(&self.queries))
            .map(|(answer, query)| {
                let series = std::mem::take(&mut answer.as_mut().ok()?.series);
                Some(by_image(series, query.kind == QueryType::Prometheus))
            })
            .collect();
        let mut images: BTreeMap<ImageKey, Reference> = BTreeMap::new();
        for series in samples.iter().flatten().flat_map(Samples::values).filter(|one| self.keeps(&one.image))
        {
            let image = images.entry(series.image.key()).or_insert_with(|| series.image.clone());
            if series.image.written() < image.written() {
                image.clone_from(&series.image);
            }
        }
        let mut remarks = Vec::new();
        let values: Vec<Values> = signals
            .iter()
            .map(|signal| {
                let samples = samples.get(signal.query).and_then(Option::as_ref);
                let measured = samples.into_iter().flatten();
                let values: Values = measured
                    .filter_map(|(image, series)| Some((image.clone(), signal.measure.of(series, now)?)))
                    .collect();
                if values.is_empty() && samples.is_some_and(|samples| !samples.is_empty()) {
                    remarks
                        .push((signal.query, format!("signal {} has no value for any image", signal.name)));
                }
                values
            })
            .collect();
        let candidates: BTreeSet<ImageKey> = images.keys().cloned().collect();
        let scores = ranking.scores(&candidates, &samples, &values, nodes);
        let ranked = scores.into_iter().filter_map(|(key, score)| {
            Some(Scored { image: images.get(&key)?.clone(), score: score + 0.0, source: None })
        });
        Evaluation { images: ranked.collect(), notes: remarks }
    }

    /// The filter sees the image as it is written, and as it is meant.
    pub(super) fn keeps(&self, image: &Reference) -> bool {
        let found = |filter: &Search| {
            filter.finds(image.written()) || image.forms().iter().any(|form| filter.finds(form))
        };
        self.filter.as_ref().is_none_or(found)
    }
}

/// Of two scores of one image the higher counts, and of equal ones the one of the earlier source.
pub(super) fn keep_best(best: &mut BTreeMap<ImageKey, Scored>, new: Scored) {
    let known = best.get(&new.image.key());
    if known.is_none_or(|known| new.score > known.score) {
        best.insert(new.image.key(), new);
    }
}

/// Without a method the last value counts.
fn score(series: &Series, method: Option<ScoreMethod>) -> Option<f64> {
    let values = series.values.iter().map(|sample| sample.value);
    let method = match method {
        None => return series.values.iter().max_by_key(|sample| sample.at).map(|sample| sample.value),
        Some(ScoreMethod::Sum) => AggregateMethod::Sum,
        Some(ScoreMethod::Count) => AggregateMethod::Count,
        Some(ScoreMethod::Avg) => AggregateMethod::Avg,
        Some(ScoreMethod::Max) => AggregateMethod::Max,
    };
    aggregate(method, values).map(bounded)
}
