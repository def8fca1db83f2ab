//! What is known about a destination's blobs.
//!
//! Images share layers, and copies of many images run side by side. Whoever needs a blob that is being sent waits for it
//! instead of sending it again, unless it hardly moves: its source may be the one that fails. Whoever comes later knows in
//! which repositories it is, and either has nothing to do or asks the registry to mount it. Knowledge ages, since registries
//! are cleaned up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::digest::Digest;
use fairlead_domain::keyring::{Credential, CredentialId};
use fairlead_domain::reference::{HostKey, Repository};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep};

use crate::lru::LruMap;
use crate::size_limits;

/// Blobs remembered, of all destinations together.
const MOST_BLOBS: usize = 65_536;
/// Repositories remembered for one blob.
const MOST_REPOSITORIES: usize = 4096;
/// A registry that deletes what nothing names does so rarely; a copy takes minutes at most.
const GOOD_FOR: Duration = Duration::from_mins(15);
/// Repositories remembered for having been empty.
const MOST_EMPTY: usize = 256;
/// Somebody else may begin to fill an empty repository; then a blob is sent that need not be.
const EMPTY_FOR: Duration = Duration::from_mins(1);

/// How often those who wait for a blob look how it fares, and what must have come of it since the last time.
const LOOK: Duration = Duration::from_secs(30);
const LEAST: u64 = 1024 * 1024;

#[derive(Debug)]
pub(super) struct BlobIndex {
    blobs: Mutex<LruMap<Key, Arc<BlobState>>>,
    /// Registries that mount nothing: each of their repositories is on its own.
    isolating: Mutex<LruMap<HostKey, ()>>,
    /// Whether a registry lacked the blob that it was last asked for.
    lacking: Mutex<LruMap<HostKey, bool>>,
    /// Repositories, by host and path, that held nothing when they were looked at.
    empty: Mutex<LruMap<(HostKey, String), Instant>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    host: HostKey,
    /// Set where repositories do not share their blobs.
    path: Option<String>,
    digest: Digest,
    /// What one login was shown is not asked for with another: a registry need not check who asks for a mount.
    login: Vec<CredentialId>,
}

impl Default for BlobIndex {
    fn default() -> Self {
        Self {
            blobs: Mutex::new(LruMap::new(MOST_BLOBS)),
            isolating: Mutex::new(LruMap::new(size_limits::REGISTRIES)),
            lacking: Mutex::new(LruMap::new(size_limits::REGISTRIES)),
            empty: Mutex::new(LruMap::new(MOST_EMPTY)),
        }
    }
}

/// What is known about one blob at one registry.
#[derive(Debug, Default)]
pub(super) struct BlobState {
    /// Repositories that hold it, by path, and since when that is known.
    held: Mutex<HashMap<String, Instant>>,
    turn: Mutex<Arc<Turn>>,
}

/// The right to send a blob, which one has and others wait for.
#[derive(Debug, Default)]
pub(super) struct Turn {
    lock: Arc<tokio::sync::Mutex<()>>,
    stage: Mutex<Stage>,
}

/// How far the one whose turn it is has got.
#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    /// It waits for its place among the transfers.
    #[default]
    InLine,
    /// So many bytes came from the source.
    Coming(u64),
    /// All came. What is left is up to the destination, which is the same for all.
    Complete,
}

impl Turn {
    /// Takes note of bytes that came from the source.
    pub(super) fn came(&self, bytes: u64) {
        let mut stage = self.stage();
        *stage = match *stage {
            Stage::Coming(before) => Stage::Coming(before.saturating_add(bytes)),
            Stage::InLine | Stage::Complete => Stage::Coming(bytes),
        };
    }

    pub(super) fn is_complete(&self) {
        *self.stage() = Stage::Complete;
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock()
    }
}

/// What to do about a blob.
#[derive(Debug)]
pub(super) enum Standing {
    /// The repository has it.
    Held,
    /// Another repository of the registry has it.
    Elsewhere(String),
    /// Nobody is known to have it, and nobody else sends it while the guard lives.
    Missing(OwnedMutexGuard<()>),
}

impl BlobIndex {
    /// What is known to the holder of these credentials.
    pub(super) fn blob(
        &self,
        repository: &Repository,
        digest: Digest,
        credentials: &[Credential],
    ) -> Arc<BlobState> {
        let host = host_of(repository);
        let isolated = self.isolating.lock().get(&host).is_some();
        let login = credentials.iter().map(Credential::id).collect();
        let key = Key { host, path: isolated.then(|| repository.path().to_owned()), digest, login };
        let mut blobs = self.blobs.lock();
        if let Some(entry) = blobs.get(&key) {
            return Arc::clone(entry);
        }
        let entry = Arc::new(BlobState::default());
        blobs.insert(key, Arc::clone(&entry));
        entry
    }

    /// Takes note that the registry does not mount what another of its repositories holds.
    pub(super) fn mounts_nothing(&self, repository: &Repository) {
        self.isolating.lock().insert(host_of(repository), ());
    }

    /// Whether the registry will probably lack the next blob: images come in series that are there or are not.
    pub(super) fn probably_lacks(&self, repository: &Repository) -> bool {
        let mut lacking = self.lacking.lock();
        lacking.get(&host_of(repository)).is_some_and(|lacked| *lacked)
    }

    /// Takes note whether the registry lacked a blob that nothing was known about.
    pub(super) fn lacked(&self, repository: &Repository, lacked: bool) {
        self.lacking.lock().insert(host_of(repository), lacked);
    }

    /// Whether the repository held nothing a moment ago. What it has since then by us is in its blobs' entries.
    pub(super) fn was_empty(&self, repository: &Repository) -> bool {
        let mut empty = self.empty.lock();
        let since = empty.get(&(host_of(repository), repository.path().to_owned()));
        since.is_some_and(|since| since.elapsed() < EMPTY_FOR)
    }

    /// Takes note that the repository holds nothing.
    pub(super) fn is_empty(&self, repository: &Repository) {
        let key = (host_of(repository), repository.path().to_owned());
        self.empty.lock().insert(key, Instant::now());
    }
}

pub(super) fn host_of(repository: &Repository) -> HostKey {
    repository.host().key()
}

impl BlobState {
    /// What is known, after waiting for whoever is sending the blob right now. If that one gets nowhere, the turn passes to
    /// one of those who wait.
    pub(super) async fn standing(&self, repository: &Repository) -> Standing {
        if let Some(known) = self.known(repository) {
            return known;
        }
        loop {
            let turn = self.turn();
            tokio::select! {
                guard = Arc::clone(&turn.lock).lock_owned() => {
                    *turn.stage() = Stage::InLine;
                    return self.known(repository).unwrap_or(Standing::Missing(guard));
                }
                () = gets_nowhere(&turn) => self.pass_on(&turn),
            }
        }
    }

    /// The turn of whoever sends the blob now.
    pub(super) fn turn(&self) -> Arc<Turn> {
        Arc::clone(&self.turn.lock())
    }

    /// Lets somebody else begin, unless that has happened already.
    fn pass_on(&self, former: &Arc<Turn>) {
        let mut turn = self.turn.lock();
        if Arc::ptr_eq(&turn, former) {
            *turn = Arc::default();
        }
    }

    fn known(&self, repository: &Repository) -> Option<Standing> {
        let mut held = self.lock();
        let now = Instant::now();
        held.retain(|_, since| now.saturating_duration_since(*since) < GOOD_FOR);
        if held.contains_key(repository.path()) {
            return Some(Standing::Held);
        }
        held.keys().next().map(|path| Standing::Elsewhere(path.clone()))
    }

    pub(super) fn is_held(&self, repository: &Repository) {
        let mut held = self.lock();
        if held.len() < MOST_REPOSITORIES {
            held.insert(repository.path().to_owned(), Instant::now());
        }
    }

    /// Takes back what turned out to be wrong.
    pub(super) fn is_not_held(&self, path: &str) {
        self.lock().remove(path);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.held.lock()
    }
}

/// Returns when hardly anything has come between two looks.
async fn gets_nowhere(turn: &Turn) {
    let mut before = None;
    loop {
        sleep(LOOK).await;
        let now = if let Stage::Coming(bytes) = *turn.stage() { Some(bytes) } else { None };
        if let (Some(before), Some(now)) = (before, now)
            && now < before + LEAST
        {
            return;
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use fairlead_domain::keyring::{IdentityKey, Keyring};
    use fairlead_domain::reference::Reference;

    use super::*;

    fn repository(name: &str) -> Repository {
        Reference::parse(&format!("r.example/{name}")).unwrap().repository()
    }

    #[tokio::test(start_paused = true)]
    async fn a_blob_is_sent_once_and_known_afterwards() {
        let index = BlobIndex::default();
        let digest = Digest::sha256(b"blob");
        let entry = index.blob(&repository("one"), digest, &[]);
        let Standing::Missing(guard) = entry.standing(&repository("one")).await else {
            panic!("nobody has it")
        };
        let waiting = {
            let entry = index.blob(&repository("two"), digest, &[]);
            tokio::spawn(async move { entry.standing(&repository("two")).await })
        };
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "it waits for the one who sends");
        entry.is_held(&repository("one"));
        drop(guard);
        assert!(matches!(waiting.await.unwrap(), Standing::Elsewhere(path) if path == "one"));
        assert!(matches!(entry.standing(&repository("one")).await, Standing::Held));
        entry.is_not_held("one");
        assert!(matches!(entry.standing(&repository("one")).await, Standing::Missing(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_those_who_wait_takes_over_from_one_who_gets_nowhere() {
        let index = BlobIndex::default();
        let digest = Digest::sha256(b"blob");
        let entry = index.blob(&repository("slow"), digest, &[]);
        let Standing::Missing(_slow) = entry.standing(&repository("slow")).await else {
            panic!("nobody has it")
        };
        let slow = entry.turn();
        let mut waiting = tokio::task::JoinSet::new();
        for name in ["one", "two", "three"] {
            let entry = Arc::clone(&entry);
            waiting.spawn(async move { entry.standing(&repository(name)).await });
        }
        let mut wait = async |seconds| {
            tokio::time::timeout(Duration::from_secs(seconds), waiting.join_next()).await.ok().flatten()
        };
        assert!(wait(600).await.is_none(), "it may wait in line for as long as others need");
        for _ in 0..20 {
            slow.came(LEAST);
            assert!(wait(LOOK.as_secs()).await.is_none(), "it moves");
        }
        slow.is_complete();
        assert!(wait(120).await.is_none(), "it has all, and only the destination is slow");
        slow.came(LEAST / 2);
        let Some(Ok(Standing::Missing(next))) = wait(150).await else {
            panic!("half of what must come is not enough")
        };
        slow.came(1);
        assert!(wait(600).await.is_none(), "the others wait for the one who took over");
        entry.is_held(&repository("one"));
        drop(next);
        for _ in 0..2 {
            let known = wait(1).await;
            assert!(matches!(known, Some(Ok(Standing::Held | Standing::Elsewhere(_)))), "{known:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn repositories_that_share_nothing_do_not_wait_for_each_other() {
        let index = BlobIndex::default();
        let digest = Digest::sha256(b"blob");
        index.mounts_nothing(&repository("one"));
        let (one, two) =
            (index.blob(&repository("one"), digest, &[]), index.blob(&repository("two"), digest, &[]));
        let Standing::Missing(_sending) = one.standing(&repository("one")).await else {
            panic!("nobody has it")
        };
        assert!(matches!(two.standing(&repository("two")).await, Standing::Missing(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_login_has_put_somewhere_is_not_mounted_with_another() {
        let index = BlobIndex::default();
        let digest = Digest::sha256(b"blob");
        let login = |name: &str| {
            let mut keyring = Keyring::new(IdentityKey::new([0; 32]));
            assert!(keyring.add_login("r.example", name.as_bytes(), b"secret"));
            keyring.lookup(&repository("one"))
        };
        index.blob(&repository("one"), digest, &login("ann")).is_held(&repository("one"));
        let same = index.blob(&repository("two"), digest, &login("ann"));
        assert!(
            matches!(same.standing(&repository("two")).await, Standing::Elsewhere(path) if path == "one")
        );
        let other = index.blob(&repository("two"), digest, &login("bob"));
        assert!(matches!(other.standing(&repository("two")).await, Standing::Missing(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_repository_is_taken_for_empty_for_a_moment_only() {
        let index = BlobIndex::default();
        index.is_empty(&repository("one"));
        assert!(index.was_empty(&repository("one")));
        assert!(!index.was_empty(&repository("two")));
        tokio::time::advance(EMPTY_FOR).await;
        assert!(!index.was_empty(&repository("one")));
    }

    #[tokio::test(start_paused = true)]
    async fn knowledge_ages_and_registries_are_told_apart() {
        let index = BlobIndex::default();
        let digest = Digest::sha256(b"blob");
        index.blob(&repository("one"), digest, &[]).is_held(&repository("one"));
        let other = Reference::parse("other.example/one").unwrap().repository();
        assert!(matches!(index.blob(&other, digest, &[]).standing(&other).await, Standing::Missing(_)));
        tokio::time::advance(GOOD_FOR).await;
        let entry = index.blob(&repository("one"), digest, &[]);
        assert!(matches!(entry.standing(&repository("one")).await, Standing::Missing(_)));
    }
}
