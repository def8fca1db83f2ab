//! What is remembered of one image: for each node, what the last pull came to.
//!
//! It is kept in memory whole and stored in pieces, each a `WarmLedger` of bounded size that is written again when one
//! of its rows changed. A pull counts once its row is stored; only then is its Pod deleted, so a new lease holder finds
//! either the row or the Pod. Nodes are known by UID: a node that is replaced under its name starts anew.

mod row;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::fairlead::{
    MAX_WARMED_NODES, WarmLedger, WarmLedgerOwner, WarmLedgerSpec, WarmLedgerStatus,
};
use fairlead_domain::digest::Digest;
use jiff::Timestamp;

pub use self::row::{Failed, Row};
use super::pod_state::Failure;
use super::time::{after, rounded_up};
use crate::ledger::{stored_prefix, whole_seconds};

/// Time between two writes of one piece, for each row of all: a piece of some hundred costs the API server as much as
/// ten Pods do, and what waits for it is only the end of Pods that are done.
const WRITE_INTERVAL_OF_ROW: Duration = Duration::from_millis(4);
const LEAST_WRITE_INTERVAL: Duration = Duration::from_millis(300);
/// Pods end within half a minute after their pulls.
const MOST_WRITE_INTERVAL: Duration = Duration::from_secs(8);
/// The most that is waited because of the rows of other images: the Pods that wait as well take memory.
const MOST_SHARED_INTERVAL: Duration = Duration::from_secs(4);
/// Pause after a write that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A write comes back through the watch within this time.
const SETTLES: Duration = Duration::from_secs(30);

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

/// What decides how often an image is written.
#[derive(Debug, Clone, Copy)]
pub struct WritePace {
    /// Rows of all images that have something to write: the API server has to take the pieces of all of them.
    pub rows: usize,
    /// No pull of the image is under way or waits: what there is need not wait for more.
    pub settled: bool,
}

/// Everything that is remembered of one image.
#[derive(Debug)]
pub struct Memory {
    owner: WarmLedgerOwner,
    /// By UID of the node.
    rows: BTreeMap<Arc<str>, Placed>,
    pieces: BTreeMap<ShardId, Piece>,
    last_start: Option<Timestamp>,
    /// What rows share: nearly all nodes have the same reference, and the same digest.
    reference: Arc<str>,
    digest: Option<Arc<Digest>>,
    /// Counts changes.
    clock: u64,
}

/// A row, and the piece that it is in.
#[derive(Debug)]
struct Placed {
    row: Row,
    shard: ShardId,
    /// The moment of its last change.
    changed: u64,
}

#[derive(Debug, Default)]
struct Piece {
    /// How many rows it has.
    rows: usize,
    version: Option<String>,
    /// The moment as of which the object has all rows. None: there may be none.
    stored: Option<u64>,
    changed: u64,
    in_flight: bool,
    not_before: Option<Timestamp>,
    /// When it was last written, if that succeeded.
    written_at: Option<Timestamp>,
    /// That was ahead of time, which is not done twice in a row: nodes may join or leave one by one.
    hurried: bool,
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
            rows: BTreeMap::new(),
            pieces: BTreeMap::new(),
            last_start: None,
            reference: Arc::default(),
            digest: None,
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
                let row = memory.read(spec, node);
                memory.put_back(shard, node.uid.as_str().into(), row);
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

    fn share_digest(&mut self, digest: Digest) -> Arc<Digest> {
        match &self.digest {
            Some(known) if **known == digest => Arc::clone(known),
            _ => Arc::clone(self.digest.insert(Arc::new(digest))),
        }
    }

    fn put_back(&mut self, shard: ShardId, uid: Arc<str>, row: Row) {
        if self.get(&uid).is_some_and(|known| known.attempt >= row.attempt) {
            self.touch(shard);
            return;
        }
        self.forget(&uid);
        self.place(uid, Placed { row, shard, changed: 0 });
    }

    fn place(&mut self, uid: Arc<str>, placed: Placed) {
        self.pieces.entry(placed.shard).or_default().rows += 1;
        let before = self.rows.insert(uid, placed);
        if let Some(piece) = before.and_then(|before| self.pieces.get_mut(&before.shard)) {
            piece.rows -= 1;
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
        self.rows.get(node).map(|placed| &placed.row)
    }

    /// UID and row of every node.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Row)> {
        self.rows.iter().map(|(uid, placed)| (uid, &placed.row))
    }

    /// How many nodes something is known of.
    pub fn node_count(&self) -> usize {
        self.rows.len()
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
        let found = outcome.result.ok().flatten().map(|digest| self.share_digest(digest));
        let before = self.get(node).filter(|row| row.reference == reference);
        let at = whole_seconds(outcome.at);
        let (pulled_at, failed) = match outcome.result {
            Ok(_) => (Some(at), None),
            Err(failure) => {
                let failed = Failed {
                    times: before.map_or(0, Row::failures).saturating_add(1),
                    at: Some(at),
                    reason: Some(Arc::clone(&failure.reason)),
                    message: Some(Arc::clone(&failure.message)),
                };
                (before.and_then(|row| row.pulled_at), Some(Box::new(failed)))
            }
        };
        let row = Row {
            name: Arc::clone(name),
            attempt: outcome.attempt,
            digest: found.or_else(|| before?.digest.clone()),
            pulled_at,
            failed,
            unlisted: outcome.unlisted,
            reference,
        };
        let shard = self.rows.get(node).map_or_else(|| self.room(), |placed| placed.shard);
        self.touch(shard);
        self.place(Arc::clone(node), Placed { row, shard, changed: self.clock });
    }

    /// The node lists the image again, so its list can be relied on.
    pub fn listed(&mut self, node: &str) {
        if let Some(placed) = self.rows.get_mut(node).filter(|placed| placed.row.unlisted) {
            placed.row.unlisted = false;
            let shard = placed.shard;
            self.touch(shard);
        }
    }

    /// The node is gone.
    pub fn forget(&mut self, node: &str) {
        let Some(Placed { shard, .. }) = self.rows.remove(node) else { return };
        if let Some(piece) = self.pieces.get_mut(&shard) {
            piece.rows -= 1;
        }
        self.touch(shard);
    }

    fn touch(&mut self, shard: ShardId) {
        self.clock += 1;
        self.pieces.entry(shard).or_default().changed = self.clock;
    }

    /// A piece with room: one that has to be written anyway rather than one that has not, else a new one.
    fn room(&self) -> ShardId {
        let roomy = self.pieces.iter().filter(|(_, piece)| piece.rows < MAX_WARMED_NODES);
        let best = roomy.min_by_key(|(shard, piece)| (!piece.is_dirty(), **shard)).map(|(shard, _)| *shard);
        let taken = (0..).zip(self.pieces.keys()).take_while(|(number, shard)| number == *shard);
        best.unwrap_or_else(|| taken.last().map_or(0, |(number, _)| number + 1))
    }

    /// Whether the result of an attempt is known and not stored yet.
    pub fn is_unstored(&self, node: &str, attempt: u32) -> bool {
        let placed = self.rows.get(node).filter(|placed| placed.row.attempt >= attempt);
        placed.is_some_and(|placed| {
            let stored = self.pieces.get(&placed.shard).and_then(|piece| piece.stored);
            stored.is_none_or(|stored| placed.changed > stored)
        })
    }

    /// Whether there is something to write, or being written.
    pub fn is_dirty(&self) -> bool {
        self.pieces.values().any(Piece::is_dirty)
    }

    /// How many pieces are being written.
    pub fn in_flight(&self) -> usize {
        self.pieces.values().filter(|piece| piece.in_flight).count()
    }

    /// When each piece that waits may be written.
    fn waiting(&self, pace: WritePace) -> impl Iterator<Item = (ShardId, Option<Timestamp>)> {
        let interval = self.interval(pace);
        let waiting = self.pieces.iter().filter(|(_, piece)| piece.is_dirty() && !piece.in_flight);
        waiting.map(move |(shard, piece)| {
            let paced = piece.written_at.map(|at| after(at, interval));
            let hurries = pace.settled && !piece.hurried;
            (*shard, piece.not_before.max(paced.filter(|_| !hurries)))
        })
    }

    /// Time from one write of a piece to the next.
    fn interval(&self, pace: WritePace) -> Duration {
        let of = |rows: usize| WRITE_INTERVAL_OF_ROW.saturating_mul(u32::try_from(rows).unwrap_or(u32::MAX));
        let interval = of(self.rows.len()).max(of(pace.rows).min(MOST_SHARED_INTERVAL));
        interval.clamp(LEAST_WRITE_INTERVAL, MOST_WRITE_INTERVAL)
    }

    /// What is to be written now, at most so much. Every draft has to be answered, by [`Self::written`] or
    /// [`Self::not_written`].
    pub fn drafts(&mut self, now: Timestamp, most: usize, pace: WritePace) -> Vec<Draft> {
        let due = self.waiting(pace).filter(|(_, earliest)| earliest.is_none_or(|earliest| earliest <= now));
        let due: Vec<ShardId> = due.map(|(shard, _)| shard).take(most).collect();
        let interval = self.interval(pace);
        due.into_iter().map(|shard| self.draft(shard, now, interval)).collect()
    }

    /// When there is something to write next.
    pub fn next_draft(&self, pace: WritePace) -> Option<Timestamp> {
        self.waiting(pace).filter_map(|(_, earliest)| earliest).min()
    }

    fn draft(&mut self, shard: ShardId, now: Timestamp, interval: Duration) -> Draft {
        let (name, ticket, last_start) = (self.object_name(shard), Ticket(self.clock), self.last_start);
        let owner = self.owner.clone();
        let piece = self.pieces.entry(shard).or_default();
        piece.in_flight = true;
        piece.hurried = piece.written_at.is_some_and(|at| after(at, interval) > now);
        piece.written_at = Some(now);
        piece.not_before = Some(after(now, LEAST_WRITE_INTERVAL));
        let placed = || self.rows.iter().filter(|(_, placed)| placed.shard == shard);
        let content = (piece.rows > 0).then(|| {
            let rows = || placed().map(|(_, placed)| &placed.row);
            let reference = most_frequent(rows().map(|row| &*row.reference)).unwrap_or_default();
            // A row without a digest stands for the ledger's, so there is none where a node's is not known.
            let all_known = rows().all(|row| row.pulled_at.is_none() || row.digest.is_some());
            let digest = most_frequent(rows().filter_map(|row| row.digest.as_deref())).filter(|_| all_known);
            let nodes = placed().map(|(uid, placed)| placed.row.write(uid, reference, digest)).collect();
            let failed = rows().filter(|row| row.failures() > 0).count();
            let count = |number: usize| Some(u32::try_from(number).unwrap_or(u32::MAX));
            let status = WarmLedgerStatus {
                node_count: count(piece.rows),
                failed_count: count(failed),
                conditions: Vec::new(),
            };
            let spec = WarmLedgerSpec {
                owner,
                reference: reference.to_owned(),
                digest: digest.map(ToString::to_string),
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
        if version.is_none() && piece.rows == 0 {
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
        if gone.is_empty() {
            return Vec::new();
        }
        self.pieces.retain(|shard, _| !gone.contains(shard));
        let lost = self.rows.iter().filter(|(_, placed)| gone.contains(&placed.shard));
        let lost: Vec<_> = lost.map(|(uid, _)| Arc::clone(uid)).collect();
        for node in &lost {
            self.rows.remove(node);
        }
        lost
    }

    /// A draft was not carried out.
    pub fn not_written(&mut self, shard: ShardId, found: Found, now: Timestamp) {
        let Some(piece) = self.pieces.get_mut(&shard) else { return };
        piece.in_flight = false;
        piece.written_at = None;
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
