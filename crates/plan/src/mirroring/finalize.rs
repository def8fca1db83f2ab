//! What becomes of the copies when their object is deleted.

use std::collections::HashSet;

use fairlead_api::fairlead::CopyState;
use fairlead_domain::reference::Reference;
use jiff::{SignedDuration, Timestamp};

use super::{
    claims::DestinationOwners,
    destination_key::suffix,
    reconcile::enter,
    removal::{Candidate, Provenance, Veto, may_delete},
    report::copies,
    targets::Aims,
    tasks::{Task, Work},
    whole_seconds,
};
use crate::ledger::{Entry, Ledger, LedgerChange};
use crate::routing::Policy;
use crate::usage::DirectUses;
use crate::usage_list::Withheld;

/// How long the deletion of an object waits for its copies to be deleted. A Secret that is gone or a registry that is
/// down must not hold it up for ever.
pub const GIVE_UP: SignedDuration = SignedDuration::from_mins(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finalization {
    /// Copies are still to be deleted; the object waits for that, at most until then.
    /// `lists_wanted`: some of them wait until the usage lists of other clusters were read.
    Clean { tasks: Vec<Task>, lists_wanted: bool, until: Timestamp, why: String },
    /// The object may go. `left` says which copies should have been deleted and were not, and why.
    Done { left: Option<String> },
}

/// Whether an object is to be held by the finalizer: its copies are to be removed with it, and no longer. `busy`: what
/// is under way may still write something, which is then to be deleted with the rest.
pub fn wants_finalizer(
    held: bool,
    busy: bool,
    finalization: Option<&Finalization>,
    policy: Option<&Policy>,
) -> bool {
    match (finalization, policy) {
        (Some(finalization), _) => held && (busy || !matches!(finalization, Finalization::Done { .. })),
        (None, Some(policy)) => policy.targets().iter().any(|target| target.cleanup.is_some()),
        (None, None) => held,
    }
}

/// What the end of an object depends on.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "a function has no form to print")]
pub struct DeletedMirror<'a> {
    /// `None` while the object is invalid: it is not known then what was to be cleaned up, so everything stays.
    pub policy: Option<&'a Policy>,
    /// In these the object is leaving.
    pub claims: &'a DestinationOwners,
    pub direct: &'a DirectUses,
    /// What the usage lists of other clusters say about a copy.
    pub other_clusters: &'a dyn Fn(&Reference) -> Result<(), Withheld>,
    /// When the object was deleted.
    pub deletion: Timestamp,
    /// Since when this replica has been trying to delete its copies.
    pub tried_since: Timestamp,
    /// Why deletions of copies do not succeed at the moment.
    pub failing: Option<&'a str>,
    pub now: Timestamp,
}

/// Copies go with their object only where clean-up is enabled; retention is not waited for then. What other objects and
/// other clusters need stays, and so does what a Pod names and what Fairlead did not write.
/// What becomes of the object's rows is returned as well.
pub fn finalization(ledger: &Ledger, leaving: &DeletedMirror<'_>) -> (Finalization, Vec<LedgerChange>) {
    let DeletedMirror { policy, deletion, tried_since, failing, now, .. } = *leaving;
    let Some(policy) = policy else {
        return (Finalization::Done { left: None }, Vec::new());
    };
    let doomed = doomed(ledger, policy, leaving);
    let after = |time: Timestamp| time.checked_add(GIVE_UP).unwrap_or(Timestamp::MAX);
    // What was not tried, because no replica led for all that time, is not given up.
    let until = if failing.is_some() { after(deletion) } else { after(tried_since.max(deletion)) };
    if doomed.is_empty() || until <= now {
        return (Finalization::Done { left: left(&doomed, failing) }, Vec::new());
    }
    let Doomed { mut tasks, changes, unread, .. } = doomed;
    let count = tasks.len() + unread;
    let copies = if count == 1 { "copy is" } else { "copies are" };
    let why = match failing {
        None => format!("{count} {copies} still to be deleted"),
        Some(failing) => {
            format!("{count} {copies} still to be deleted, and left where they are after {until}: {failing}")
        }
    };
    let mut known = HashSet::new();
    tasks.retain(|task| {
        known.insert((task.destination.place().into_owned(), suffix(&task.destination).to_owned()))
    });
    (Finalization::Clean { tasks, lists_wanted: unread > 0, until, why }, changes)
}

/// What is to go with an object.
#[derive(Default)]
struct Doomed {
    tasks: Vec<Task>,
    /// Rows that are to be deleted from now on.
    changes: Vec<LedgerChange>,
    /// Copies that stay because Pods name them.
    named: Kept,
    /// Copies that stay because of other clusters.
    withheld: Kept,
    /// Copies of which it is not known yet whether other clusters use them.
    unread: usize,
}

/// Copies that stay: how many, and of the first its name and the reason.
#[derive(Default)]
struct Kept {
    first: Option<(Reference, String)>,
    count: usize,
}

impl Kept {
    fn add(&mut self, copy: &Reference, why: impl FnOnce() -> String) {
        self.count += 1;
        self.first.get_or_insert_with(|| (copy.clone(), why()));
    }

    fn tell(&self, because: &str) -> Option<String> {
        let (copy, why) = self.first.as_ref()?;
        Some(format!("{} stay because {because}, the first {copy}: {why}", copies(self.count)))
    }
}

impl Doomed {
    fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.unread == 0
    }
}

fn doomed(ledger: &Ledger, policy: &Policy, leaving: &DeletedMirror<'_>) -> Doomed {
    let DeletedMirror { claims, direct, other_clusters, now, .. } = *leaving;
    let aims = Aims::of(policy);
    let mut doomed = Doomed::default();
    for (source, entry) in ledger.iter() {
        let mut changed: Option<Entry> = None;
        for (position, copy) in entry.copies.iter().enumerate().filter(|(_, copy)| copy.kept.is_none()) {
            let aim = aims.position(source, &copy.destination).and_then(|position| aims.get(position));
            let other_clusters = other_clusters(&copy.destination);
            let candidate = Candidate {
                provenance: Provenance::of(copy),
                due: aim.filter(|aim| aim.cleans_up()).map(|_| Timestamp::MIN),
                named_by: direct.by(&copy.destination, copy.written.iter()),
                wanted_elsewhere: claims.wanted_elsewhere(&ledger.owner().uid, source, &copy.destination),
                other_clusters: &other_clusters,
                now,
            };
            let work = match may_delete(&candidate) {
                Ok(()) => Work::Delete,
                Err(Veto::NotIdentified) => Work::Identify,
                Err(Veto::Named { pod }) if !copy.written.is_empty() => {
                    doomed.named.add(&copy.destination, || format!("Pod {pod}"));
                    continue;
                }
                Err(Veto::OtherCluster(Withheld::NotRead)) => {
                    doomed.unread += 1;
                    continue;
                }
                Err(Veto::OtherCluster(withheld)) => {
                    doomed.withheld.add(&copy.destination, || withheld.to_string());
                    continue;
                }
                Err(_) => continue,
            };
            if work == Work::Delete && copy.state != CopyState::Deleting {
                let changed = changed.get_or_insert_with(|| entry.clone());
                if let Some(row) = changed.copies.get_mut(position) {
                    enter(row, CopyState::Deleting, whole_seconds(now));
                }
            }
            let (source, destination) = (source.clone(), copy.destination.clone());
            doomed.tasks.push(Task { source, destination, work });
        }
        doomed.changes.extend(changed.map(|entry| LedgerChange::set(source, entry)));
    }
    doomed
}

fn left(doomed: &Doomed, failing: Option<&str>) -> Option<String> {
    let given_up = doomed.tasks.first().map(|task| {
        let why = failing.unwrap_or("there was no time");
        format!("{} could not be deleted, the first {}: {why}", copies(doomed.tasks.len()), task.destination)
    });
    let unread = (doomed.unread > 0)
        .then(|| format!("{} stay because no usage list could be read in time", copies(doomed.unread)));
    let named = doomed.named.tell("Pods name them");
    let withheld = doomed.withheld.tell("of other clusters");
    let told: Vec<String> = [given_up, unread, named, withheld].into_iter().flatten().collect();
    (!told.is_empty()).then(|| told.join("; "))
}
