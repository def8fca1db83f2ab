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

impl TagQuery {
    /// What the lists say, one for each repository. The newest tag of a repository has the highest score.
    pub fn answer(&self, lists: &[Result<TagList, Failure>], now: Timestamp) -> Result<Answer, Failure> {
        let mut answer = Answer::default();
        let mut failed = Vec::new();
        for (repository, list) in self.repositories.iter().zip(lists) {
            match list {
                Ok(list) => self.add(repository, list, now, &mut answer),
                Err(failure) => failed.push((repository, failure)),
            }
        }
        let Some((repository, failure)) = failed.first() else { return Ok(answer) };
        let told = Failure::new(failure.reason, format!("{}: {failure}", repository.path()));
        if failed.len() == self.repositories.len() {
            return Err(told);
        }
        let message = format!("{} of {} repositories cannot be listed: {told}", failed.len(), lists.len());
        answer.partial = Some(Failure { message, ..told });
        let rendered = |repository: &Repository| {
            self.template.render(self.registry.as_str(), repository.path(), DEFAULT_TAG)
        };
        let missing =
            failed.iter().filter_map(|(repository, _)| Some(image(&rendered(repository))?.repository()));
        answer.missing = missing.collect();
        Ok(answer)
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
        let kept = newest.len();
        for (place, tag) in newest.into_iter().enumerate() {
            let text = self.template.render(self.registry.as_str(), path, tag.as_str());
            let Some(image) = image(&text) else {
                answer.notes.push(format!("{text:?} is not the name of an image"));
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
