//! Brings a ledger in line with what Pods use and what the policy says.

use std::collections::BTreeMap;
use std::fmt;

use fairlead_api::fairlead::CopyState;
use fairlead_api::kuik::MAX_MIRRORS;
use fairlead_domain::reference::Reference;
use jiff::Timestamp;

use super::claims::{Claim, DestinationOwners, Title};
use super::destination_key::slot;
use super::join::{Joined, join};
use super::loops::Loops;
use super::removal::{Candidate, Provenance, Veto, may_delete};
use super::targets::Aims;
use super::{is_shared, same_source, shortened, whole_seconds};
use crate::ledger::{Copy, Entry, Ledger, LedgerChange, Named, storable};
use crate::routing::Policy;
use crate::usage::{DirectUses, Used};
use crate::usage_list::Withheld;

/// Problems that a status lists in full; there may be one for every image.
const MOST_PROBLEMS: usize = 20;

/// Why a copy stays that is on a mirror which the object no longer names.
pub(super) const MIRROR_REMOVED: &str = "the object no longer names its mirror";

/// What one object's ledger is brought in line with.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub policy: &'a Policy,
    /// The images in use that the policy selects, in order.
    pub used: &'a [Used],
    pub loops: &'a Loops,
    /// Over all objects, this one included, gathered from the same state.
    pub claims: &'a DestinationOwners,
    /// What Pods name as their images.
    pub direct: &'a DirectUses,
    /// What the usage lists of other clusters say about a copy.
    pub other_clusters: &'a dyn Fn(&Reference) -> Result<(), Withheld>,
    /// Whether two sources are declared to be the same image.
    pub replicas: &'a dyn Fn(&Reference, &Reference) -> bool,
    pub now: Timestamp,
}

impl fmt::Debug for Inputs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, used, now, .. } = self;
        let mut shown = f.debug_struct("Inputs");
        shown
            .field("policy", policy.id())
            .field("used", &used.len())
            .field("now", now)
            .finish_non_exhaustive()
    }
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reconciled {
    /// What brings the ledger in line.
    pub changes: Vec<LedgerChange>,
    /// When the next retention ends.
    pub next: Option<Timestamp>,
    /// Copies that are not made because another source owns their destination, or because its copy is still in use
    /// there.
    pub refused: Vec<RefusedCopy>,
    /// Images that cannot be copied to a mirror at all, and why; the first of them.
    pub problems: Vec<String>,
    /// Copies that are not deleted because of other clusters, by the reason.
    pub withheld: BTreeMap<String, usize>,
    /// Deletions wait until the usage lists of other clusters were read.
    pub lists_wanted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCopy {
    pub source: Reference,
    pub destination: Reference,
    /// What is true of the destination, as a sentence goes on that has named it.
    pub why: Box<str>,
}

/// One round for one object. A second round, after its changes, changes nothing.
pub fn reconcile(ledger: &Ledger, inputs: &Inputs<'_>) -> Reconciled {
    let inputs = Inputs { now: whole_seconds(inputs.now), ..*inputs };
    let mut round = Round {
        inputs,
        aims: Aims::of(inputs.policy),
        uid: &ledger.owner().uid,
        outcome: Reconciled::default(),
        rows: Vec::new(),
    };
    for image in join(ledger, inputs.used) {
        let change = round.image(&image);
        round.outcome.changes.extend(change);
    }
    round.outcome
}

struct Round<'a> {
    inputs: Inputs<'a>,
    aims: Aims<'a>,
    uid: &'a str,
    outcome: Reconciled,
    /// The rows of the image at hand as they are to be. Kept between images for its memory: most images do not change.
    rows: Vec<Copy>,
}

impl Round<'_> {
    fn image(&mut self, image: &Joined<'_>) -> Option<LedgerChange> {
        let in_use = image.used.is_some();
        let unused_since = (!in_use).then(|| Aims::unused_since(image, self.inputs.now));
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        let wanted = self.wanted_rows(image, unused_since, &mut rows);
        self.orphans(image, &mut rows);
        let change = match image.entry {
            None if wanted => {
                let entry = Entry { copies: std::mem::take(&mut rows), ..Entry::default() };
                Some(LedgerChange::set(image.source, entry))
            }
            Some(_) if rows.is_empty() && !wanted => Some(LedgerChange::remove(image.source)),
            Some(entry) if entry.unused_since != unused_since || entry.copies != rows => {
                let entry = Entry {
                    source_digest: entry.source_digest,
                    unused_since,
                    uncopyable: entry.uncopyable,
                    access: entry.access.clone(),
                    copies: std::mem::take(&mut rows),
                    watch: entry.watch.clone(),
                };
                Some(LedgerChange::set(image.source, entry))
            }
            _ => None,
        };
        self.rows = rows;
        change
    }

    /// The rows of mirrors that the policy has. Returns whether the image has an entry even without any.
    fn wanted_rows(
        &mut self,
        image: &Joined<'_>,
        unused_since: Option<Timestamp>,
        rows: &mut Vec<Copy>,
    ) -> bool {
        let mut met = 0_u64;
        for row in image.entry.into_iter().flat_map(|entry| &entry.copies) {
            let Some(position) = self.aims.position(image.source, &row.destination) else { continue };
            if met & (1 << position) != 0 {
                continue;
            }
            met |= 1 << position;
            rows.extend(match unused_since {
                None => Some(self.used_row(image.source, row.clone())),
                Some(since) => self.unused_row(image.source, row, position, since),
            });
        }
        let complete = met.count_ones() as usize == self.aims.len();
        if complete && !rows.is_empty() {
            return true;
        }
        if !self.aims.wants(image, self.inputs.loops) {
            return false;
        }
        if !storable(image.source) {
            self.problem(|| format!("{} cannot be copied: no registry has that name", image.source));
            return false;
        }
        for position in 0..self.aims.len() {
            if met & (1 << position) == 0 && rows.len() < MAX_MIRRORS {
                self.new_row(image.source, position, rows);
            }
        }
        true
    }

    fn new_row(&mut self, source: &Reference, position: usize, rows: &mut Vec<Copy>) {
        let Some(made) = self.aims.get(position).map(|aim| aim.destination(source)) else { return };
        match made {
            Ok(destination) if !storable(&destination) => {
                self.problem(|| {
                    format!("{source} cannot be copied to {destination}: no registry takes that name")
                });
            }
            Ok(destination) => {
                if rows.iter().all(|row| !row.destination.is_same_image(&destination)) {
                    rows.push(self.used_row(source, Copy::pending(destination, self.inputs.now)));
                }
            }
            Err(error) => self.problem(|| error.to_string()),
        }
    }

    /// A row of an image in use.
    fn used_row(&mut self, source: &Reference, mut row: Copy) -> Copy {
        let now = self.inputs.now;
        row.named = None;
        if row.kept.take().is_some() {
            enter(&mut row, CopyState::Pending, now);
        }
        let claim = self.inputs.claims.at(&row.destination);
        match self.relation(source, &row, claim) {
            Relation::Own { overwritten } => self.own_row(source, &mut row, claim, overwritten),
            // Replicas may differ in content. One of them is copied and serves the others, or they would overwrite each
            // other for ever; only while that one fails does another try its luck.
            Relation::Replica(owner) => match claim.and_then(|claim| claim.content_of(owner)) {
                Some(digest) => {
                    row.digest = Some(digest);
                    let source = &owner.source;
                    share(
                        &mut row,
                        &format!("the copy of {source}, which is declared to be the same image"),
                        now,
                    );
                }
                None if matches!(row.state, CopyState::Refused | CopyState::Deleting) || is_shared(&row) => {
                    row.digest = None;
                    enter(&mut row, CopyState::Pending, now);
                }
                None => {}
            },
            Relation::Equal(owner) => {
                share(&mut row, &format!("the copy of {}, which has the same digest", owner.source), now);
            }
            Relation::Other(owner) => {
                let why =
                    format!("belongs to {}: copy one of the two elsewhere, or leave one out", owner.source);
                row.replaces |= owner.is_placed();
                self.refuse(source, &mut row, &why);
            }
        }
        row
    }

    /// A row whose source owns the destination.
    fn own_row(&mut self, source: &Reference, row: &mut Copy, claim: Option<&Claim>, overwritten: bool) {
        let now = self.inputs.now;
        if let Some(claim) = claim {
            claim.bequeath(row);
        }
        if row.state != CopyState::Mirrored || is_shared(row) {
            let pinned = slot(&row.destination).is_pinned();
            let occupant = claim.filter(|_| !pinned).and_then(|claim| claim.occupant(source, row.digest));
            let occupant = occupant.filter(|other| !(self.inputs.replicas)(other, source));
            row.replaces |= occupant.is_some();
            // A Pod that restarts would find another image under the name that it was given.
            if let Some(pod) = self.inputs.direct.by(&row.destination, []).filter(|_| row.replaces) {
                let whose = occupant.map_or_else(|| "another image".to_owned(), ToString::to_string);
                let why =
                    format!("holds the copy of {whose} for Pod {pod}: it is replaced when no Pod names it");
                self.refuse(source, row, &why);
                return;
            }
        }
        match row.state {
            // What a refused row knows is what its copy would contain, not what is there.
            CopyState::Refused => {
                row.digest = None;
                enter(row, CopyState::Pending, now);
            }
            CopyState::Deleting => enter(row, CopyState::Pending, now),
            CopyState::Mirrored if is_shared(row) || overwritten => enter(row, CopyState::Pending, now),
            CopyState::Mirrored | CopyState::Pending | CopyState::Failed => {}
        }
    }

    fn refuse(&mut self, source: &Reference, row: &mut Copy, why: &str) {
        if row.state != CopyState::Refused {
            row.digest = None;
            row.adopted = false;
            enter(row, CopyState::Refused, self.inputs.now);
        }
        let why = shortened(why);
        row.last_error = Some(why.clone());
        let (source, destination) = (source.clone(), row.destination.clone());
        self.outcome.refused.push(RefusedCopy { source, destination, why });
    }

    /// A row of an image that no Pod uses; `None`: there is nothing to remember.
    fn unused_row(
        &mut self,
        source: &Reference,
        row: &Copy,
        position: usize,
        unused_since: Timestamp,
    ) -> Option<Copy> {
        let now = self.inputs.now;
        let aim = self.aims.get(position)?;
        let mut row = row.clone();
        if row.kept.as_deref() == Some(MIRROR_REMOVED) {
            row.kept = None;
        }
        if row.kept.is_some() {
            return Some(row);
        }
        if row.is_unmade() {
            return None;
        }
        if let Relation::Other(owner) = self.relation(source, &row, self.inputs.claims.at(&row.destination))
            && !owner.uncopyable
        {
            // What is there is this copy until the owner has made its own.
            if row.state == CopyState::Deleting {
                enter(&mut row, CopyState::Pending, now);
            }
            return (!owner.is_placed()).then_some(row);
        }
        let named_by = self.inputs.direct.by(&row.destination, row.written.iter());
        row.named = match (named_by, row.named) {
            _ if !aim.cleans_up() => None,
            (Some(_), _) => Some(Named::Now),
            (None, Some(Named::Now)) => Some(Named::Until(now)),
            (None, known) => known,
        };
        let due = aim.gone_at(unused_since, &row);
        let is_due = due.is_some_and(|due| due <= now);
        let other_clusters = if is_due { (self.inputs.other_clusters)(&row.destination) } else { Ok(()) };
        let candidate = Candidate {
            provenance: Provenance::of(&row),
            due,
            named_by,
            wanted_elsewhere: self.inputs.claims.wanted_elsewhere(self.uid, source, &row.destination),
            other_clusters: &other_clusters,
            now,
        };
        match may_delete(&candidate) {
            Ok(()) => {
                if row.state != CopyState::Deleting {
                    enter(&mut row, CopyState::Deleting, now);
                }
                return Some(row);
            }
            // The object that claims it cleans it up.
            Err(Veto::WantedElsewhere) => return None,
            Err(veto @ (Veto::NotWritten | Veto::Changed { .. })) => {
                row.kept = Some(shortened(&veto.to_string()));
                return (row.state == CopyState::Mirrored).then_some(row);
            }
            Err(Veto::Retained { until }) => {
                self.outcome.next = Some(self.outcome.next.map_or(until, |next| next.min(until)));
            }
            Err(Veto::OtherCluster(Withheld::NotRead)) => self.outcome.lists_wanted = true,
            Err(Veto::OtherCluster(withheld)) => {
                *self.outcome.withheld.entry(withheld.to_string()).or_default() += 1;
            }
            // What only the executor finds out is no matter of planning.
            Err(
                Veto::CleanupOff
                | Veto::Named { .. }
                | Veto::NotIdentified
                | Veto::DigestNeeded
                | Veto::Tagged { .. }
                | Veto::TagsUnknown,
            ) => {}
        }
        if matches!(row.state, CopyState::Deleting | CopyState::Refused) {
            row.digest = row.digest.filter(|_| row.state == CopyState::Deleting);
            enter(&mut row, CopyState::Pending, now);
        }
        Some(row)
    }

    /// Rows of mirrors that the policy no longer has: the copies stay, and are listed.
    fn orphans(&mut self, image: &Joined<'_>, rows: &mut Vec<Copy>) {
        let broken = !self.inputs.policy.problems().is_empty();
        for row in image.entry.into_iter().flat_map(|entry| &entry.copies) {
            if self.aims.position(image.source, &row.destination).is_some() {
                continue;
            }
            let mut row = row.clone();
            // It may belong to the entry that does not work just now.
            if broken || row.kept.is_some() {
                rows.push(row);
            } else if !row.is_unmade() {
                row.kept = Some(MIRROR_REMOVED.into());
                row.named = None;
                if row.state != CopyState::Mirrored {
                    row.digest = row.written.last();
                    enter(&mut row, CopyState::Mirrored, self.inputs.now);
                }
                rows.push(row);
            }
        }
    }

    fn relation<'c>(&self, source: &Reference, row: &Copy, claim: Option<&'c Claim>) -> Relation<'c> {
        let Some((claim, owner)) = claim.and_then(|claim| Some((claim, claim.owner.as_ref()?))) else {
            return Relation::Own { overwritten: false };
        };
        if same_source(&owner.source, source) || slot(&row.destination).is_pinned() {
            Relation::Own { overwritten: claim.overwritten }
        } else if (self.inputs.replicas)(&owner.source, source) {
            Relation::Replica(owner)
        } else if row.digest.is_some() && row.digest == owner.digest {
            Relation::Equal(owner)
        } else {
            Relation::Other(owner)
        }
    }

    fn problem(&mut self, say: impl FnOnce() -> String) {
        if self.outcome.problems.len() < MOST_PROBLEMS {
            self.outcome.problems.push(say());
        }
    }
}

/// What a row is to the owner of its destination.
enum Relation<'c> {
    /// The same source, or there is no other claim.
    Own {
        overwritten: bool,
    },
    /// Declared to be the same image.
    Replica(&'c Title),
    /// Another image with the same content.
    Equal(&'c Title),
    Other(&'c Title),
}

pub(super) fn enter(row: &mut Copy, state: CopyState, now: Timestamp) {
    (row.state, row.since, row.last_error) = (state, now, None);
}

/// The destination has what the row needs, by another source's copy.
fn share(row: &mut Copy, by: &str, now: Timestamp) {
    if row.state != CopyState::Mirrored {
        enter(row, CopyState::Mirrored, now);
    }
    row.last_error = Some(shortened(by));
}
