//! What is known about the tags of destinations.
//!
//! Whether a tag exists costs one request. When several images go into one repository, one list of its tags answers for
//! all of them. The list only tells which tags are absent: at worst an image is copied that another process copied a
//! moment ago. A tag in the list is still resolved.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::digest::Digest;
use fairlead_domain::keyring::{Credential, CredentialId};
use fairlead_domain::reference::{HostKey, Tag};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::retry::with_retries;
use super::{CopyError, Job};
use crate::error::Problem;
use crate::lru::LruCache;
use crate::manifest::Selector;
use crate::repository::RepositoryClient;
use crate::size_limits;

/// How long a list is good for, and how soon another image must follow for a list to be made.
const GOOD_FOR: Duration = Duration::from_mins(1);
/// Repositories whose tags are remembered.
const MOST_REPOSITORIES: usize = 256;
/// Tags listed: as many as one request returns. In a larger repository every tag is resolved.
const MOST_TAGS: usize = size_limits::TAGS_PER_PAGE - 1;

#[derive(Debug)]
pub(super) struct TagIndex {
    repositories: LruCache<RepositoryKey, Arc<RepositoryTags>>,
    /// Tags are kept as hashes. On a collision the tag is resolved.
    hasher: RandomState,
}

/// A repository as seen with these credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RepositoryKey {
    host: HostKey,
    path: String,
    credentials: Vec<CredentialId>,
}

#[derive(Debug, Default)]
struct RepositoryTags {
    view: tokio::sync::Mutex<TagView>,
    /// Tags that were published since the list was requested, or the first tag was resolved.
    published: Mutex<HashSet<u64>>,
}

#[derive(Debug, Default)]
struct TagView {
    since: Option<Instant>,
    list: TagList,
}

#[derive(Debug, Default)]
enum TagList {
    #[default]
    NotRequested,
    /// The repository cannot be listed, or has too many tags.
    Unavailable,
    Tags(HashSet<u64>),
}

impl Default for TagIndex {
    fn default() -> Self {
        Self { repositories: LruCache::new(MOST_REPOSITORIES), hasher: RandomState::new() }
    }
}

impl TagIndex {
    fn repository(&self, remote: &RepositoryClient) -> Arc<RepositoryTags> {
        let repository = remote.repository();
        let key = RepositoryKey {
            host: repository.host().key(),
            path: repository.path().to_owned(),
            credentials: remote.credentials().iter().map(Credential::id).collect(),
        };
        self.repositories.get_or_insert_with(&key, Arc::default)
    }

    fn hash(&self, tag: &str) -> u64 {
        self.hasher.hash_one(tag)
    }
}

impl RepositoryTags {
    fn is_absent(&self, list: &TagList, tag: u64) -> bool {
        matches!(list, TagList::Tags(tags) if !tags.contains(&tag)) && !self.is_published(tag)
    }

    fn is_published(&self, tag: u64) -> bool {
        self.published.lock().contains(&tag)
    }
}

impl Job<'_> {
    /// The digest that the destination has under this name, if it has one.
    pub(super) async fn look_for(&self, target: &Selector) -> Result<Option<Digest>, CopyError> {
        if target.digest().is_some() {
            return self.look(target).await;
        }
        let repository = self.copier.tag_index.repository(&self.destination);
        let tag = self.copier.tag_index.hash(target.as_str());
        // Waits for one list at most.
        let Ok(mut view) = timeout_at(self.context.deadline, repository.view.lock()).await else {
            return self.look(target).await;
        };
        let now = Instant::now();
        if view.since.is_none_or(|since| now.saturating_duration_since(since) >= GOOD_FOR) {
            // A single image needs no list.
            repository.published.lock().clear();
            *view = TagView { since: Some(now), list: TagList::NotRequested };
        } else if matches!(view.list, TagList::NotRequested) && !repository.is_published(tag) {
            // Tags that are published from here on may be missing in the list.
            repository.published.lock().clear();
            *view = TagView { since: Some(now), list: self.list_tags().await };
        }
        let is_absent = repository.is_absent(&view.list, tag);
        drop(view);
        if is_absent { Ok(None) } else { self.look(target).await }
    }

    /// Records that the destination has this name from now on.
    pub(super) fn is_published(&self, target: &Selector) {
        if target.digest().is_none() {
            let tag = self.copier.tag_index.hash(target.as_str());
            self.copier.tag_index.repository(&self.destination).published.lock().insert(tag);
        }
    }

    /// Resolves a name at the destination.
    pub(super) async fn look(&self, target: &Selector) -> Result<Option<Digest>, CopyError> {
        match with_retries(self.context, || self.destination.resolve(target, self.context)).await {
            Ok(resolved) => Ok(Some(resolved.digest)),
            Err(error) if error.problem.is_absence() => Ok(None),
            Err(error) => Err(CopyError::Destination(error)),
        }
    }

    async fn list_tags(&self) -> TagList {
        match self.destination.tags(MOST_TAGS, self.context).await {
            Ok(found) if found.complete => {
                let hash = |tag: &Tag| self.copier.tag_index.hash(tag.as_str());
                TagList::Tags(found.tags.iter().map(hash).collect())
            }
            Err(error) if is_no_repository(&error.problem) => TagList::Tags(HashSet::new()),
            // If the reason matters, resolving the tag will tell.
            Ok(_) | Err(_) => TagList::Unavailable,
        }
    }
}

/// Whether the registry says that the repository does not exist, as several do for one without tags. Any other 404 may
/// come from a registry that does not list tags.
fn is_no_repository(problem: &Problem) -> bool {
    matches!(problem, Problem::NotFound(detail)
        if detail.as_str().is_some_and(|words| words.contains("NAME_UNKNOWN")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_list_tells_that_a_tag_is_absent() {
        let repository = RepositoryTags::default();
        let tags = TagList::Tags(HashSet::from([3, 9]));
        assert!(repository.is_absent(&tags, 7) && !repository.is_absent(&tags, 9));
        assert!(!repository.is_absent(&TagList::Unavailable, 7));
        assert!(!repository.is_absent(&TagList::NotRequested, 7));
        repository.published.lock().insert(7);
        assert!(!repository.is_absent(&tags, 7), "it was published since");
    }

    #[test]
    fn a_repository_that_does_not_exist_has_no_tags() {
        let not_found = |words: &str| Problem::NotFound(words.into());
        assert!(is_no_repository(&not_found("NAME_UNKNOWN (repository name not known to registry)")));
        assert!(!is_no_repository(&not_found("")));
        assert!(!is_no_repository(&Problem::Forbidden("NAME_UNKNOWN".into())));
    }
}
