//! Who owns a destination that more than one source or object is interested in.
//!
//! The host of a source is not part of its destination, so two registries' images can meet in one place. One of them owns
//! it: the one that the ledgers say, else the first in lexical order. Nearly all destinations interest one image of one
//! object only, and of those nothing is kept: a first pass over all ledgers finds the others by fingerprint, a second
//! judges them.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use fairlead_api::fairlead::CopyState;
use fairlead_domain::{digest::Digest, reference::Reference};
use jiff::Timestamp;

use super::{
    aims::Aims,
    is_shared,
    join::{Joined, join},
    loops::Loops,
    same_source,
    slot::{Slot, fingerprint, slot},
};
use crate::{
    ledger::{Copy, Ledger},
    routing::Policy,
    usage::Used,
};

/// What is known of one mirror object.
#[derive(Debug, Clone, Copy)]
pub struct Holding<'a> {
    pub ledger: &'a Ledger,
    /// `None` while the object makes no sense. Nobody vouches for its rows then: they own nothing, but what they name is not
    /// deleted either.
    pub policy: Option<&'a Policy>,
    /// The images in use that it selects, in order.
    pub used: &'a [Used],
    /// It is being deleted: it claims nothing any more, and asks only what others need of its copies.
    pub leaving: bool,
}

/// Destinations that more than one image or object is interested in.
#[derive(Debug, Default)]
pub struct Claims {
    contested: HashMap<Slot, Claim>,
}

#[derive(Debug)]
pub(super) struct Claim {
    pub(super) owner: Option<Title>,
    /// Two sources each believe that their own content is there.
    pub(super) overwritten: bool,
    /// Whoever wants the copy to stay: one of them, and whether there are others.
    wanted_by: Option<(Arc<str>, Reference)>,
    wanted_by_several: bool,
}

/// What makes a source the owner. The least of all titles counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Title {
    rank: Rank,
    since: Timestamp,
    pub(super) source: Reference,
    /// What the destination is to contain, once that is known.
    pub(super) digest: Option<Digest>,
    /// The last attempt to copy it failed.
    pub(super) failing: bool,
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

/// Whether a destination belongs to other sources only, so that what is there must not be taken for a copy of this one.
/// `rows` are those that ledgers have about it: whether a row is of this source, and its state. Where nobody claims it,
/// nobody is refused.
pub fn is_foreign(rows: impl IntoIterator<Item = (bool, CopyState)>) -> bool {
    let mut claims = rows.into_iter().filter(|(_, state)| *state != CopyState::Refused).peekable();
    claims.peek().is_some() && claims.all(|(own, _)| !own)
}

impl Claims {
    /// From all mirror objects of the cluster.
    pub fn gather(holdings: &[Holding<'_>], loops: &Loops, now: Timestamp) -> Self {
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
        for (holding, aims) in holdings.iter().zip(&aims).filter(|(holding, _)| !holding.leaving) {
            visit(holding, aims.as_ref(), loops, |interest| {
                if meeting.contains(&interest.fingerprint) {
                    claims.hear(&holding.ledger.owner().uid, aims.as_ref(), &interest, now);
                }
            });
        }
        claims
    }

    fn hear(&mut self, uid: &Arc<str>, aims: Option<&Aims<'_>>, interest: &Interest<'_>, now: Timestamp) {
        let Some((wants, rank)) = stance(aims, interest, now) else { return };
        let destination = interest.row.map(|row| row.destination.clone());
        let made = || aims?.get(interest.aim?)?.destination(interest.image.source).ok();
        let Some(destination) = destination.or_else(made) else { return };
        let claim = self.contested.entry(slot(&destination)).or_insert_with(|| Claim {
            owner: None,
            overwritten: false,
            wanted_by: None,
            wanted_by_several: false,
        });
        let source = interest.image.source;
        if wants {
            match &claim.wanted_by {
                None => claim.wanted_by = Some((Arc::clone(uid), source.clone())),
                Some((known, image)) => claim.wanted_by_several |= known != uid || image != source,
            }
        }
        let Some(rank) = rank else { return };
        let since = match (rank, interest.row) {
            (Rank::Wish | Rank::Idle, _) | (_, None) => Timestamp::MAX,
            (_, Some(row)) => row.since,
        };
        // What a refused row knows is what its own copy would contain.
        let digest = interest.row.filter(|_| rank < Rank::Promised).and_then(|row| row.digest);
        let failing = interest.row.is_some_and(|row| row.state == CopyState::Failed);
        // Spelled one way, so that it reads the same whichever of its spellings was there first.
        claim.enter(Title { rank, since, source: source.pulled(), digest, failing });
    }

    pub(super) fn at(&self, destination: &Reference) -> Option<&Claim> {
        if self.contested.is_empty() {
            return None;
        }
        self.contested.get(&slot(destination))
    }

    /// Whether anybody but this image of this object wants what is at a destination to stay.
    pub(super) fn wanted_elsewhere(&self, uid: &str, source: &Reference, destination: &Reference) -> bool {
        self.at(destination).is_some_and(|claim| {
            let first = claim.wanted_by.as_ref();
            claim.wanted_by_several || first.is_some_and(|(known, image)| &**known != uid || image != source)
        })
    }
}

impl Claim {
    fn enter(&mut self, title: Title) {
        let Some(known) = &mut self.owner else {
            self.owner = Some(title);
            return;
        };
        let both_placed = known.rank == Rank::Placed && title.rank == Rank::Placed;
        self.overwritten |=
            both_placed && known.digest != title.digest && !same_source(&known.source, &title.source);
        if title < *known {
            *known = title;
        }
    }
}

/// Whether an interest keeps the copy from being deleted, and what it gives a title by. `None`: it is none after all.
fn stance(aims: Option<&Aims<'_>>, interest: &Interest<'_>, now: Timestamp) -> Option<(bool, Option<Rank>)> {
    let state = interest.row.map(|row| row.state);
    let in_place = !matches!(state, Some(CopyState::Refused | CopyState::Deleting));
    let in_use = interest.image.used.is_some();
    let Some(aims) = aims else {
        return in_place.then_some((true, None));
    };
    let Some(aim) = interest.aim.and_then(|position| aims.get(position)) else {
        let policy = aims.policy;
        let stays = !policy.problems().is_empty() || (in_use && policy.cleanup().is_some());
        return (in_place && stays).then_some((true, None));
    };
    if !in_use {
        let gone_at = aim.gone_at(aims.unused_since(&interest.image, now));
        if state == Some(CopyState::Refused) || gone_at.is_some_and(|time| time <= now) {
            return None;
        }
    }
    Some((true, Some(interest.row.map_or(Rank::Wish, |row| rank(row, in_use)))))
}

fn rank(row: &Copy, in_use: bool) -> Rank {
    match row.state {
        CopyState::Mirrored if is_shared(row) => Rank::Shared,
        CopyState::Mirrored => Rank::Placed,
        _ if !in_use => Rank::Idle,
        CopyState::Refused => Rank::Wish,
        CopyState::Pending | CopyState::Failed | CopyState::Deleting if row.digest.is_some() => Rank::Known,
        CopyState::Pending | CopyState::Failed | CopyState::Deleting => Rank::Promised,
    }
}

/// Every interest of an object: its rows, and the rows that it is about to have.
fn visit<'a>(
    holding: &Holding<'a>,
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
