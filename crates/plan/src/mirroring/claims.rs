//! Who owns a destination that more than one source or object is interested in.
//!
//! The host of a source is not part of its destination, so two registries' images can meet in one place. One of them
//! owns it. A source that cannot be copied comes after all that can; cluster-scoped objects come before namespaced
//! ones; what is in use comes before what is not; then the one that the ledgers say, else the first in lexical order.
//! Nearly all destinations interest one image of one object only, and of those nothing is kept: a first pass over all
//! ledgers finds the others by fingerprint, a second judges them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fairlead_api::fairlead::{CopyState, MAX_WRITTEN};
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use jiff::Timestamp;

use super::destination_key::{Slot, fingerprint, slot};
use super::join::{Joined, join};
use super::loops::Loops;
use super::object::MirrorObject;
use super::reconcile::MIRROR_REMOVED;
use super::targets::Aims;
use super::{is_shared, same_source};
use crate::ledger::Copy;
use crate::usage::DirectUses;

/// Destinations that more than one image or object is interested in.
#[derive(Debug, Default)]
pub struct DestinationOwners {
    contested: HashMap<Slot, Claim>,
}

#[derive(Debug, Default)]
pub(super) struct Claim {
    pub(super) owner: Option<Title>,
    /// Two sources each believe that their own content is there.
    pub(super) overwritten: bool,
    /// Sources whose copies the ledgers say are there.
    occupants: Vec<Occupant>,
    /// What was written there, for whichever source and object.
    written: Vec<Digest>,
    /// Claims that keep the copy: one of them, and whether there are others.
    wanted_by: Option<(Arc<str>, Reference)>,
    wanted_by_several: bool,
    /// Images in use that cannot be copied. A copy of the same image is all that they can hope for; any other is none
    /// of their business.
    hopeful: Vec<(Arc<str>, Reference)>,
}

/// A source whose copy is at a destination, as far as one ledger knows.
#[derive(Debug)]
struct Occupant {
    source: Reference,
    digest: Option<Digest>,
    /// The last attempt to copy it failed.
    failing: bool,
}

/// What makes a source the owner. The least of all titles counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Title {
    /// It was never copied, and its last attempt failed for reasons of its source.
    pub(super) uncopyable: bool,
    scope: OwnerScope,
    unused: bool,
    rank: Rank,
    since: Timestamp,
    pub(super) source: Reference,
    /// What the destination is to contain, once that is known.
    pub(super) digest: Option<Digest>,
    /// The last attempt to copy it failed.
    pub(super) failing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum OwnerScope {
    Cluster,
    Namespace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Its copy is in place.
    Placed,
    /// Its copy was in place, and is to be made again.
    Known,
    /// The copy of another source is in place for it too.
    Shared,
    /// The ledger has promised it the destination.
    Promised,
    /// It is in use.
    Wish,
    /// No Pod uses it and its copy is not in place, so that it will not be made before one does.
    Idle,
    /// The same, and the destination was given to another source.
    Former,
}

/// One image's interest in one destination.
struct Interest<'a> {
    image: Joined<'a>,
    /// The same for all interests of one image in one object.
    number: u32,
    /// The mirror, by number; `None` for a row that belongs to none of the policy's mirrors.
    aim: Option<usize>,
    row: Option<&'a Copy>,
    fingerprint: u64,
}

/// What ownership depends on beside ledgers and policies.
#[derive(Clone, Copy)]
struct Moment<'a> {
    direct: &'a DirectUses,
    now: Timestamp,
}

/// A row that a ledger has about a destination, as far as admission needs it.
#[derive(Debug, Clone, Copy)]
pub struct Claimed {
    /// The row is of the source in question.
    pub own: bool,
    pub state: CopyState,
    /// The copy was in place, or is.
    pub filled: bool,
    /// The destination holds something else until this copy is made.
    pub replaces: bool,
}

/// Whether a destination belongs to other sources only, so that what is there must not be taken for a copy of this one.
/// `rows` are those that ledgers have about it. An unclaimed place refuses no source; a copy that was never made
/// claims nothing once it has failed.
pub fn is_foreign(rows: impl IntoIterator<Item = Claimed>) -> bool {
    let mut foreign = false;
    for Claimed { own, state, filled, replaces } in rows {
        let refused = state == CopyState::Refused;
        if own && !refused && !replaces {
            return false;
        }
        foreign |= own || replaces || !(refused || state == CopyState::Failed && !filled);
    }
    foreign
}

impl DestinationOwners {
    /// From all mirror objects of the cluster, and what its Pods name.
    pub fn gather(holdings: &[MirrorObject<'_>], loops: &Loops, direct: &DirectUses, now: Timestamp) -> Self {
        let mut first: HashMap<u64, (usize, u32)> = HashMap::new();
        let mut meeting: HashSet<u64> = HashSet::new();
        let aims: Vec<Option<Aims<'_>>> = holdings
            .iter()
            .map(|holding| holding.policy.filter(|_| !holding.leaving).map(Aims::of))
            .collect();
        for (number, (holding, aims)) in holdings.iter().zip(&aims).enumerate() {
            visit(holding, aims.as_ref(), loops, |interest| {
                let here = (number, interest.number);
                if *first.entry(interest.fingerprint).or_insert(here) != here {
                    meeting.insert(interest.fingerprint);
                }
            });
        }
        drop(first);
        let mut claims = Self::default();
        if meeting.is_empty() {
            return claims;
        }
        let moment = Moment { direct, now };
        for (holding, aims) in holdings.iter().zip(&aims) {
            visit(holding, aims.as_ref(), loops, |interest| {
                if meeting.contains(&interest.fingerprint) {
                    claims.hear(holding, aims.as_ref(), &interest, moment);
                }
            });
        }
        claims
    }

    fn hear(
        &mut self,
        holding: &MirrorObject<'_>,
        aims: Option<&Aims<'_>>,
        interest: &Interest<'_>,
        moment: Moment<'_>,
    ) {
        let destination = interest.row.map(|row| row.destination.clone());
        let made = || aims?.get(interest.aim?)?.destination(interest.image.source).ok();
        let Some(destination) = destination.or_else(made) else { return };
        let claim = self.contested.entry(slot(&destination)).or_default();
        if let Some(row) = interest.row {
            claim.note(interest.image.source, row);
        }
        if holding.leaving {
            return;
        }
        let Some(Stance { wants, title }) = stance(aims, interest, moment) else { return };
        let (source, uid) = (interest.image.source, &holding.ledger.owner().uid);
        if wants {
            match &claim.wanted_by {
                None => claim.wanted_by = Some((Arc::clone(uid), source.clone())),
                Some((known, image)) => claim.wanted_by_several |= known != uid || image != source,
            }
        } else if interest.image.used.is_some() {
            claim.hopeful.push((Arc::clone(uid), source.clone()));
        }
        let Some(rank) = title else { return };
        let since = match (rank, interest.row) {
            (Rank::Wish | Rank::Idle | Rank::Former, _) | (_, None) => Timestamp::MAX,
            (_, Some(row)) => row.since,
        };
        claim.enter(Title {
            uncopyable: is_uncopyable(interest),
            scope: if holding.ledger.owner().namespace.is_some() {
                OwnerScope::Namespace
            } else {
                OwnerScope::Cluster
            },
            unused: interest.image.used.is_none()
                && interest
                    .row
                    .is_none_or(|row| moment.direct.by(&row.destination, row.written.iter()).is_none()),
            rank,
            since,
            // Spelled one way, so that it reads the same whichever of its spellings was there first.
            source: source.pulled(),
            // What a refused row knows is what its own copy would contain.
            digest: interest.row.filter(|_| rank < Rank::Promised).and_then(|row| row.digest),
            failing: interest.row.is_some_and(|row| row.state == CopyState::Failed),
        });
    }

    pub(super) fn at(&self, destination: &Reference) -> Option<&Claim> {
        if self.contested.is_empty() {
            return None;
        }
        self.contested.get(&slot(destination))
    }

    /// Whether a claim other than that of this image of this object keeps what is at a destination.
    pub(super) fn wanted_elsewhere(&self, uid: &str, source: &Reference, destination: &Reference) -> bool {
        self.at(destination).is_some_and(|claim| {
            let other = |(known, image): &(Arc<str>, Reference)| **known != *uid || image != source;
            let same = |image: &Reference| slot(destination).is_pinned() || same_source(image, source);
            claim.wanted_by_several
                || claim.wanted_by.as_ref().is_some_and(other)
                || claim.hopeful.iter().any(|one| other(one) && same(&one.1))
        })
    }
}

impl Claim {
    /// What a row says about the content of the destination, by any owner.
    fn note(&mut self, source: &Reference, row: &Copy) {
        let filled = row.digest.is_some() && row.state != CopyState::Refused;
        if (filled || !row.written.is_empty()) && !is_shared(row) && !row.replaces {
            let failing = row.state == CopyState::Failed;
            self.occupants.push(Occupant { source: source.pulled(), digest: row.digest, failing });
        }
        for digest in row.written.iter() {
            if self.written.len() < MAX_WRITTEN && !self.written.contains(&digest) {
                self.written.push(digest);
            }
        }
    }

    /// A source whose copy is there, and which is not this one nor has its content.
    pub(super) fn occupant(&self, source: &Reference, digest: Option<Digest>) -> Option<&Reference> {
        let other = |occupant: &&Occupant| {
            !same_source(&occupant.source, source) && (digest.is_none() || occupant.digest != digest)
        };
        // Its own copy may be there just as well; which of the two it is, the registry tells when it is copied.
        let own = self.occupants.iter().any(|occupant| same_source(&occupant.source, source));
        self.occupants.iter().find(other).filter(|_| !own).map(|occupant| &occupant.source)
    }

    /// What the destination contains for the source that owns it. An object that owns it without a Pod that uses the
    /// source makes no copy; another one may have made it.
    pub(super) fn content_of(&self, owner: &Title) -> Option<Digest> {
        let same = |occupant: &&Occupant| !occupant.failing && same_source(&occupant.source, &owner.source);
        let copied = || self.occupants.iter().filter(same).find_map(|occupant| occupant.digest);
        let copied = if owner.rank >= Rank::Idle { copied() } else { None };
        owner.digest.or(copied).filter(|_| !owner.failing)
    }

    /// Adds what was written there for any source: the owner of a destination cleans up what others have left.
    pub(super) fn bequeath(&self, row: &mut Copy) {
        let mut written = row.written.to_vec();
        for digest in &self.written {
            if written.len() < MAX_WRITTEN && !written.contains(digest) {
                written.insert(0, *digest);
            }
        }
        row.written = written.into();
    }

    fn enter(&mut self, title: Title) {
        let Some(known) = &mut self.owner else {
            self.owner = Some(title);
            return;
        };
        // An unused copy that another one has replaced is not told of that; it gives way by itself.
        let both_placed = [&*known, &title].iter().all(|one| one.rank == Rank::Placed && !one.unused);
        self.overwritten |=
            both_placed && known.digest != title.digest && !same_source(&known.source, &title.source);
        if title < *known {
            *known = title;
        }
    }
}

impl Title {
    /// Its copy is at the destination.
    pub(super) fn is_placed(&self) -> bool {
        self.rank == Rank::Placed
    }
}

/// What an interest amounts to: whether it keeps the copy from being deleted, and what it gives a title by.
struct Stance {
    wants: bool,
    title: Option<Rank>,
}

/// `None`: it is no interest after all.
fn stance(aims: Option<&Aims<'_>>, interest: &Interest<'_>, moment: Moment<'_>) -> Option<Stance> {
    let state = interest.row.map(|row| row.state);
    let in_place = !matches!(state, Some(CopyState::Refused | CopyState::Deleting));
    let in_use = interest.image.used.is_some();
    let Some(aims) = aims else {
        return in_place.then_some(Stance { wants: true, title: None });
    };
    let Some(aim) = interest.aim.and_then(|position| aims.get(position)) else {
        // It may belong to a mirror that does not work just now.
        let stays = !aims.policy.problems().is_empty();
        return (in_place && stays).then_some(Stance { wants: true, title: None });
    };
    if !in_use {
        let row = interest.row?;
        let held = moment.direct.by(&row.destination, row.written.iter()).is_some();
        let gone_at = aim.gone_at(Aims::unused_since(&interest.image, moment.now), row);
        let over = !held && gone_at.is_some_and(|time| time <= moment.now);
        // A mirror that was removed and is back has its copies back.
        let kept = row.kept.as_deref().is_some_and(|why| why != MIRROR_REMOVED);
        if row.is_unmade() || kept || over {
            return None;
        }
    }
    let rank = interest.row.map_or(Rank::Wish, |row| rank(row, in_use));
    // What cannot be copied waits for the place in vain.
    let wants = rank <= Rank::Shared || rank != Rank::Former && !is_uncopyable(interest);
    Some(Stance { wants, title: Some(rank) })
}

fn is_uncopyable(interest: &Interest<'_>) -> bool {
    interest.image.entry.is_some_and(|entry| entry.uncopyable)
}

fn rank(row: &Copy, in_use: bool) -> Rank {
    match row.state {
        CopyState::Mirrored if is_shared(row) => Rank::Shared,
        CopyState::Mirrored => Rank::Placed,
        CopyState::Refused if !in_use => Rank::Former,
        _ if !in_use => Rank::Idle,
        CopyState::Refused => Rank::Wish,
        CopyState::Pending | CopyState::Failed | CopyState::Deleting if row.digest.is_some() => Rank::Known,
        CopyState::Pending | CopyState::Failed | CopyState::Deleting => Rank::Promised,
    }
}

/// Every interest of an object: its rows, and the rows that it is about to have.
fn visit<'a>(
    holding: &MirrorObject<'a>,
    aims: Option<&Aims<'a>>,
    loops: &Loops,
    mut tell: impl FnMut(Interest<'a>),
) {
    for (number, image) in (0..).zip(join(holding.ledger, holding.used)) {
        let mut met = 0_u64;
        for row in image.entry.into_iter().flat_map(|entry| &entry.copies) {
            let aim = aims.and_then(|aims| aims.position(image.source, &row.destination));
            met |= aim.map_or(0, |position| 1 << position);
            let fingerprint = fingerprint(&row.destination);
            tell(Interest { image, number, aim, row: Some(row), fingerprint });
        }
        let Some(aims) = aims else { continue };
        let missing = |(position, _): &(usize, _)| met & (1 << position) == 0;
        let mut missing = aims.iter().enumerate().filter(missing).peekable();
        if missing.peek().is_some() && aims.wants(&image, loops) {
            for (position, aim) in missing {
                let fingerprint = aim.fingerprint(image.source);
                tell(Interest { image, number, aim: Some(position), row: None, fingerprint });
            }
        }
    }
}
