//! What is known about the blobs of destinations.
//!
//! Images share layers, and copies run concurrently. Single-flight by blob: a copy that needs a blob that is being sent
//! waits for it, unless it hardly moves, since its source may be the one that fails. Later copies know which
//! repositories hold the blob, and have nothing to do or request a mount. Knowledge expires, because registries are
//! cleaned up.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fairlead_domain::digest::Digest;
use fairlead_domain::keyring::{Credential, CredentialId};
use fairlead_domain::reference::{HostKey, Repository};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep};

use crate::lru::LruCache;
use crate::size_limits;

/// Blobs remembered, of all destinations together.
const MOST_BLOBS: usize = 65_536;
/// Repositories remembered for one blob.
const MOST_REPOSITORIES: usize = 4096;
/// Registries delete what nothing names, but rarely; a copy takes minutes.
const GOOD_FOR: Duration = Duration::from_mins(15);
/// How often waiting copies check the progress of a blob, and the least that must have arrived in between.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
const LEAST_PROGRESS: u64 = 1024 * 1024;

#[derive(Debug)]
pub(super) struct BlobIndex {
    blobs: LruCache<BlobKey, Arc<BlobState>>,
    /// Registries that do not mount blobs: each of their repositories is on its own.
    isolating: LruCache<HostKey, ()>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BlobKey {
    host: HostKey,
    /// Set where repositories do not share blobs.
    path: Option<String>,
    digest: Digest,
    /// Knowledge is not shared between credentials: a registry need not check who may mount.
    credentials: Vec<CredentialId>,
}

impl Default for BlobIndex {
    fn default() -> Self {
        Self { blobs: LruCache::new(MOST_BLOBS), isolating: LruCache::new(size_limits::REGISTRIES) }
    }
}

/// One blob at one registry.
#[derive(Debug, Default)]
pub(super) struct BlobState {
    /// The repositories that hold it, and since when that is known.
    held: Mutex<HashMap<String, Instant>>,
    sender: Mutex<Arc<BlobSender>>,
}

/// The copy that sends a blob, which others wait for.
#[derive(Debug, Default)]
pub(super) struct BlobSender {
    lock: Arc<tokio::sync::Mutex<()>>,
    /// [`WAITING`], [`COMPLETE`], or one more than the bytes that came from the source.
    progress: AtomicU64,
}

/// It waits for a slot.
const WAITING: u64 = 0;
/// Everything came from the source. The rest is up to the destination, which is the same for all.
const COMPLETE: u64 = u64::MAX;

impl BlobSender {
    /// Records bytes from the source.
    pub(super) fn came(&self, bytes: u64) {
        let advance = |progress| Some(1.max(if progress == COMPLETE { 0 } else { progress }) + bytes);
        // Never fails, since the closure always returns a value.
        let _ = self.progress.fetch_update(Ordering::Relaxed, Ordering::Relaxed, advance);
    }

    pub(super) fn is_complete(&self) {
        self.progress.store(COMPLETE, Ordering::Relaxed);
    }

    /// Returns when hardly anything has come between two checks.
    async fn stalls(&self) {
        let is_moving = |progress| progress != WAITING && progress != COMPLETE;
        let mut before = WAITING;
        loop {
            sleep(CHECK_INTERVAL).await;
            let now = self.progress.load(Ordering::Relaxed);
            if is_moving(before) && is_moving(now) && now < before + LEAST_PROGRESS {
                return;
            }
            before = now;
        }
    }
}

/// What to do about a blob.
#[derive(Debug)]
pub(super) enum Standing {
    /// The repository has it.
    Held,
    /// Another repository of the registry has it.
    Elsewhere(String),
    /// No repository is known to have it, and no other copy sends it while the guard lives.
    Missing(OwnedMutexGuard<()>),
}

impl BlobIndex {
    pub(super) fn blob(
        &self,
        repository: &Repository,
        digest: Digest,
        credentials: &[Credential],
    ) -> Arc<BlobState> {
        let host = repository.host().key();
        let path = self.isolating.get(&host).map(|()| repository.path().to_owned());
        let credentials = credentials.iter().map(Credential::id).collect();
        self.blobs.get_or_insert_with(&BlobKey { host, path, digest, credentials }, Arc::default)
    }

    /// Records that the registry does not mount what another of its repositories holds.
    pub(super) fn mounts_nothing(&self, repository: &Repository) {
        self.isolating.insert(repository.host().key(), ());
    }
}

impl BlobState {
    /// What is known, after waiting for the copy that sends the blob now. If that stalls, a waiting copy takes over.
    pub(super) async fn standing(&self, repository: &Repository) -> Standing {
        if let Some(known) = self.known(repository) {
            return known;
        }
        loop {
            let sender = self.sender();
            tokio::select! {
                guard = Arc::clone(&sender.lock).lock_owned() => {
                    sender.progress.store(WAITING, Ordering::Relaxed);
                    return self.known(repository).unwrap_or(Standing::Missing(guard));
                }
                () = sender.stalls() => self.replace(&sender),
            }
        }
    }

    pub(super) fn sender(&self) -> Arc<BlobSender> {
        Arc::clone(&self.sender.lock())
    }

    /// Lets another copy begin, unless one has already.
    fn replace(&self, stalled: &Arc<BlobSender>) {
        let mut sender = self.sender.lock();
        if Arc::ptr_eq(&sender, stalled) {
            *sender = Arc::default();
        }
    }

    fn known(&self, repository: &Repository) -> Option<Standing> {
        let mut held = self.held.lock();
        let now = Instant::now();
        held.retain(|_, since| now.saturating_duration_since(*since) < GOOD_FOR);
        if held.contains_key(repository.path()) {
            return Some(Standing::Held);
        }
        held.keys().next().map(|path| Standing::Elsewhere(path.clone()))
    }

    pub(super) fn is_held(&self, repository: &Repository) {
        let mut held = self.held.lock();
        if held.len() < MOST_REPOSITORIES {
            held.insert(repository.path().to_owned(), Instant::now());
        }
    }

    /// Corrects knowledge that turned out to be wrong.
    pub(super) fn is_not_held(&self, path: &str) {
        self.held.lock().remove(path);
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
            panic!("no repository has it")
        };
        let waiting = {
            let entry = index.blob(&repository("two"), digest, &[]);
            tokio::spawn(async move { entry.standing(&repository("two")).await })
        };
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "it waits for the sender");
        entry.is_held(&repository("one"));
        drop(guard);
        assert!(matches!(waiting.await.unwrap(), Standing::Elsewhere(path) if path == "one"));
        assert!(matches!(entry.standing(&repository("one")).await, Standing::Held));
        entry.is_not_held("one");
        assert!(matches!(entry.standing(&repository("one")).await, Standing::Missing(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_copy_takes_over_from_one_that_stalls() {
        let index = BlobIndex::default();
        let digest = Digest::sha256(b"blob");
        let entry = index.blob(&repository("slow"), digest, &[]);
        let Standing::Missing(_slow) = entry.standing(&repository("slow")).await else {
            panic!("no repository has it")
        };
        let slow = entry.sender();
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
            slow.came(LEAST_PROGRESS);
            assert!(wait(CHECK_INTERVAL.as_secs()).await.is_none(), "it moves");
        }
        slow.is_complete();
        assert!(wait(120).await.is_none(), "it has all, and only the destination is slow");
        slow.came(LEAST_PROGRESS / 2);
        let Some(Ok(Standing::Missing(next))) = wait(150).await else {
            panic!("half of what must come is not enough")
        };
        slow.came(1);
        assert!(wait(600).await.is_none(), "the others wait for the one that took over");
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
            panic!("no repository has it")
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
