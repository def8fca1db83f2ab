//! The objects that watch images, as far as one term knows them: what they say, and their ledgers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::conditions::{Condition, Finding, reasons, types};
use fairlead_api::fairlead::ImageLedger;
use fairlead_api::kuik::{Availability, ClusterImageSetAvailability, ClusterImageSetAvailabilityStatus};
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::availability::{self, Looked, News, Noted, Tracked, Watched};
use fairlead_plan::ledger::{Draft, Ledger, Owner, OwnerKind, ShardId, StoredShard, Ticket};
use fairlead_plan::usage::{Holder, Used};
use jiff::Timestamp;
use tokio::time::Instant;

use super::news::ImageNews;
use super::write_urgency::WriteUrgency;
use crate::cluster::state::{Malformed, Snapshot};

/// Events are sent after this time even if the ledger could not be written.
const KEPT_BACK: Duration = Duration::from_secs(30);

/// What an object asks for.
#[derive(Debug)]
pub(super) enum Rule {
    Watched(Arc<Watched>),
    /// Nothing that makes sense. What it watched before is still watched.
    Refused(Finding),
}

/// The object as it is stored.
#[derive(Debug, Clone)]
pub(super) enum WatchResource {
    Whole(Arc<ClusterImageSetAvailability>),
    Malformed(Arc<Malformed>),
}

impl WatchResource {
    pub(super) fn status(&self) -> Option<&ClusterImageSetAvailabilityStatus> {
        match self {
            Self::Whole(object) => object.status.as_ref(),
            Self::Malformed(_) => None,
        }
    }

    pub(super) fn conditions(&self) -> &[Condition] {
        match self {
            Self::Whole(object) => object.status.as_ref().map_or(&[], |status| &status.conditions),
            Self::Malformed(malformed) => &malformed.conditions,
        }
    }

    pub(super) fn version(&self) -> &str {
        match self {
            Self::Whole(object) => object.metadata.resource_version.as_deref().unwrap_or_default(),
            Self::Malformed(malformed) => &malformed.resource_version,
        }
    }

    pub(super) fn generation(&self) -> Option<i64> {
        match self {
            Self::Whole(object) => object.metadata.generation,
            Self::Malformed(malformed) => malformed.generation,
        }
    }

    fn rule(&self) -> Rule {
        match self {
            Self::Whole(object) => match Watched::compile(object) {
                Ok(watched) => Rule::Watched(Arc::new(watched)),
                Err(error) => Rule::Refused(availability::refused(&error)),
            },
            Self::Malformed(malformed) => {
                let message = format!(
                    "cannot be read, so nothing new is watched; correct it or delete it: {}",
                    malformed.error
                );
                Rule::Refused(Finding::new(types::READY, false, reasons::INVALID_SPEC, message))
            }
        }
    }
}

/// One object.
#[derive(Debug)]
pub(super) struct WatchedSet {
    pub(super) owner: Owner,
    pub(super) stored: WatchResource,
    pub(super) rule: Rule,
    pub(super) ledger: Ledger,
    pub(super) writes: WriteUrgency,
    /// Whether the metrics page does not know yet.
    pub(super) uncounted: bool,
    /// In order of images.
    used: Vec<Used>,
    expires: Option<Timestamp>,
    /// The images of the ledger, in order, as the scheduler shares them.
    images: Vec<Reference>,
    /// Images of which it was told that they disappeared, and not yet that they are back.
    gone: HashSet<Reference>,
    pending_news: Vec<PendingNews>,
}

/// News that becomes an event once the ledger has it: otherwise a restart in between would repeat it.
#[derive(Debug)]
struct PendingNews {
    story: ImageNews,
    /// Where in the ledger it is, and since which of its changes. `None`: it is stored.
    shard: Option<(ShardId, Ticket)>,
    since: Instant,
}

impl WatchedSet {
    fn new(owner: Owner, stored: WatchResource, ledger: Ledger) -> Self {
        let is_gone = |status| status == Availability::NotFound;
        let gone = ledger
            .iter()
            .filter(|(_, entry)| entry.watch.as_ref().is_some_and(|watch| is_gone(watch.status)))
            .map(|(image, _)| image.clone())
            .collect();
        Self {
            owner,
            rule: stored.rule(),
            stored,
            ledger,
            writes: WriteUrgency::default(),
            uncounted: true,
            used: Vec::new(),
            expires: None,
            images: Vec::new(),
            gone,
            pending_news: Vec::new(),
        }
    }

    /// Takes the object as it is stored now.
    fn refresh(&mut self, stored: WatchResource) {
        if self.stored.version() == stored.version() {
            return;
        }
        // Without a generation it cannot be told whether its specification is the same.
        if stored.generation().is_none() || stored.generation() != self.stored.generation() {
            self.rule = stored.rule();
        }
        let changed = stored.generation() != self.stored.generation();
        self.stored = stored;
        self.reconsider(changed);
    }

    /// Takes note of what is in use.
    pub(super) fn track(&mut self, used: Vec<Used>, now: Timestamp) {
        let Rule::Watched(watched) = &self.rule else { return };
        let same = self.used.len() == used.len()
            && self.used.iter().zip(&used).all(|(one, other)| one.image == other.image);
        let Tracked { changes, next_expiry } = availability::track(&self.ledger, watched, &used, now);
        self.ledger.apply(changes);
        self.expires = next_expiry;
        self.used = used;
        self.uncounted = true;
        self.reconsider(!same);
    }

    /// Something may have changed that is to be written.
    fn reconsider(&mut self, urgently: bool) {
        self.writes.reconsider();
        if urgently {
            self.writes.hurry(self.ledger.dirty().len());
        }
    }

    /// When the next image is to be forgotten.
    pub(super) fn expires(&self) -> Option<Timestamp> {
        self.expires
    }

    /// Whose pull secrets open an image.
    pub(super) fn holders(&self, image: &Reference) -> &[Holder] {
        let at = self.used.binary_search_by(|used| used.image.cmp(image)).ok();
        at.and_then(|at| self.used.get(at)).map_or(&[], |used| &used.holders)
    }

    /// Every image with its last look, and whether they are others than at the last call.
    pub(super) fn images(&mut self) -> bool {
        let same = self.images.len() == self.ledger.len()
            && self.images.iter().zip(self.ledger.iter()).all(|(known, (image, _))| known == image);
        if !same {
            self.images = self.ledger.iter().map(|(image, _)| image.clone()).collect();
        }
        !same
    }

    pub(super) fn tracked(&self) -> impl Iterator<Item = (Reference, Option<Timestamp>)> {
        self.images.iter().filter_map(|image| {
            let watch = self.ledger.get(image)?.watch.as_ref();
            Some((image.clone(), watch.and_then(|watch| watch.last_monitor)))
        })
    }

    /// Takes note of what a look found.
    pub(super) fn note(&mut self, image: &Reference, looked: &Looked, now: Timestamp) {
        let Looked { verdict, secret_problem, .. } = looked;
        let noted = availability::note(&self.ledger, image, verdict, secret_problem.as_deref(), now);
        let Some(Noted { change, news }) = noted else { return };
        let was = self.ledger.get(image).and_then(|entry| entry.watch.clone());
        self.ledger.apply([change]);
        let is = self.ledger.get(image).and_then(|entry| entry.watch.as_ref());
        let changed = is.map(|watch| watch.status) != was.as_ref().map(|watch| watch.status);
        self.reconsider(changed);
        self.uncounted = true;
        if matches!(verdict, Verdict::Available { .. }) {
            self.gone.remove(image);
        }
        // A registry that could not be asked in between does not make the old news new.
        let is_known = matches!(news, Some(News::Disappeared { .. })) && !self.gone.insert(image.clone());
        if let Some(news) = news.filter(|_| !is_known) {
            tracing::info!(%image, watched_by = &*self.owner.name, ?news, "news of an image");
            let story = ImageNews {
                owner: self.owner.clone(),
                image: image.clone(),
                news,
                before: was.and_then(|watch| watch.last_monitor),
                reason: verdict.reason().to_owned(),
            };
            let place = self.dirty_shard_of(image);
            self.pending_news.push(PendingNews { story, shard: place, since: Instant::now() });
        }
    }

    /// Where an image is that has just been changed.
    fn dirty_shard_of(&self, image: &Reference) -> Option<(ShardId, Ticket)> {
        self.ledger.dirty().into_iter().find_map(|id| match self.ledger.draft(id) {
            Draft::Write { entries, ticket, .. } => {
                entries.iter().any(|entry| entry.source == image.as_str()).then_some((id, ticket))
            }
            Draft::Delete { .. } => None,
        })
    }

    /// The shard to be written next, if any: one with news first.
    pub(super) fn next_shard(&self) -> Option<ShardId> {
        let dirty = self.ledger.dirty();
        let mut awaited = self.pending_news.iter().filter_map(|pending| pending.shard);
        awaited.find(|(id, _)| dirty.contains(id)).map(|(id, _)| id).or_else(|| dirty.first().copied())
    }

    /// A shard was stored as it was at that time.
    pub(super) fn note_stored(&mut self, id: ShardId, as_of: Ticket) {
        for pending in &mut self.pending_news {
            pending.shard.take_if(|(shard, since)| *shard == id && *since <= as_of);
        }
    }

    /// The news that can be told now: it is stored, or cannot be.
    pub(super) fn take_news(&mut self) -> Vec<ImageNews> {
        let is_due =
            |pending: &mut PendingNews| pending.shard.is_none() || pending.since.elapsed() > KEPT_BACK;
        self.pending_news.extract_if(.., is_due).map(|pending| pending.story).collect()
    }
}

/// All objects, by name.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) all: BTreeMap<Arc<str>, WatchedSet>,
    /// Ledgers of objects that were not seen yet.
    ledgers: HashMap<Owner, Vec<StoredShard>>,
}

impl Objects {
    /// Starts from the ledgers that are stored.
    pub(super) fn from(ledgers: Vec<(Owner, StoredShard)>) -> Self {
        let mut objects = Self::default();
        for (owner, shard) in ledgers {
            objects.ledgers.entry(owner).or_default().push(shard);
        }
        objects
    }

    /// What is kept of a stored ledger.
    pub(super) fn keep(owner: Owner, ledger: ImageLedger) -> Option<(Owner, StoredShard)> {
        let is_watched = owner.kind == OwnerKind::ClusterImageSetAvailability;
        is_watched.then(|| (owner, StoredShard::from(ledger)))
    }

    /// Takes the objects as they are stored now. Those under deletion count as gone: their ledgers go with them.
    pub(super) fn sync(&mut self, snapshot: &Snapshot<ClusterImageSetAvailability>) {
        let whole =
            snapshot.objects.iter().filter(|(_, object)| object.metadata.deletion_timestamp.is_none());
        let whole = whole.map(|(key, object)| {
            (
                &key.name,
                object.metadata.uid.as_deref().unwrap_or_default(),
                WatchResource::Whole(object.clone()),
            )
        });
        let malformed = snapshot.malformed.iter().map(|(key, malformed)| {
            (&key.name, malformed.uid.as_str(), WatchResource::Malformed(malformed.clone()))
        });
        let mut before = std::mem::take(&mut self.all);
        for (name, uid, stored) in whole.chain(malformed) {
            let known = before.remove(name).filter(|object| &*object.owner.uid == uid);
            let object = match known {
                Some(mut object) => {
                    object.refresh(stored);
                    object
                }
                None => self.begin(name, uid, stored),
            };
            self.all.insert(name.clone(), object);
        }
    }

    fn begin(&mut self, name: &Arc<str>, uid: &str, stored: WatchResource) -> WatchedSet {
        let owner = Owner {
            kind: OwnerKind::ClusterImageSetAvailability,
            namespace: None,
            name: name.clone(),
            uid: uid.into(),
        };
        let found = self.ledgers.remove(&owner);
        let has_ledger = found.is_some();
        let mut ledger = Ledger::load(owner.clone(), found.unwrap_or_default());
        if let Some(status) = stored.status().filter(|_| !has_ledger) {
            let changes = availability::adopt(&ledger, status);
            ledger.apply(changes);
        }
        WatchedSet::new(owner, stored, ledger)
    }
}
