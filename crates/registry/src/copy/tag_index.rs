//! What is known about a destination's tags.
//!
//! Whether a tag is there costs one request. When many images go into one repository that does not have them, one list of
//! its tags answers for all of them. Nothing is assumed to be there because a list says so, only to be absent: at worst an
//! image is copied that somebody else copied a moment ago. Where the tags turn out to be there, each is looked at and no
//! list is made, since it would save nothing.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::digest::Digest;
use fairlead_domain::keyring::{Credential, CredentialId};
use fairlead_domain::reference::{HostKey, Tag};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout_at};

use super::blob_index::host_of;
use super::retry::with_retries;
use super::{CopyError, Job};
use crate::error::Problem;
use crate::lru::LruMap;
use crate::manifest::Selector;
use crate::repository::RepositoryClient;
use crate::size_limits;

/// How long a list is good for, and how long an absent tag makes it likely that the next one is absent, too.
const GOOD_FOR: Duration = Duration::from_mins(1);
/// Repositories whose tags are remembered.
const MOST_PAGES: usize = 256;
/// Tags listed: as many as one request brings. In a larger repository every tag is looked at.
const MOST_TAGS: usize = size_limits::TAGS_PER_PAGE - 1;

#[derive(Debug)]
pub(super) struct TagIndex {
    pages: Mutex<LruMap<Key, Arc<Page>>>,
    /// Tags are kept as hashes: two that look the same are both looked at.
    hasher: RandomState,
}

/// A repository as the holder of these credentials sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    host: HostKey,
    path: String,
    credentials: Vec<CredentialId>,
}

#[derive(Debug, Default)]
struct Page {
    view: tokio::sync::Mutex<View>,
    /// Tags that were published since the list was asked for, or the first look was taken.
    published: Mutex<HashSet<u64>>,
}

#[derive(Debug, Default)]
struct View {
    since: Option<Instant>,
    seen: Seen,
}

/// What was seen of a repository's tags lately.
#[derive(Debug, Default, PartialEq, Eq)]
enum Seen {
    #[default]
    Nothing,
    /// Every tag that was looked for is there, or nobody knows.
    Present,
    /// One was absent.
    Absent,
    /// These tags are there, in order.
    List(Vec<u64>),
    /// The repository cannot be listed, or has too many tags.
    NoList,
}

/// What to do about a tag.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Look, while those who come after wait for what is found.
    LookFirst,
    Look,
    List,
    /// It is not there.
    Skip,
}

impl Default for TagIndex {
    fn default() -> Self {
        Self { pages: Mutex::new(LruMap::new(MOST_PAGES)), hasher: RandomState::new() }
    }
}

impl TagIndex {
    fn page(&self, remote: &RepositoryClient) -> Arc<Page> {
        let repository = remote.repository();
        let key = Key {
            host: host_of(repository),
            path: repository.path().to_owned(),
            credentials: remote.credentials().iter().map(Credential::id).collect(),
        };
        let mut pages = self.pages.lock();
        if let Some(page) = pages.get(&key) {
            return Arc::clone(page);
        }
        let page = Arc::new(Page::default());
        pages.insert(key, Arc::clone(&page));
        page
    }

    fn hash(&self, tag: &str) -> u64 {
        self.hasher.hash_one(tag)
    }
}

impl Page {
    fn published(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.published.lock()
    }

    fn step(&self, view: &View, tag: u64, now: Instant) -> Step {
        if view.since.is_none_or(|since| now.saturating_duration_since(since) >= GOOD_FOR) {
            return Step::LookFirst;
        }
        if self.published().contains(&tag) {
            return Step::Look;
        }
        match &view.seen {
            Seen::Nothing => Step::LookFirst,
            Seen::Absent => Step::List,
            Seen::List(tags) if tags.binary_search(&tag).is_err() => Step::Skip,
            Seen::Present | Seen::NoList | Seen::List(_) => Step::Look,
        }
    }
}

impl View {
    fn is(&mut self, seen: Seen, now: Instant) {
        *self = Self { since: Some(now), seen };
    }
}

impl Job<'_> {
    /// The digest that the destination has under this name, if it has one.
    pub(super) async fn look_for(&self, target: &Selector) -> Result<Option<Digest>, CopyError> {
        if target.digest().is_some() {
            return self.look(target).await;
        }
        let page = self.copier.tag_index.page(&self.destination);
        let tag = self.copier.tag_index.hash(target.as_str());
        // Whoever waits here waits for one answer of the same registry.
        let Ok(mut view) = timeout_at(self.context.deadline, page.view.lock()).await else {
            return self.look(target).await;
        };
        loop {
            match page.step(&view, tag, Instant::now()) {
                Step::LookFirst => {
                    page.published().clear();
                    // Tried once only: whoever waits has time of its own to wait for a registry that is away.
                    let found = self.destination.resolve(target, self.context).await;
                    match found.map_err(|error| error.problem) {
                        Ok(resolved) => {
                            view.is(Seen::Present, Instant::now());
                            return Ok(Some(resolved.digest));
                        }
                        Err(problem) if problem.is_absence() => {
                            view.is(Seen::Absent, Instant::now());
                            return Ok(None);
                        }
                        Err(_) => view.is(Seen::Present, Instant::now()),
                    }
                }
                Step::List => {
                    // What is published from here on may be missing in the list.
                    page.published().clear();
                    view.is(self.list().await, Instant::now());
                }
                Step::Skip => return Ok(None),
                Step::Look => {
                    drop(view);
                    let found = self.look(target).await?;
                    if found.is_none()
                        && let Ok(mut view) = page.view.try_lock()
                        && view.seen == Seen::Present
                    {
                        view.is(Seen::Absent, Instant::now());
                    }
                    return Ok(found);
                }
            }
        }
    }

    /// Takes note that the destination has this name from now on.
    pub(super) fn is_published(&self, target: &Selector) {
        if target.digest().is_none() {
            let tag = self.copier.tag_index.hash(target.as_str());
            self.copier.tag_index.page(&self.destination).published().insert(tag);
        }
    }

    async fn look(&self, target: &Selector) -> Result<Option<Digest>, CopyError> {
        match with_retries(self.context, || self.destination.resolve(target, self.context)).await {
            Ok(resolved) => Ok(Some(resolved.digest)),
            Err(error) if error.problem.is_absence() => Ok(None),
            Err(error) => Err(CopyError::Destination(error)),
        }
    }

    async fn list(&self) -> Seen {
        let mut tags: Vec<u64> = match self.destination.tags(MOST_TAGS, self.context).await {
            Ok(found) if found.complete => {
                let hash = |tag: &Tag| self.copier.tag_index.hash(tag.as_str());
                found.tags.iter().map(hash).collect()
            }
            Err(error) if is_no_repository(&error.problem) => Vec::new(),
            // If it matters what is wrong, the look at the tag will tell.
            Ok(_) | Err(_) => return Seen::NoList,
        };
        if tags.is_empty() {
            self.copier.blob_index.is_empty(self.destination.repository());
        }
        tags.sort_unstable();
        Seen::List(tags)
    }
}

/// Whether the registry says that the repository does not exist, which is what several say of one without tags. A 404 for
/// any other reason may come from a registry that lists nothing.
fn is_no_repository(problem: &Problem) -> bool {
    matches!(problem, Problem::NotFound(detail) if detail.as_str().is_some_and(|words| words.contains("NAME_UNKNOWN")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tags_are_listed_only_where_one_was_absent_lately() {
        let page = Page::default();
        let step = |view: &View| page.step(view, 7, Instant::now());
        let mut view = View::default();
        assert_eq!(step(&view), Step::LookFirst);
        for (seen, expected) in [
            (Seen::Present, Step::Look),
            (Seen::Absent, Step::List),
            (Seen::NoList, Step::Look),
            (Seen::List(vec![3, 9]), Step::Skip),
            (Seen::List(vec![3, 7, 9]), Step::Look),
        ] {
            view.is(seen, Instant::now());
            assert_eq!(step(&view), expected, "{view:?}");
            tokio::time::advance(GOOD_FOR).await;
            assert_eq!(step(&view), Step::LookFirst, "{view:?} is old");
        }
        page.published().insert(7);
        for seen in [Seen::List(Vec::new()), Seen::Absent] {
            view.is(seen, Instant::now());
            assert_eq!(step(&view), Step::Look, "what was published since is there");
        }
    }

    #[test]
    fn a_repository_that_does_not_exist_has_no_tags() {
        let not_found = |words: &str| Problem::NotFound(words.into());
        assert!(is_no_repository(&not_found("NAME_UNKNOWN (repository name not known to registry)")));
        assert!(!is_no_repository(&not_found("")));
        assert!(!is_no_repository(&Problem::Forbidden("NAME_UNKNOWN".into())));
    }
}
