//! Verdicts in memory, by image and credentials.
//!
//! Nothing here waits: locks are held for a look at a map. The map is in parts so that cores rarely meet, and bounded,
//! because image names come from every author of Pods.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fairlead_domain::cause::Cause;
use fairlead_domain::digest::Digest;
use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::{HostKey, Reference};
use fairlead_domain::verdict::Verdict;
use fairlead_plan::verdict_ttl::{self, Ages, Span, Standing};
use fairlead_registry::RegistryHealth;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::last_digests::LastDigests;
use super::refresh::RefreshOutcome;

const SHARDS: usize = 16;
/// The part of a full shard that makes room: more at once, so that the search is paid once in many insertions.
const EVICTED_SHARE: usize = 8;

#[derive(Debug)]
pub(super) struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    shard_capacity: usize,
    hasher: RandomState,
    ages: Ages,
    last_digests: LastDigests,
}

/// By the hash of the key. Two keys with one hash are as unlikely as a broken machine; one then displaces the other.
#[derive(Debug, Default)]
struct Shard {
    entries: HashMap<u64, Entry, BuildHasherDefault<Hashed>>,
    flights: HashMap<u64, Flight, BuildHasherDefault<Hashed>>,
}

#[derive(Debug)]
struct Entry {
    image: Image,
    verdict: Verdict,
    found: Instant,
    span: Span,
    health: Option<RegistryHealth>,
    last_use: Instant,
    /// A caller asked since the verdict was found.
    in_use: bool,
    /// A refresh is lined up or under way.
    refreshing: bool,
}

#[derive(Debug)]
struct Flight {
    image: Image,
    told: watch::Receiver<Progress>,
    /// Of a refresh, which waits in line behind all admission: an admission request cancels it, and asks instead.
    gives_way: Option<GivesWay>,
}

#[derive(Debug)]
struct GivesWay {
    token: CancellationToken,
    /// When its request was sent; none while it is in line.
    sent: watch::Receiver<Option<Instant>>,
}

/// A refresh that has begun.
#[derive(Debug)]
pub(super) struct BegunRefresh {
    pub(super) telling: watch::Sender<Progress>,
    /// Cancelled when it is to give way.
    pub(super) gives_way: CancellationToken,
    /// For the client to say when the request was sent.
    pub(super) sending: watch::Sender<Option<Instant>>,
}

/// An image, the credentials with which it is asked for, and on whose account.
#[derive(Clone, Debug)]
pub(super) struct Image {
    reference: Reference,
    credentials: Arc<[Credential]>,
    cause: Cause,
    hash: u64,
}

/// The same in a question, which owns nothing.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    reference: Reference,
    credentials: &'a [Credential],
    cause: Cause,
    hash: u64,
}

/// What was found out, and when.
#[derive(Debug)]
pub(super) struct FoundVerdict {
    pub(super) verdict: Verdict,
    pub(super) health: Option<RegistryHealth>,
    pub(super) at: Instant,
    pub(super) wall_clock: SystemTime,
    pub(super) jitter: f64,
}

/// What a look tells.
#[derive(Debug)]
pub(super) enum CacheLookup {
    Known(Verdict),
    /// It is known, and a liveness check of the registry should begin.
    Ageing(Verdict),
    /// It is known and serves after a liveness check of the registry.
    Unproven(Verdict),
    /// The registry is down, whatever was known about the image.
    Down(Verdict),
    /// Something was known, and the registry is not down.
    Outdated,
    Absent,
}

/// How a caller gets the verdict.
pub(super) enum ProbeTicket {
    /// It was found out a moment ago.
    Known(Verdict),
    Joined(watch::Receiver<Progress>),
    /// No probe is under way: the caller that gets this has to start one.
    First(Image, watch::Sender<Progress>),
}

/// How far a probe has come.
#[derive(Clone, Debug)]
pub(super) enum Progress {
    /// It waits for its turn, since all who ask a registry share one budget.
    InLine,
    Sent(Instant),
    Told(Verdict),
}

/// What there is to do after a look at everything.
#[derive(Debug, Default)]
pub(super) struct Due {
    pub(super) images: Vec<Image>,
    /// Verdicts in memory.
    pub(super) kept: usize,
}

impl Cache {
    pub(super) fn new(capacity: usize, ages: Ages) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            shard_capacity: (capacity / SHARDS).max(1),
            hasher: RandomState::new(),
            ages,
            last_digests: LastDigests::default(),
        }
    }

    pub(super) fn ages(&self) -> Ages {
        self.ages
    }

    /// The question about an image. What is pulled from which registry counts, however it was written.
    pub(super) fn asked<'a>(
        &self,
        image: &Reference,
        credentials: &'a [Credential],
        cause: Cause,
    ) -> Asked<'a> {
        let reference = image.pulled();
        let mut hasher = self.hasher.build_hasher();
        reference.key().hash(&mut hasher);
        for credential in credentials {
            credential.id().hash(&mut hasher);
        }
        cause.hash(&mut hasher);
        Asked { reference, credentials, cause, hash: hasher.finish() }
    }

    pub(super) fn look(&self, asked: &Asked<'_>, now: Instant) -> CacheLookup {
        let mut shard = self.shard(asked.hash);
        let Some(entry) = shard.entries.get_mut(&asked.hash).filter(|entry| asked.is(&entry.image)) else {
            return CacheLookup::Absent;
        };
        entry.in_use = true;
        entry.last_use = now;
        if let Some(verdict) = entry.health.as_ref().and_then(RegistryHealth::down) {
            return CacheLookup::Down(verdict);
        }
        match entry.standing(self.ages, now) {
            Standing::Good | Standing::Renew => match entry.proof(self.ages, now) {
                Standing::Good => CacheLookup::Known(entry.verdict.clone()),
                Standing::Renew => CacheLookup::Ageing(entry.verdict.clone()),
                Standing::Gone => CacheLookup::Unproven(entry.verdict.clone()),
            },
            Standing::Gone => CacheLookup::Outdated,
        }
    }

    /// The digest that an image is known to have. This is no use of the verdict: nothing is refreshed for it.
    pub(super) fn digest(&self, asked: &Asked<'_>, now: Instant) -> Option<Digest> {
        let shard = self.shard(asked.hash);
        let entry = shard.entries.get(&asked.hash).filter(|entry| asked.is(&entry.image))?;
        entry.verdict.digest().filter(|_| entry.standing(self.ages, now) != Standing::Gone)
    }

    /// The digest that an image was last seen to have, however long ago, and when.
    pub(super) fn last_digest(&self, asked: &Asked<'_>) -> Option<(Digest, Instant)> {
        self.last_digests.of(asked)
    }

    /// Whether what is known of an image was found out within this time.
    pub(super) fn is_younger(&self, asked: &Asked<'_>, age: Duration, now: Instant) -> bool {
        let shard = self.shard(asked.hash);
        let entry = shard.entries.get(&asked.hash).filter(|entry| asked.is(&entry.image));
        entry.is_some_and(|entry| now.saturating_duration_since(entry.found) < age)
    }

    /// Joins the callers that wait for the same probe.
    pub(super) fn join(&self, asked: &Asked<'_>, now: Instant) -> ProbeTicket {
        let mut shard = self.shard(asked.hash);
        let entry = shard.entries.get(&asked.hash).filter(|entry| asked.is(&entry.image));
        if let Some(entry) = entry.filter(|entry| entry.standing(self.ages, now) != Standing::Gone) {
            return ProbeTicket::Known(entry.verdict.clone());
        }
        if let Some(flight) = shard.flights.get(&asked.hash).filter(|flight| asked.is(&flight.image)) {
            match &flight.gives_way {
                Some(refresh) if refresh.sent.borrow().is_none() => refresh.token.cancel(),
                _ => return ProbeTicket::Joined(flight.told.clone()),
            }
        }
        let image = asked.own();
        let telling = shard.begin(&image, None);
        ProbeTicket::First(image, telling)
    }

    /// Begins a refresh that was lined up, unless another probe has made it needless or is about to.
    pub(super) fn begin_refresh(&self, image: &Image) -> Option<BegunRefresh> {
        let mut shard = self.shard(image.hash);
        let is_due = |entry: &Entry| entry.image.is(image) && entry.refreshing;
        if !shard.entries.get(&image.hash).is_some_and(is_due)
            || shard.flights.get(&image.hash).is_some_and(|flight| flight.image.is(image))
        {
            return None;
        }
        let (gives_way, (sending, sent)) = (CancellationToken::new(), watch::channel(None));
        let telling = shard.begin(image, Some(GivesWay { token: gives_way.clone(), sent }));
        Some(BegunRefresh { telling, gives_way, sending })
    }

    /// No caller joins this probe of the image any more.
    pub(super) fn probe_ended(&self, image: &Image, told: &watch::Receiver<Progress>) {
        let mut shard = self.shard(image.hash);
        if shard.flights.get(&image.hash).is_some_and(|flight| flight.told.same_channel(told)) {
            shard.flights.remove(&image.hash);
            // Also a refresh that found nothing out may be lined up again.
            if let Some(entry) = shard.entries.get_mut(&image.hash).filter(|entry| entry.image.is(image)) {
                entry.refreshing = false;
            }
        }
    }

    /// Remembers what was found out, for as long as it is good.
    pub(super) fn keep(&self, image: Image, found: FoundVerdict) {
        self.last_digests.heed(&image, &found.verdict, found.at);
        let mut shard = self.shard(image.hash);
        let span = verdict_ttl::span(&found.verdict, self.ages, found.wall_clock, found.jitter);
        let Some(span) = span else {
            shard.entries.remove(&image.hash);
            return;
        };
        if !shard.entries.contains_key(&image.hash) && shard.entries.len() >= self.shard_capacity {
            shard.make_room(self.ages, found.at);
        }
        shard.entries.insert(image.hash, Entry::new(image, found, span));
    }

    /// Takes note of how a refresh went.
    pub(super) fn renew(
        &self,
        image: &Image,
        found: FoundVerdict,
        late: bool,
        registry_is_down: bool,
    ) -> RefreshOutcome {
        self.last_digests.heed(image, &found.verdict, found.at);
        let mut shard = self.shard(image.hash);
        let Some(entry) = shard.entries.get_mut(&image.hash).filter(|entry| entry.image.is(image)) else {
            return RefreshOutcome::Forgotten;
        };
        if !verdict_ttl::replaces(&entry.verdict, &found.verdict, late, registry_is_down) {
            entry.refreshing = false;
            entry.span.renew = Some(found.at.saturating_duration_since(entry.found) + self.ages.refresh);
            return RefreshOutcome::Kept;
        }
        let outcome = RefreshOutcome::of(&entry.verdict, &found.verdict);
        match verdict_ttl::span(&found.verdict, self.ages, found.wall_clock, found.jitter) {
            Some(span) => {
                let last_use = entry.last_use;
                *entry = Entry { last_use, ..Entry::new(image.clone(), found, span) };
            }
            None => {
                shard.entries.remove(&image.hash);
            }
        }
        outcome
    }

    /// Forgets all images of these registries.
    pub(super) fn forget(&self, registries: &HashSet<HostKey>) {
        for shard in &self.shards {
            lock(shard).entries.retain(|_, entry| !entry.image.is_of(registries));
        }
    }

    /// Forgets what is of no use any more and lines up what is in use and due for a refresh, so many at most.
    pub(super) fn tidy(&self, now: Instant, most: usize) -> Due {
        let mut due = Due::default();
        for shard in &self.shards {
            let mut shard = lock(shard);
            let Shard { entries, flights } = &mut *shard;
            entries.retain(|hash, entry| {
                let standing = entry.standing(self.ages, now);
                let is_due = standing == Standing::Renew && entry.in_use && !entry.refreshing;
                // While a registry is down nothing new can be found out; its own trials tell when it is back.
                if is_due && due.images.len() < most && !entry.registry_is_down() {
                    entry.refreshing = true;
                    due.images.push(entry.image.clone());
                }
                // What a refresh finds out takes the place of what has just ended.
                let is_asked = || flights.get(hash).is_some_and(|flight| flight.image.is(&entry.image));
                standing != Standing::Gone || is_asked()
            });
            due.kept += entries.len();
        }
        due
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // Neither the bits by which a map finds the place of an entry nor those by which it tells entries apart.
        let [_, _, _, part, ..] = hash.to_le_bytes();
        let [first, ..] = &self.shards;
        lock(self.shards.get(usize::from(part) % SHARDS).unwrap_or(first))
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // No statement leaves a shard half changed, so a poisoned lock is still good.
    shard.lock()
}

impl Shard {
    fn begin(&mut self, image: &Image, gives_way: Option<GivesWay>) -> watch::Sender<Progress> {
        let (telling, told) = watch::channel(Progress::InLine);
        self.flights.insert(image.hash, Flight { image: image.clone(), told, gives_way });
        telling
    }

    fn make_room(&mut self, ages: Ages, now: Instant) {
        let before = self.entries.len();
        self.entries.retain(|_, entry| entry.standing(ages, now) != Standing::Gone);
        if self.entries.len() < before {
            return;
        }
        let mut uses: Vec<Instant> = self.entries.values().map(|entry| entry.last_use).collect();
        let (_, oldest, _) = uses.select_nth_unstable(before / EVICTED_SHARE);
        let oldest = *oldest;
        self.entries.retain(|_, entry| entry.last_use > oldest);
    }
}

impl Entry {
    fn new(image: Image, found: FoundVerdict, span: Span) -> Self {
        Self {
            image,
            verdict: found.verdict,
            found: found.at,
            span,
            health: found.health,
            last_use: found.at,
            in_use: false,
            refreshing: false,
        }
    }

    fn standing(&self, ages: Ages, now: Instant) -> Standing {
        let recovered = self.health.as_ref().and_then(RegistryHealth::recovered);
        let recovered = recovered.filter(|at| *at > self.found);
        let since = |moment: Instant| -> Duration { now.saturating_duration_since(moment) };
        verdict_ttl::standing(&self.verdict, self.span, ages, since(self.found), recovered.map(since))
    }

    /// Whether the registry is proven to be alive. Only good news needs that.
    fn proof(&self, ages: Ages, now: Instant) -> Standing {
        if !self.verdict.is_available() {
            return Standing::Good;
        }
        let Some(health) = &self.health else { return Standing::Gone };
        match verdict_ttl::proof(health.proof_age(now), ages) {
            Standing::Renew if health.is_being_checked() => Standing::Good,
            standing => standing,
        }
    }

    fn registry_is_down(&self) -> bool {
        self.health.as_ref().is_some_and(RegistryHealth::is_down)
    }
}

impl Image {
    pub(super) fn reference(&self) -> &Reference {
        &self.reference
    }

    pub(super) fn credentials(&self) -> &[Credential] {
        &self.credentials
    }

    /// Whether it is in one of these registries.
    pub(super) fn is_of(&self, registries: &HashSet<HostKey>) -> bool {
        registries.contains(&self.reference.host().key())
    }

    pub(super) fn cause(&self) -> Cause {
        self.cause
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    fn is(&self, other: &Self) -> bool {
        self.reference.is_same_image(&other.reference)
            && self.credentials == other.credentials
            && self.cause == other.cause
    }
}

impl Asked<'_> {
    pub(super) fn reference(&self) -> &Reference {
        &self.reference
    }

    pub(super) fn cause(&self) -> Cause {
        self.cause
    }

    pub(super) fn own(&self) -> Image {
        Image {
            reference: self.reference.clone(),
            credentials: self.credentials.into(),
            cause: self.cause,
            hash: self.hash,
        }
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn is(&self, image: &Image) -> bool {
        self.reference.is_same_image(&image.reference)
            && *self.credentials == *image.credentials
            && self.cause == image.cause
    }
}

/// For keys that are hashes already.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Not used by keys of this kind; any mixing is correct.
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
