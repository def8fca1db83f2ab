//! Usage lists in mirrors: writes the list of this cluster, and reads those of other clusters before copies are
//! deleted.
//!
//! When lists are due and what they keep from being deleted is decided in [`fairlead_plan::usage_list`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::cause::Cause;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{Location, Reference, Tag};
use fairlead_plan::routing::SecretName;
use fairlead_plan::usage_list::{
    self, ForeignLists, ForeignMirrors, MAX_BYTES, MAX_CLUSTERS, MEDIA_TYPE, NameHash, Published, REPOSITORY,
    RETRY, Reading, SeenCluster, UsageList,
};
use fairlead_registry::manifest::Selector;
use fairlead_registry::{Class, Client, Context, Error, ErrorClass, Right};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::credentials::Credentials;
use crate::controller::Inflight;
use crate::platform::clock::Clock;

/// Mirrors whose lists are written or read at once.
const AT_ONCE: usize = 16;
/// Writing or reading the lists of one mirror takes no longer.
const LIMIT: Duration = Duration::from_mins(2);

/// What the mirror objects of this cluster say about one mirror.
#[derive(Debug, Clone)]
pub(super) struct MirrorUsage {
    pub(super) place: Location,
    pub(super) secret: Option<SecretName>,
    /// On whose account its registry is contacted.
    pub(super) cause: Cause,
    /// What this cluster uses of it, until it is made a list.
    pub(super) used: Vec<NameHash>,
    /// From the status of an object, for a mirror that was not looked at in this term.
    pub(super) seen: Vec<SeenCluster>,
}

/// The lists of all mirrors.
pub(super) struct UsageLists {
    client: Client,
    credentials: Credentials,
    /// Identity of this cluster, which is the tag of its lists.
    cluster: Tag,
    max_age: Option<SignedDuration>,
    mirrors: BTreeMap<Arc<str>, ListedMirror>,
    jobs: Inflight<Arc<str>, Done>,
}

struct ListedMirror {
    shared: MirrorUsage,
    names: UsageList,
    published: Option<Published>,
    foreign: ForeignLists,
    /// Lists of other clusters by the digest under which they were read, so that unchanged ones are not read again.
    read: BTreeMap<Arc<str>, (Digest, Arc<UsageList>)>,
    /// Why the registry does not store the list.
    refused: Option<String>,
    /// Why the lists could not be read.
    unread: Option<String>,
    /// A deletion waits for the lists of other clusters.
    wanted: bool,
    retry_at: Option<Timestamp>,
}

enum Done {
    Published(Result<Published, ListFailure>),
    Read(Result<Lists, ListFailure>),
}

/// The lists of other clusters, those that can be read with their digest.
type Lists = BTreeMap<Arc<str>, Result<(Digest, Arc<UsageList>), String>>;

/// Why lists were not written or read.
struct ListFailure {
    error: String,
    /// The registry answered, and does not store or show such an artifact.
    refused: bool,
}

impl From<Error> for ListFailure {
    fn from(error: Error) -> Self {
        let refused = matches!(error.class(), ErrorClass::Absent | ErrorClass::Denied | ErrorClass::Broken);
        Self { error: error.to_string(), refused }
    }
}

impl UsageLists {
    pub(super) fn new(
        client: Client,
        credentials: Credentials,
        cluster: Tag,
        max_age: Option<Duration>,
    ) -> Self {
        let max_age = max_age.and_then(|max_age| SignedDuration::try_from(max_age).ok());
        Self { client, credentials, cluster, max_age, mirrors: BTreeMap::new(), jobs: Inflight::new(AT_ONCE) }
    }

    /// The mirrors as the last look at everything found them.
    pub(super) fn update(&mut self, mirrors: BTreeMap<Arc<str>, MirrorUsage>, now: Timestamp) {
        self.mirrors.retain(|place, _| mirrors.contains_key(place));
        for (place, mut shared) in mirrors {
            let names = UsageList::new(now, std::mem::take(&mut shared.used));
            if let Some(mirror) = self.mirrors.get_mut(&place) {
                (mirror.shared, mirror.names) = (shared, names);
            } else {
                let foreign = ForeignLists::remembered(shared.seen.clone());
                self.mirrors.insert(place, ListedMirror::new(shared, names, foreign));
            }
        }
    }

    /// What is known of other clusters, for planning.
    pub(super) fn foreign(&self) -> ForeignMirrors {
        let mirrors =
            self.mirrors.values().map(|mirror| (mirror.shared.place.clone(), mirror.foreign.clone()));
        ForeignMirrors { max_age: self.max_age, mirrors: mirrors.collect() }
    }

    /// A deletion waits until the lists of other clusters in these mirrors were read.
    pub(super) fn want<'a>(&mut self, places: impl Iterator<Item = &'a Location>) {
        for place in places {
            if let Some(mirror) = self.mirrors.get_mut(place.key().as_str()) {
                mirror.wanted = true;
            }
        }
    }

    /// Why the lists in one of these mirrors could not be read.
    pub(super) fn unread<'a>(&self, mut places: impl Iterator<Item = &'a Location>) -> Option<String> {
        places.find_map(|place| self.mirrors.get(place.key().as_str())?.unread.clone())
    }

    /// Whether a copy may still be deleted, to be asked when the deletion begins.
    pub(super) fn permits(&self, copy: &Reference, now: Timestamp) -> bool {
        self.foreign().permit_deletion(copy, now).is_ok()
    }

    /// Begins what is due.
    pub(super) fn begin(&mut self, now: Timestamp) {
        for (place, mirror) in &mut self.mirrors {
            if self.jobs.is_full() {
                return;
            }
            let waits = mirror.retry_at.is_some_and(|at| at > now) || self.jobs.contains(place);
            if waits || self.client.is_down(&mirror.shared.place.host()).is_some() {
                continue;
            }
            let publish = mirror.publish_at(now) <= now;
            if !publish && !mirror.wants_reading(now) {
                continue;
            }
            let access = ListAccess {
                client: self.client.clone(),
                credentials: self.credentials.clone(),
                shared: mirror.shared.clone(),
                cluster: self.cluster.clone(),
            };
            let (read, mut names) = (mirror.read.clone(), mirror.names.clone());
            names.updated = now;
            self.jobs.start(Arc::clone(place), async move {
                if publish {
                    Done::Published(access.publish(&names).await)
                } else {
                    Done::Read(access.read(&read).await)
                }
            });
        }
    }

    /// Waits for the next list to be written or read. Returns whether lists of other clusters were read.
    pub(super) async fn progress(&mut self, clock: &Clock) -> bool {
        let (place, done) = self.jobs.next().await;
        let read = matches!(done, Some(Done::Read(_)));
        if let Some(mirror) = self.mirrors.get_mut(&place) {
            match done {
                Some(done) => mirror.ended(done, clock.now()),
                // It panicked, which was logged.
                None => mirror.retry_at = clock.now().checked_add(RETRY).ok(),
            }
        }
        read
    }

    /// When there is something to do again.
    pub(super) fn next(&self, now: Timestamp) -> Option<Timestamp> {
        let idle = self.mirrors.iter().filter(|(place, _)| !self.jobs.contains(*place));
        let due = idle.map(|(_, mirror)| {
            let due = if mirror.wants_reading(now) { now } else { mirror.publish_at(now) };
            mirror.retry_at.map_or(due, |retry| retry.max(due))
        });
        due.min().filter(|_| !self.jobs.is_full())
    }

    /// What is to be said about mirrors of an object, and the clusters that share them.
    pub(super) fn of_places<'a>(
        &self,
        places: impl Iterator<Item = &'a Location>,
        now: Timestamp,
    ) -> usage_list::ListStanding {
        let known = places.filter_map(|place| self.mirrors.get(place.key().as_str()));
        usage_list::standing(known.map(|mirror| mirror.facts()), self.max_age, now)
    }
}

impl ListedMirror {
    fn new(shared: MirrorUsage, names: UsageList, foreign: ForeignLists) -> Self {
        Self {
            shared,
            names,
            published: None,
            foreign,
            read: BTreeMap::new(),
            refused: None,
            unread: None,
            wanted: false,
            retry_at: None,
        }
    }

    fn publish_at(&self, now: Timestamp) -> Timestamp {
        usage_list::publish_at(self.published.as_ref(), &self.names.fingerprint(), now)
    }

    fn wants_reading(&self, now: Timestamp) -> bool {
        self.wanted && !self.foreign.is_fresh(now)
    }

    fn facts(&self) -> usage_list::Facts<'_> {
        usage_list::Facts {
            place: &self.shared.place,
            foreign: &self.foreign,
            published: self.published.is_some(),
            refused: self.refused.as_deref(),
            unread: self.unread.as_deref(),
        }
    }

    fn ended(&mut self, done: Done, now: Timestamp) {
        self.retry_at = None;
        match done {
            Done::Published(Ok(published)) => (self.published, self.refused) = (Some(published), None),
            Done::Published(Err(failure)) => {
                tracing::warn!(mirror = %self.shared.place, error = failure.error, "cannot store the usage list");
                if failure.refused {
                    self.refused = Some(failure.error);
                    // Reading is tried all the same: other clusters may be allowed to store theirs.
                    self.published = Some(Published { at: now, names: self.names.fingerprint() });
                } else {
                    self.retry_at = now.checked_add(RETRY).ok();
                }
            }
            Done::Read(Ok(lists)) => self.take(lists, now),
            // Where nothing can be stored, there is nothing to read either.
            Done::Read(Err(failure)) if failure.refused && self.refused.is_some() => {
                self.take(Lists::new(), now);
            }
            Done::Read(Err(failure)) => {
                tracing::warn!(mirror = %self.shared.place, error = failure.error, "cannot read the usage lists");
                self.unread = Some(failure.error);
                self.retry_at = now.checked_add(RETRY).ok();
            }
        }
    }

    fn take(&mut self, lists: Lists, now: Timestamp) {
        (self.wanted, self.unread) = (false, None);
        let readable =
            lists.iter().filter_map(|(cluster, read)| Some((Arc::clone(cluster), read.as_ref().ok()?)));
        self.read = readable.map(|(cluster, read)| (cluster, read.clone())).collect();
        let reading: Reading =
            lists.into_iter().map(|(cluster, read)| (cluster, read.map(|(_, list)| list))).collect();
        self.foreign = self.foreign.after(reading, now);
    }
}

/// One mirror, ready to be asked.
struct ListAccess {
    client: Client,
    credentials: Credentials,
    shared: MirrorUsage,
    cluster: Tag,
}

impl ListAccess {
    async fn publish(&self, names: &UsageList) -> Result<Published, ListFailure> {
        let context = context();
        let remote = self.remote(Right::Delete).await?;
        let tag = Selector::from(&self.cluster);
        let before = remote.resolve(&tag, &context).await.ok().map(|resolved| resolved.digest);
        let digest = remote.put_artifact(&tag, MEDIA_TYPE, names.encode().into(), &context).await?;
        if let Some(before) = before.filter(|before| *before != digest)
            && let Err(error) = remote.delete_digest(before, &context).await
        {
            tracing::debug!(mirror = %self.shared.place, %error, "the superseded usage list stays");
        }
        Ok(Published { at: names.updated, names: names.fingerprint() })
    }

    async fn read(&self, known: &BTreeMap<Arc<str>, (Digest, Arc<UsageList>)>) -> Result<Lists, ListFailure> {
        let context = context();
        let remote = self.remote(Right::Pull).await?;
        let tags = match remote.tags(MAX_CLUSTERS, &context).await {
            Ok(tags) if tags.complete => tags.tags,
            Ok(_) => {
                let error = format!("{} has more than {MAX_CLUSTERS} usage lists", remote.repository());
                return Err(ListFailure { error, refused: false });
            }
            Err(error) if error.class() == ErrorClass::Absent => return Ok(Lists::new()),
            Err(error) => return Err(error.into()),
        };
        let mut lists = Lists::new();
        for tag in tags.iter().filter(|tag| **tag != self.cluster) {
            let cluster: Arc<str> = tag.as_str().into();
            let selector = Selector::from(tag);
            let found = match remote.resolve(&selector, &context).await {
                Ok(resolved) => resolved.digest,
                // Deleted since it was listed.
                Err(error) if error.class() == ErrorClass::Absent => continue,
                Err(error) => return Err(error.into()),
            };
            if let Some(read) = known.get(&cluster).filter(|(digest, _)| *digest == found) {
                lists.insert(cluster, Ok(read.clone()));
                continue;
            }
            let list = match remote.artifact(&selector, MEDIA_TYPE, MAX_BYTES, &context).await {
                Ok(artifact) => UsageList::decode(&artifact.document)
                    .map(|list| (artifact.digest, Arc::new(list)))
                    .map_err(|error| error.to_string()),
                Err(error) if error.class() == ErrorClass::Broken => Err(error.to_string()),
                Err(error) => return Err(error.into()),
            };
            lists.insert(cluster, list);
        }
        Ok(lists)
    }

    async fn remote(&self, right: Right) -> Result<fairlead_registry::RepositoryClient, ListFailure> {
        let malformed = |error: String| ListFailure { error, refused: true };
        let name = format!("{}/{REPOSITORY}:{}", self.shared.place, self.cluster);
        let reference = Reference::parse(&name).map_err(|error| malformed(error.to_string()))?;
        let MirrorUsage { secret, cause, .. } = &self.shared;
        let access = self.credentials.to_write(&reference, *cause, secret.as_ref()).await;
        let access = access.map_err(|error| ListFailure { error, refused: false })?;
        let credentials = Arc::clone(&access.place.credentials);
        Ok(self.client.repository_for(*cause, &reference.repository(), credentials, right)?)
    }
}

fn context() -> Context {
    Context::new(Class::Background, Instant::now() + LIMIT)
}
