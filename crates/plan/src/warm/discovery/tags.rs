//! Tags of a registry's repositories: which are the newest, and the references made of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use fairlead_domain::reference::{DEFAULT_TAG, Host, Repository, Tag};
use fairlead_domain::selector::Search;
use jiff::Timestamp;
use regex::Regex;

use super::failure::Failure;
use super::sample::{Answer, Sample, Series, count, image};
use super::template::Template;
use super::version::Version;

/// Tags of a repository whose images are looked at to learn when they were made.
const MOST_DATED: usize = 50;
/// Tags that a query may find, which is more than a status can list.
const MOST_SERIES: usize = 20_000;

/// Repositories whose tags are to be listed.
#[derive(Clone, Debug)]
pub struct TagQuery {
    pub registry: Host,
    pub plain_http: bool,
    pub repositories: Vec<Repository>,
    /// Tags up to this text are passed over.
    pub seek: Option<String>,
    /// Tags to read per repository.
    pub most: usize,
    pub(super) filter: Option<Search>,
    pub(super) version: Option<Regex>,
    pub(super) top: usize,
    pub(super) template: Template,
    /// Tags without a version are ordered by when their images were made, if these are few.
    pub(super) by_date: bool,
}

/// Tags of one repository in the order in which the registry lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TagList {
    pub tags: Vec<Tag>,
    /// Whether there are no more.
    pub complete: bool,
    /// When images were made, of those in [`TagQuery::to_be_dated`] where that is known.
    pub made: BTreeMap<Tag, Timestamp>,
}

/// What the lists say so far. They are taken one by one, since hundreds of them can have millions of tags.
#[derive(Debug)]
pub struct TagReading<'a> {
    query: &'a TagQuery,
    now: Timestamp,
    answer: Answer,
    failed: Vec<&'a Repository>,
    first_failure: Option<Failure>,
}

impl<'a> TagReading<'a> {
    /// Takes the tags of one repository. The newest one has the highest score.
    pub fn take(&mut self, repository: &'a Repository, list: Result<TagList, Failure>) {
        match list {
            Ok(list) => self.query.add(repository, &list, self.now, &mut self.answer),
            Err(failure) => {
                let told = || Failure::new(failure.reason, format!("{}: {failure}", repository.path()));
                self.first_failure.get_or_insert_with(told);
                self.failed.push(repository);
            }
        }
        if self.answer.series.len() > MOST_SERIES {
            self.answer.series.truncate(MOST_SERIES);
            let note = format!("only the first {MOST_SERIES} tags were taken: set topX");
            if !self.answer.notes.contains(&note) {
                self.answer.notes.push(note);
            }
        }
    }

    pub fn finish(self) -> Result<Answer, Failure> {
        let Self { query, mut answer, failed, first_failure, .. } = self;
        let Some(told) = first_failure else { return Ok(answer) };
        let all = query.repositories.len();
        if failed.len() == all {
            return Err(told);
        }
        let message = format!("{} of {all} repositories cannot be listed: {told}", failed.len());
        answer.partial = Some(Failure { message, ..told });
        let rendered = |repository: &Repository| {
            query.template.render(query.registry.as_str(), repository.path(), DEFAULT_TAG)
        };
        let missing = failed.iter().filter_map(|repository| Some(image(&rendered(repository))?.repository()));
        answer.missing = missing.collect();
        Ok(answer)
    }
}

impl TagQuery {
    /// Begins to put lists together.
    pub fn read_lists(&self, now: Timestamp) -> TagReading<'_> {
        let (answer, failed) = (Answer::default(), Vec::new());
        TagReading { query: self, now, answer, failed, first_failure: None }
    }

    fn add(&self, repository: &Repository, list: &TagList, now: Timestamp, answer: &mut Answer) {
        let path = repository.path();
        if !list.complete {
            answer.notes.push(format!("only the first {} tags of {path} were read", list.tags.len()));
        }
        let (newest, versioned) = self.newest(list);
        let mut without = newest.iter().skip(versioned);
        if without.len() > 0 {
            let count = without.len();
            let order =
                if without.all(|tag| list.made.contains_key(*tag)) { "newest first" } else { "as listed" };
            answer.notes.push(format!("{count} tags of {path} have no version and stand last, {order}"));
        }
        let (kept, notes) = (newest.len(), answer.notes.len());
        for (place, tag) in newest.into_iter().enumerate() {
            let text = self.template.render(self.registry.as_str(), path, tag.as_str());
            let Some(image) = image(&text) else {
                if answer.notes.len() == notes {
                    answer.notes.push(format!("{text:?} is not the name of an image"));
                }
                continue;
            };
            let values = vec![Sample { at: now, value: count(kept - place) }];
            answer.series.push(Series { image, values, sizes: Vec::new() });
        }
    }

    /// Tags of which it matters when their images were made.
    pub fn to_be_dated(&self, list: &TagList) -> Vec<Tag> {
        let (versioned, without): (Vec<_>, Vec<_>) =
            self.kept(list).partition(|tag| self.version_of(tag.as_str()).is_some());
        let matters = self.by_date && versioned.len() < self.top && (2..=MOST_DATED).contains(&without.len());
        if matters { without.into_iter().cloned().collect() } else { Vec::new() }
    }

    fn kept<'t>(&self, list: &'t TagList) -> impl Iterator<Item = &'t Tag> {
        list.tags.iter().filter(|tag| self.filter.as_ref().is_none_or(|filter| filter.finds(tag.as_str())))
    }

    /// The tags to keep, newest first, and how many of them have a version. Versions come before all else, then images
    /// by when they were made; what is left is taken as listed oldest first.
    fn newest<'t>(&self, list: &'t TagList) -> (Vec<&'t Tag>, usize) {
        let mut ordered: Vec<_> =
            self.kept(list).enumerate().map(|(at, tag)| (self.version_of(tag.as_str()), at, tag)).collect();
        ordered.sort_by(|(version, at, tag), (other, other_at, other_tag)| {
            let by_version = Reverse(version).cmp(&Reverse(other));
            let age = |at: &usize, tag: &Tag| Reverse((list.made.get(tag).copied(), *at));
            let tie = if version.is_some() {
                tag.cmp(other_tag)
            } else {
                age(at, tag).cmp(&age(other_at, other_tag))
            };
            by_version.then(tie)
        });
        ordered.truncate(self.top);
        let versioned = ordered.iter().filter(|(version, ..)| version.is_some()).count();
        (ordered.into_iter().map(|(_, _, tag)| tag).collect(), versioned)
    }

    fn version_of(&self, tag: &str) -> Option<Version> {
        match &self.version {
            Some(pattern) => Version::parse(pattern.captures(tag)?.get(1)?.as_str()),
            None => Version::of_tag(tag),
        }
    }
}
