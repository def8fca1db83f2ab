//! What a round of discovery makes of a policy's status.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use fairlead_api::conditions::{ConditionStatus, Finding, find, types};
use fairlead_api::drop::{DiscoveredImage, DiscoveryPolicyStatus, QueryResult, QueryStatus, SOURCE_HEALTHY};
use fairlead_domain::reference::{ImageKey, Reference};
use jiff::Timestamp;

use super::compile::SpecError;
use super::evaluate::{Evaluation, Scored, keep_best};
use super::failure::Failure;
use super::sample::{Answer, image};
use super::{Discovery, Form};

/// The reason of `Ready` after a round in which nothing failed.
pub const SYNCED: &str = "Synced";

/// Most bytes of images in a status. Objects of 1.5 MiB are refused.
const LIST_SIZE: usize = 768 << 10;
/// What an image takes besides its name.
const ENTRY_SIZE: usize = 100;
/// Longest message about failures.
const LONGEST_MESSAGE: usize = 4000;

/// What a round found.
#[derive(Debug)]
pub struct Round<'a> {
    /// The status as it is.
    pub stored: &'a DiscoveryPolicyStatus,
    /// Whether every query answered in the round that its list is of. Taken to be so where that is not known any more.
    pub complete: bool,
    pub generation: Option<i64>,
    /// One for each query, in their order. Their series are taken.
    pub answers: &'a mut [Result<Answer, Failure>],
    /// See [`Discovery::exposed_nodes`].
    pub nodes: u32,
    pub now: Timestamp,
}

/// What the status becomes.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Without conditions, which depend on what is stored.
    pub status: DiscoveryPolicyStatus,
    pub findings: Vec<Finding>,
    /// Whether something failed, so that the next round comes sooner.
    pub failed: bool,
    /// [`Round::complete`] for the next round.
    pub complete: bool,
    /// Different images that came back, by kind of query, before they were ranked.
    pub found: BTreeMap<&'static str, usize>,
}

/// The status of an invalid policy. What was found before stays.
pub fn refused(error: &SpecError) -> Finding {
    let message = format!("not in force until this is corrected; images found before stay: {error}");
    Finding::new(types::READY, false, error.reason(), message)
}

impl Discovery {
    pub fn report(&self, round: Round<'_>) -> Report {
        let Round { stored, complete, generation, answers, nodes, now } = round;
        let found = self.found(answers);
        let evaluation = self.evaluate(answers, nodes, now);
        let answers = &*answers;
        let failures: Vec<(&str, &Failure)> = (self.queries.iter().zip(answers))
            .filter_map(|(query, answer)| Some((&*query.name, failure_of(answer)?)))
            .collect();
        let results = self.results(answers, &evaluation);
        let was_complete = complete && stored.observed_generation == generation;
        let (images, kept) = self.list(stored, was_complete, answers, evaluation);
        let status = DiscoveryPolicyStatus {
            observed_generation: generation,
            last_sync_time: Some(now.into()),
            query_results: results,
            image_count: i32::try_from(images.len()).ok(),
            source_count: self.is_sources().then(|| i32::try_from(self.queries.len()).unwrap_or(i32::MAX)),
            discovered_images: images,
            conditions: Vec::new(),
        };
        let none_answered = answers.iter().all(Result::is_err);
        let mut findings = vec![self.ready(stored, &status, &failures, none_answered, kept)];
        if self.is_sources() {
            findings.push(match failures.as_slice() {
                [] => Finding::new(SOURCE_HEALTHY, true, "AllSourcesHealthy", "every source answered"),
                failures => Finding::new(SOURCE_HEALTHY, false, "SourceError", joined(failures)),
            });
        }
        let complete = if kept { complete } else { answers.iter().all(Result::is_ok) };
        Report { status, findings, failed: !failures.is_empty(), complete, found }
    }

    fn is_sources(&self) -> bool {
        matches!(self.form, Form::Sources { .. })
    }

    fn found(&self, answers: &[Result<Answer, Failure>]) -> BTreeMap<&'static str, usize> {
        let mut found = BTreeMap::<_, HashSet<ImageKey>>::new();
        for (query, answer) in self.queries.iter().zip(answers) {
            let series = answer.iter().flat_map(|answer| &answer.series);
            found.entry(query.kind_name()).or_default().extend(series.map(|series| series.image.key()));
        }
        found.into_iter().map(|(kind, images)| (kind, images.len())).collect()
    }

    fn results(&self, answers: &[Result<Answer, Failure>], evaluation: &Evaluation) -> Vec<QueryResult> {
        let results = self.queries.iter().zip(answers).enumerate().map(|(at, (query, answer))| {
            let failure = failure_of(answer);
            let notes = answer.iter().flat_map(|answer| &answer.notes);
            let remarks = evaluation.notes.iter().filter(|(of, _)| *of == at).map(|(_, note)| note);
            let told: Vec<String> =
                (failure.map(ToString::to_string).into_iter()).chain(notes.chain(remarks).cloned()).collect();
            let message = cut(&told.join("; "));
            QueryResult {
                name: query.name.clone(),
                type_: query.kind,
                status: if failure.is_some() { QueryStatus::Failed } else { QueryStatus::Success },
                message: (!message.is_empty()).then_some(message),
            }
        });
        results.collect()
    }

    /// The images to list, and whether they are those of an earlier round. A list without the answer of one query
    /// would be in another order, and lack images that only that query knows: the last complete one is better. Where
    /// there is none for this specification, something is better than nothing.
    fn list(
        &self,
        stored: &DiscoveryPolicyStatus,
        was_complete: bool,
        answers: &[Result<Answer, Failure>],
        evaluation: Evaluation,
    ) -> (Vec<DiscoveredImage>, bool) {
        let known = &stored.discovered_images;
        let failed = answers.iter().filter(|answer| answer.is_err()).count();
        let is_all = failed == answers.len();
        let was_good = was_complete
            && find(&stored.conditions, types::READY)
                .is_some_and(|ready| ready.status == ConditionStatus::True);
        if !known.is_empty() && (is_all || (failed > 0 && was_good && !self.is_sources())) {
            return (known.clone(), true);
        }
        let mut images = evaluation.images;
        let is_partial = answers.iter().flatten().any(|answer| answer.partial.is_some());
        if is_partial || (failed > 0 && self.is_sources()) {
            images = self.with_images_of_failed(images, known, answers);
        }
        images.truncate(self.most);
        let mut room = LIST_SIZE;
        let listed = images.into_iter().enumerate().map(|(at, scored)| self.listed(at, &scored));
        let fits = listed.take_while(|listed| {
            let rest = room.checked_sub(listed.image.len() + ENTRY_SIZE);
            room = rest.unwrap_or(0);
            rest.is_some()
        });
        (fits.collect(), false)
    }

    /// Images that only a failing source knows, that are in a repository which could not be listed, or that an
    /// incomplete answer may lack, keep the score that they had.
    fn with_images_of_failed(
        &self,
        images: Vec<Scored>,
        known: &[DiscoveredImage],
        answers: &[Result<Answer, Failure>],
    ) -> Vec<Scored> {
        let mut best: BTreeMap<ImageKey, Scored> = BTreeMap::new();
        // Nothing tells what an incomplete answer without a list of missing repositories lacks.
        let lacks = |answer: &Answer| answer.partial.is_some() && answer.missing.is_empty();
        let failed = |name: &str| {
            let at = self.queries.iter().position(|query| query.name == name)?;
            answers.get(at)?.as_ref().map_or(true, lacks).then_some(at)
        };
        let incomplete = answers.iter().position(|answer| answer.as_ref().is_ok_and(lacks));
        let incomplete = incomplete.filter(|_| !self.is_sources());
        let missing = |image: &Reference| {
            let answers =
                answers.iter().enumerate().filter_map(|(at, answer)| Some((at, answer.as_ref().ok()?)));
            let mut missing =
                answers.flat_map(|(at, answer)| answer.missing.iter().map(move |one| (at, one)));
            missing.find(|(_, repository)| **repository == image.repository()).map(|(at, _)| at)
        };
        let before = known.iter().filter_map(|known| {
            let image = image(&known.image).filter(|image| self.keeps(image))?;
            let source = known.source.as_deref().and_then(failed);
            let source = source.or_else(|| missing(&image)).or(incomplete)?;
            // Scores are shown as whole numbers; of a larger one nothing is lost that matters here.
            let whole = |score: i64| i32::try_from(score).map_or(f64::from(i32::MAX), f64::from);
            let ranked = || known.final_score.as_ref().and_then(|score| score.parse().ok());
            let score = known.score.map(whole).or_else(ranked)?;
            Some(Scored { image, score, source: self.is_sources().then_some(source) })
        });
        for scored in images.into_iter().chain(before) {
            keep_best(&mut best, scored);
        }
        let mut all: Vec<Scored> = best.into_values().collect();
        all.sort_by(|one, other| {
            (other.score.total_cmp(&one.score)).then_with(|| one.image.written().cmp(other.image.written()))
        });
        all
    }

    fn listed(&self, at: usize, scored: &Scored) -> DiscoveredImage {
        let source = scored.source.and_then(|source| self.queries.get(source));
        let is_ranked = source.is_none();
        DiscoveredImage {
            image: scored.image.written().to_owned(),
            rank: is_ranked.then(|| i32::try_from(at + 1).unwrap_or(i32::MAX)),
            final_score: is_ranked.then(|| scored.score.to_string()),
            score: source.map(|_| whole(scored.score)),
            source: source.map(|source| source.name.clone()),
        }
    }

    fn ready(
        &self,
        stored: &DiscoveryPolicyStatus,
        status: &DiscoveryPolicyStatus,
        failures: &[(&str, &Failure)],
        none_answered: bool,
        kept: bool,
    ) -> Finding {
        let noun = if self.is_sources() { "sources" } else { "queries" };
        let count = status.discovered_images.len();
        let mut message = match count {
            0 => "no image was found".to_owned(),
            1 => "1 image".to_owned(),
            count => format!("{count} images"),
        };
        let Some((_, first)) = failures.first() else {
            return Finding::new(types::READY, true, SYNCED, message);
        };
        let _ = write!(message, "; {} of {} {noun} failed", failures.len(), self.queries.len());
        if kept {
            // The time of the last sync is that of a failure, too.
            let was_good = find(&stored.conditions, types::READY).is_some_and(|ready| ready.reason == SYNCED);
            let _ = match stored.last_sync_time.as_ref().filter(|_| was_good) {
                Some(last) => write!(message, ", so the images known at {} stay", last.0),
                None => write!(message, ", so the images known before stay"),
            };
        }
        let message = cut(&format!("{message}: {}", joined(failures)));
        if none_answered || count == 0 {
            return Finding::new(types::READY, false, first.reason.as_str(), message);
        }
        Finding::new(types::READY, true, "PartiallyFailed", message)
    }
}

fn failure_of(answer: &Result<Answer, Failure>) -> Option<&Failure> {
    match answer {
        Ok(answer) => answer.partial.as_ref(),
        Err(failure) => Some(failure),
    }
}

fn joined(failures: &[(&str, &Failure)]) -> String {
    let told: Vec<String> = failures.iter().map(|(name, failure)| format!("{name}: {failure}")).collect();
    cut(&told.join("; "))
}

fn cut(message: &str) -> String {
    message.chars().take(LONGEST_MESSAGE).collect()
}

/// The nearest whole number.
fn whole(score: f64) -> i64 {
    format!("{:.0}", score.clamp(-9e18, 9e18)).parse().unwrap_or_default()
}
