//! What is remembered of one image: for each node, what the last pull came to.
//!
//! It is kept in memory whole and stored in pieces, each a `WarmLedger` of bounded size that is written again when one
//! of its rows changed. A pull counts once its row is stored; only then is its Pod deleted, so a new lease holder finds
//! either the row or the Pod. Nodes are known by UID: a node that is replaced under its name starts anew.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::fairlead::{
    MAX_WARMED_NODES, WarmLedger, WarmLedgerOwner, WarmLedgerSpec, WarmLedgerStatus, WarmedNode,
};
use fairlead_domain::digest::Digest;
use jiff::Timestamp;

use super::pod_state::Failure;
use super::time::{after, rounded_up};
use crate::ledger::{stored_prefix, whole_seconds};

/// Time between two writes of one piece, for each row of all: a piece of some hundred costs the API server as much as
/// ten Pods do, and what waits for it is only the end of Pods that are done.
const WRITE_INTERVAL_OF_ROW: Duration = Duration::from_millis(4);
const LEAST_WRITE_INTERVAL: Duration = Duration::from_millis(300);
/// Pods end within half a minute after their pulls.
const MOST_WRITE_INTERVAL: Duration = Duration::from_secs(8);
/// Pause after a write that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A write comes back through the watch within this time.
const SETTLES: Duration = Duration::from_secs(30);

/// What is known of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The node's name.
    pub name: Arc<str>,
    /// Number of the last pull that ended.
    pub attempt: u32,
    /// What was pulled, or tried.
    pub reference: Arc<str>,
    pub digest: Option<Digest>,
    /// When the node got this reference.
    pub pulled_at: Option<Timestamp>,
    /// Since the last pull that did not fail.
    pub failures: u32,
    pub failed_at: Option<Timestamp>,
    pub reason: Option<Arc<str>>,
    pub message: Option<Arc<str>>,
    /// The node's list of images lacks this one, and pulling it again did not change that.
    pub unlisted: bool,
}

/// What a pull came to.
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'a> {
    pub attempt: u32,
    pub reference: &'a str,
    pub result: Result<Option<Digest>, &'a Failure>,
    pub at: Timestamp,
    /// It was pulled because the node did not list the image any more.
    pub unlisted: bool,
}

/// One piece, by number.
pub type ShardId = u32;

/// A moment in the life of a memory, counted in changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What to do with the object that a piece is stored in.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    pub shard: ShardId,
    pub ticket: Ticket,
    /// Name of the object.
    pub name: String,
    /// The version to replace. None: it is to be created, or may be there in any version if it is to be deleted.
    pub version: Option<String>,
    /// None: it is to be deleted.
    pub content: Option<(WarmLedgerSpec, WarmLedgerStatus)>,
}

/// What was found in place of the version that was to be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// That could not be found out.
    Unknown,
    /// There is no such object.
    Nothing,
    Version(String),
}

/// Everything that is remembered of one image.
#[derive(Debug)]
pub struct Memory {
    owner: WarmLedgerOwner,
    pieces: BTreeMap<ShardId, Piece>,
    /// In which piece a node is, by UID.
    index: HashMap<Arc<str>, ShardId>,
    last_start: Option<Timestamp>,
    /// The text that rows share: nearly all nodes have the same reference.
    reference: Arc<str>,
    /// Counts changes.
    clock: u64,
}

#[derive(Debug, Default)]
struct Piece {
    /// By UID of the node, each with the moment of its last change.
    rows: BTreeMap<Arc<str>, (Row, u64)>,
    version: Option<String>,
    /// The moment as of which the object has all rows. None: there may be none.
    stored: Option<u64>,
    changed: u64,
    in_flight: bool,
    not_before: Option<Timestamp>,
    /// The watch has shown the object.
    shown: bool,
}

impl Piece {
    fn is_dirty(&self) -> bool {
        self.stored.is_none_or(|stored| stored < self.changed)
    }
}

impl Memory {
    pub fn new(name: &str, uid: &str) -> Self {
        Self {
            owner: WarmLedgerOwner { name: name.to_owned(), uid: uid.to_owned() },
            pieces: BTreeMap::new(),
            index: HashMap::new(),
            last_start: None,
            reference: Arc::default(),
            clock: 0,
        }
    }

    /// What is stored. Objects that the operator would not have written in the name of this owner are passed over. Of a
    /// node in two pieces the later attempt counts.
    pub fn load<'a>(
        name: &str,
        uid: &str,
        objects: impl IntoIterator<Item = &'a WarmLedger>,
        now: Timestamp,
    ) -> Self {
        let mut memory = Self::new(name, uid);
        for object in objects {
            let Some(shard) = memory.shard_of(object) else { continue };
            let spec = &object.spec;
            memory.last_start = memory.last_start.max(spec.last_start.as_ref().map(|time| time.0));
            let version = object.metadata.resource_version.clone();
            // It may have been written a moment ago, by another lease holder.
            let piece = Piece { version, stored: Some(0), not_before: Some(now), ..Piece::default() };
            memory.pieces.insert(shard, piece);
            for node in &spec.nodes {
                let reference = memory.share(node.reference.as_deref().unwrap_or(&spec.reference));
                memory.put_back(shard, Arc::from(node.uid.as_str()), read(spec, node, reference));
            }
        }
        memory
    }

    fn share(&mut self, reference: &str) -> Arc<str> {
        if *self.reference != *reference {
            self.reference = reference.into();
        }
        Arc::clone(&self.reference)
    }

    fn put_back(&mut self, shard: ShardId, uid: Arc<str>, row: Row) {
        let before = self.index.get(&uid).copied();
        if before.is_some() && self.get(&uid).is_some_and(|known| known.attempt >= row.attempt) {
            self.touch(shard);
            return;
        }
        if let Some(before) = before {
            self.take(before, &uid);
        }
        if let Some(piece) = self.pieces.get_mut(&shard) {
            piece.rows.insert(Arc::clone(&uid), (row, 0));
            self.index.insert(uid, shard);
        }
    }

    /// The piece that an object is, if it is one of this owner.
    fn shard_of(&self, object: &WarmLedger) -> Option<ShardId> {
        let name = object.metadata.name.as_deref()?;
        let shard = name.strip_prefix(&*self.prefix())?.parse().ok()?;
        let owned =
            object.metadata.owner_references.iter().flatten().any(|owner| owner.uid == self.owner.uid);
        (owned && object.spec.owner == self.owner && self.object_name(shard) == name).then_some(shard)
    }

    fn prefix(&self) -> String {
        stored_prefix("warm", &self.owner.name, &self.owner.uid)
    }

    fn object_name(&self, shard: ShardId) -> String {
        format!("{}{shard}", self.prefix())
    }

    pub fn get(&self, node: &str) -> Option<&Row> {
        let shard = self.index.get(node)?;
        self.pieces.get(shard)?.rows.get(node).map(|(row, _)| row)
    }

    /// UID and row of every node.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Row)> {
        self.pieces.values().flat_map(|piece| piece.rows.iter().map(|(uid, (row, _))| (uid, row)))
    }

    /// When a pull last started, on whatever node.
    pub fn last_start(&self) -> Option<Timestamp> {
        self.last_start
    }

    /// Spacing between starts survives a restart with the next result that is stored.
    pub fn started(&mut self, at: Timestamp) {
        self.last_start = self.last_start.max(Some(at));
    }

    /// A pull ended. What was known of another reference is forgotten.
    pub fn record(&mut self, node: &Arc<str>, name: &Arc<str>, outcome: &Outcome<'_>) {
        let reference = self.share(outcome.reference);
        let before = self.get(node).filter(|row| row.reference == reference);
        let at = whole_seconds(outcome.at);
        let row = Row {
            name: Arc::clone(name),
            attempt: outcome.attempt,
            digest: before.and_then(|row| row.digest),
            pulled_at: before.and_then(|row| row.pulled_at),
            failures: 0,
            failed_at: None,
            reason: None,
            message: None,
            unlisted: outcome.unlisted,
            reference,
        };
        let row = match outcome.result {
            Ok(digest) => Row { digest: digest.or(row.digest), pulled_at: Some(at), ..row },
            Err(failure) => Row {
                failures: before.map_or(0, |row| row.failures).saturating_add(1),
                failed_at: Some(at),
                reason: Some(Arc::clone(&failure.reason)),
                message: Some(Arc::clone(&failure.message)),
                ..row
            },
        };
        let shard = self.index.get(node).copied().unwrap_or_else(|| self.room());
        self.touch(shard);
        let piece = self.pieces.entry(shard).or_default();
        piece.rows.insert(Arc::clone(node), (row, self.clock));
        self.index.insert(Arc::clone(node), shard);
    }

    /// The node lists the image again, so its list can be relied on.
    pub fn listed(&mut self, node: &str) {
        let Some(shard) = self.index.get(node).copied() else { return };
        let row = self.pieces.get_mut(&shard).and_then(|piece| piece.rows.get_mut(node));
        if let Some((row, _)) = row.filter(|(row, _)| row.unlisted) {
            row.unlisted = false;
            self.touch(shard);
        }
    }

    /// The node is gone.
    pub fn forget(&mut self, node: &str) {
        if let Some(shard) = self.index.get(node).copied() {
            self.take(shard, node);
        }
    }

    fn take(&mut self, shard: ShardId, node: &str) {
        if let Some(piece) = self.pieces.get_mut(&shard) {
            piece.rows.remove(node);
        }
        self.index.remove(node);
        self.touch(shard);
    }

    fn touch(&mut self, shard: ShardId) {
        self.clock += 1;
        self.pieces.entry(shard).or_default().changed = self.clock;
    }

    /// A piece with room: one that has to be written anyway rather than one that has not, else a new one.
    fn room(&self) -> ShardId {
        let roomy = self.pieces.iter().filter(|(_, piece)| piece.rows.len() < MAX_WARMED_NODES);
        let best = roomy.min_by_key(|(shard, piece)| (!piece.is_dirty(), **shard)).map(|(shard, _)| *shard);
        let taken = (0..).zip(self.pieces.keys()).take_while(|(number, shard)| number == *shard);
        best.unwrap_or_else(|| taken.last().map_or(0, |(number, _)| number + 1))
    }

    /// Whether the result of an attempt is known and not stored yet.
    pub fn is_unstored(&self, node: &str, attempt: u32) -> bool {
        let piece = self.index.get(node).and_then(|shard| self.pieces.get(shard));
        piece.is_some_and(|piece| {
            let row = piece.rows.get(node).filter(|(row, _)| row.attempt >= attempt);
            row.is_some_and(|(_, changed)| piece.stored.is_none_or(|stored| *changed > stored))
        })
    }

    /// How many pieces are being written.
    pub fn in_flight(&self) -> usize {
        self.pieces.values().filter(|piece| piece.in_flight).count()
    }

    /// What is to be written now, at most so much. Every draft has to be answered, by [`Self::written`] or
    /// [`Self::not_written`].
    pub fn drafts(&mut self, now: Timestamp, most: usize) -> Vec<Draft> {
        let due = self.pieces.iter().filter(|(_, piece)| {
            piece.is_dirty() && !piece.in_flight && piece.not_before.is_none_or(|earliest| earliest <= now)
        });
        let due: Vec<ShardId> = due.map(|(shard, _)| *shard).take(most).collect();
        due.into_iter().map(|shard| self.draft(shard, now)).collect()
    }

    /// When there is something to write next.
    pub fn next_draft(&self) -> Option<Timestamp> {
        let waiting = self.pieces.values().filter(|piece| piece.is_dirty() && !piece.in_flight);
        waiting.filter_map(|piece| piece.not_before).min()
    }

    fn draft(&mut self, shard: ShardId, now: Timestamp) -> Draft {
        let (name, ticket, last_start) = (self.object_name(shard), Ticket(self.clock), self.last_start);
        let owner = self.owner.clone();
        let rows = u32::try_from(self.index.len()).unwrap_or(u32::MAX);
        let interval = WRITE_INTERVAL_OF_ROW.saturating_mul(rows);
        let interval = interval.clamp(LEAST_WRITE_INTERVAL, MOST_WRITE_INTERVAL);
        let piece = self.pieces.entry(shard).or_default();
        piece.in_flight = true;
        piece.not_before = Some(after(now, interval));
        let content = (!piece.rows.is_empty()).then(|| {
            let rows = || piece.rows.values().map(|(row, _)| row);
            let reference = most_frequent(rows().map(|row| &*row.reference)).unwrap_or_default();
            // A row without a digest stands for the ledger's, so there is none where a node's is not known.
            let all_known = rows().all(|row| row.pulled_at.is_none() || row.digest.is_some());
            let digest = most_frequent(rows().filter_map(|row| row.digest)).filter(|_| all_known);
            let nodes = piece.rows.iter().map(|(uid, (row, _))| write(uid, row, reference, digest)).collect();
            let failed = rows().filter(|row| row.failures > 0).count();
            let count = |number: usize| Some(u32::try_from(number).unwrap_or(u32::MAX));
            let status = WarmLedgerStatus {
                node_count: count(piece.rows.len()),
                failed_count: count(failed),
                conditions: Vec::new(),
            };
            let spec = WarmLedgerSpec {
                owner,
                reference: reference.to_owned(),
                digest: digest.map(|digest| digest.to_string()),
                // Cut off, it would let the next pull start too early after a restart.
                last_start: last_start.map(|at| whole_seconds(rounded_up(at)).into()),
                nodes,
            };
            (spec, status)
        });
        Draft { shard, ticket, name, version: piece.version.clone(), content }
    }

    /// A draft was carried out: the object now has this version, or is deleted.
    pub fn written(&mut self, shard: ShardId, ticket: Ticket, version: Option<String>) {
        let Some(piece) = self.pieces.get_mut(&shard) else { return };
        piece.in_flight = false;
        piece.stored = Some(ticket.0);
        if version.is_none() && piece.rows.is_empty() {
            self.pieces.remove(&shard);
        } else {
            piece.shown &= version.is_some();
            piece.version = version;
        }
    }

    /// Forgets the rows of objects that were deleted by hand, and returns their nodes. What has not come through the
    /// watch yet is not missed: the watch may be late.
    pub fn miss(&mut self, is_there: impl Fn(&str) -> bool, now: Timestamp) -> Vec<Arc<str>> {
        let settled = |piece: &Piece| {
            let written = piece.not_before.is_none_or(|next| after(next, SETTLES) <= now);
            written && !piece.in_flight && piece.version.is_some()
        };
        let prefix = self.prefix();
        let mut gone = Vec::new();
        for (shard, piece) in &mut self.pieces {
            let missed = piece.shown && settled(piece);
            if piece.shown && !missed {
                continue;
            }
            if is_there(&format!("{prefix}{shard}")) {
                piece.shown = true;
            } else if missed {
                gone.push(*shard);
            }
        }
        let pieces = gone.iter().filter_map(|shard| self.pieces.remove(shard));
        let nodes: Vec<_> = pieces.flat_map(|piece| piece.rows.into_keys()).collect();
        for node in &nodes {
            self.index.remove(node);
        }
        nodes
    }

    /// A draft was not carried out.
    pub fn not_written(&mut self, shard: ShardId, found: Found, now: Timestamp) {
        let Some(piece) = self.pieces.get_mut(&shard) else { return };
        piece.in_flight = false;
        let version = match found {
            Found::Unknown => {
                piece.not_before = Some(after(now, RETRY_INTERVAL));
                return;
            }
            Found::Nothing => None,
            Found::Version(version) => Some(version),
        };
        piece.shown &= version.is_some();
        // Another version can be replaced at once.
        piece.not_before = Some(now);
        piece.version = version;
        piece.stored = None;
    }
}

fn most_frequent<T: Ord + Copy>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut counts = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_insert(0_usize) += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(value, _)| value)
}

fn write(uid: &str, row: &Row, reference: &str, digest: Option<Digest>) -> WarmedNode {
    WarmedNode {
        uid: uid.to_owned(),
        name: row.name.to_string(),
        attempt: row.attempt,
        reference: (*row.reference != *reference).then(|| row.reference.to_string()),
        digest: row.digest.filter(|own| Some(*own) != digest).map(|digest| digest.to_string()),
        pulled_at: row.pulled_at.map(Into::into),
        failures: row.failures,
        failed_at: row.failed_at.map(Into::into),
        reason: row.reason.as_deref().map(str::to_owned),
        message: row.message.as_deref().map(str::to_owned),
        unlisted: row.unlisted,
    }
}

fn read(ledger: &WarmLedgerSpec, node: &WarmedNode, reference: Arc<str>) -> Row {
    let pulled_at = node.pulled_at.as_ref().map(|time| time.0);
    let digest = node.digest.as_ref().or(ledger.digest.as_ref().filter(|_| pulled_at.is_some()));
    Row {
        name: node.name.as_str().into(),
        attempt: node.attempt,
        reference,
        digest: digest.and_then(|text| text.parse().ok()),
        pulled_at,
        failures: node.failures,
        failed_at: node.failed_at.as_ref().map(|time| time.0),
        reason: node.reason.as_deref().map(Into::into),
        message: node.message.as_deref().map(Into::into),
        unlisted: node.unlisted,
    }
}
