//! What is known of the lists of other clusters, and what that keeps from being deleted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use fairlead_domain::reference::{Location, Reference};
use jiff::{SignedDuration, Timestamp};

use super::{NameHash, UsageList};

/// A list that is gone protects what it named for this long: it may have been deleted by accident.
const VANISHED: SignedDuration = SignedDuration::from_hours(7 * 24);
/// What was read serves deletions for this long.
const FRESH: SignedDuration = SignedDuration::from_secs(30);
/// A list that was not written again for this long is reported: its cluster may be gone.
const STALE: SignedDuration = SignedDuration::from_hours(3);

/// What one look at a mirror found: the lists by the cluster that wrote them, and why some cannot be read.
pub type Reading = BTreeMap<Arc<str>, Result<Arc<UsageList>, String>>;

/// The lists of other clusters in one mirror.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForeignLists {
    clusters: BTreeMap<Arc<str>, Foreign>,
    read_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Foreign {
    last_seen: Timestamp,
    content: ListContent,
    /// Why the list could not be read the last time.
    unreadable: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ListContent {
    Read(Arc<UsageList>),
    /// Read before a restart, and not since.
    Forgotten,
    /// Never read: perhaps not a list at all.
    Unknown,
}

impl Foreign {
    fn list(&self) -> Option<&Arc<UsageList>> {
        match &self.content {
            ListContent::Read(list) => Some(list),
            ListContent::Forgotten | ListContent::Unknown => None,
        }
    }
}

/// A cluster that shares a mirror, as it is remembered across restarts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenCluster {
    pub cluster: Arc<str>,
    pub last_seen: Timestamp,
}

/// A list whose cluster may be gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleList {
    pub cluster: Arc<str>,
    pub updated: Timestamp,
    /// It is older than the configured limit and protects nothing any more.
    pub ignored: bool,
}

/// Why a copy is not deleted now. All of these pass or are looked at again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Withheld {
    /// The lists were not read lately.
    NotRead,
    Unreadable {
        cluster: Arc<str>,
        why: String,
    },
    Used {
        cluster: Arc<str>,
    },
    /// The list is gone and its content is not known any more.
    Vanished {
        cluster: Arc<str>,
        last_seen: Timestamp,
    },
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRead => f.write_str("the usage lists of other clusters have not been read yet"),
            Self::Unreadable { cluster, why } => {
                write!(f, "the usage list of cluster {cluster} cannot be read: {why}")
            }
            Self::Used { cluster } => write!(f, "cluster {cluster} uses it"),
            Self::Vanished { cluster, last_seen } => write!(
                f,
                "the usage list of cluster {cluster}, last seen {last_seen}, has vanished; copies stay for seven days"
            ),
        }
    }
}

impl ForeignLists {
    /// From what an earlier term remembered. Nothing is deleted before the lists were read.
    pub fn remembered(seen: impl IntoIterator<Item = SeenCluster>) -> Self {
        let clusters = seen.into_iter().map(|seen| {
            let last_seen = seen.last_seen;
            (seen.cluster, Foreign { last_seen, content: ListContent::Forgotten, unreadable: None })
        });
        Self { clusters: clusters.collect(), read_at: None }
    }

    /// After a look at the mirror.
    #[must_use]
    pub fn after(&self, reading: Reading, now: Timestamp) -> Self {
        let mut clusters = self.clusters.clone();
        clusters.retain(|cluster, foreign| {
            let vanished = !reading.contains_key(cluster);
            if vanished {
                foreign.unreadable = None;
            }
            let counts =
                foreign.content != ListContent::Unknown && now.duration_since(foreign.last_seen) < VANISHED;
            !vanished || counts
        });
        for (cluster, outcome) in reading {
            let before = clusters.remove(&cluster).map_or(ListContent::Unknown, |known| known.content);
            let (content, unreadable) = match outcome {
                Ok(list) => (ListContent::Read(list), None),
                Err(why) => (before, Some(why)),
            };
            clusters.insert(cluster, Foreign { last_seen: now, content, unreadable });
        }
        Self { clusters, read_at: Some(now) }
    }

    /// Whether what was read still serves deletions.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        self.read_at.is_some_and(|at| now.duration_since(at).abs() <= FRESH)
    }

    /// Whether a copy may be deleted as far as other clusters are concerned. Lists older than `max_age` are ignored.
    pub fn permit_deletion(
        &self,
        name: &NameHash,
        max_age: Option<SignedDuration>,
        now: Timestamp,
    ) -> Result<(), Withheld> {
        if !self.is_fresh(now) {
            return Err(Withheld::NotRead);
        }
        for (cluster, foreign) in &self.clusters {
            let cluster = Arc::clone(cluster);
            let updated = foreign.list().map_or(foreign.last_seen, |list| list.updated);
            if is_ignored(updated, max_age, now) {
                continue;
            }
            match (foreign.list(), &foreign.unreadable) {
                (_, Some(why)) => return Err(Withheld::Unreadable { cluster, why: why.clone() }),
                (Some(list), None) if list.contains(name) => return Err(Withheld::Used { cluster }),
                (Some(_), None) => {}
                (None, None) => return Err(Withheld::Vanished { cluster, last_seen: foreign.last_seen }),
            }
        }
        Ok(())
    }

    /// Lists that were not written again for hours.
    pub fn stale(&self, max_age: Option<SignedDuration>, now: Timestamp) -> Vec<StaleList> {
        let lists = self.clusters.iter().filter_map(|(cluster, foreign)| Some((cluster, foreign.list()?)));
        let stale = lists.filter(|(_, list)| now.duration_since(list.updated) > STALE);
        stale
            .map(|(cluster, list)| StaleList {
                cluster: Arc::clone(cluster),
                updated: list.updated,
                ignored: is_ignored(list.updated, max_age, now),
            })
            .collect()
    }

    /// What has to survive a restart.
    pub fn seen(&self) -> impl Iterator<Item = SeenCluster> {
        let lists = self.clusters.iter().filter(|(_, foreign)| foreign.content != ListContent::Unknown);
        lists.map(|(cluster, foreign)| SeenCluster {
            cluster: Arc::clone(cluster),
            last_seen: foreign.last_seen,
        })
    }
}

/// The lists of other clusters in all mirrors that this cluster uses, as they were last read.
#[derive(Debug, Clone, Default)]
pub struct ForeignMirrors {
    /// Older lists are ignored.
    pub max_age: Option<SignedDuration>,
    pub mirrors: Vec<(Location, ForeignLists)>,
}

impl ForeignMirrors {
    /// Whether a copy may be deleted as far as other clusters are concerned. It is listed in the innermost mirror that
    /// it lies in.
    pub fn permit_deletion(&self, copy: &Reference, now: Timestamp) -> Result<(), Withheld> {
        let holding = self.mirrors.iter().filter(|(place, _)| place.contains(copy));
        let innermost = holding.max_by_key(|(place, _)| place.path().len());
        let (_, lists) = innermost.ok_or(Withheld::NotRead)?;
        lists.permit_deletion(&NameHash::of(copy), self.max_age, now)
    }
}

fn is_ignored(updated: Timestamp, max_age: Option<SignedDuration>, now: Timestamp) -> bool {
    max_age.is_some_and(|max_age| now.duration_since(updated) > max_age)
}
