//! What to do about copies, from what is known of policies, Pods and the copies themselves.
//!
//! Three rules matter more than tidiness. A Secret that is not marked as a copy is never touched. A copy that another
//! replica has just made for a Pod that is not visible yet is not removed. And where it cannot be told whether a policy
//! still exists, nothing is removed for its sake.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::copy_name;
use crate::certificates::WallTime;
use crate::routing::{PolicyId, SecretName, SecretUse};

/// A copy that no Pod uses stays this long after it was last applied. Admission applies it again before it is a third
/// of that old and believes in it for another third; the last one is for the Pod to become visible.
pub const GRACE: Duration = Duration::from_mins(30);

/// A copy in use is looked at again after this time, in case it was changed or removed.
pub const VERIFY_AFTER: Duration = Duration::from_mins(10);

/// Replicas learn of a policy's change at slightly different times; until then one may still make what another removes.
const POLICY_GRACE: Duration = Duration::from_mins(1);

/// A name that is taken is looked at again sooner: its owner may have read the condition and made room.
const FOREIGN_AFTER: Duration = Duration::from_mins(1);

/// All namespaces are searched for copies that no Pod leads to, at the beginning and then this often.
const SEARCH_EVERY: Duration = Duration::from_hours(6);

/// Where a copy is, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyPlace {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl std::fmt::Display for CopyPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Tells contents of Secrets apart, without telling anything about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Content(pub [u8; 32]);

/// A cluster-scoped policy as far as its Secrets are concerned.
#[derive(Debug, Clone)]
pub struct Owner {
    pub id: Arc<PolicyId>,
    pub secrets: BTreeSet<SecretName>,
    /// Since when it has been seen to be under deletion.
    pub deleting_since: Option<WallTime>,
}

/// What is known of a Secret that a policy names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceSecret {
    Has(Content),
    /// It is missing, cannot be read, or holds no registry credentials. Copies stay as they are.
    Unusable,
}

/// A copy as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    pub owner_uid: Arc<str>,
    pub uid: String,
    pub resource_version: String,
    /// When it was last applied, or else created.
    pub applied_at: WallTime,
    /// `None` if only its metadata was looked at.
    pub content: Option<Content>,
    /// Whether it carries all our marks: kube-image-keeper's copies have no owner reference, and earlier copies for a
    /// `ProxyCache` one that leads nowhere.
    pub complete: bool,
}

/// What was found at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundSecret {
    Nothing,
    Copy(Copy),
    /// A foreign Secret.
    Foreign,
}

/// Whether the webhook's selector covers a namespace, and so whether copies may be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    Covered,
    LeftOut,
    /// The labels of the namespace or the selector are not known. Nothing new is made, and nothing is removed.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    pub found: FoundSecret,
    pub at: WallTime,
}

/// Everything that the plan depends on.
#[derive(Debug)]
pub struct View<'a> {
    /// Every cluster-scoped policy there is.
    pub owners: &'a [Owner],
    /// UIDs of policies that are there and cannot be read.
    pub unreadable: &'a BTreeSet<Arc<str>>,
    /// Places that Pods name among their pull secrets, as far as they may be copies.
    pub used: &'a BTreeSet<CopyPlace>,
    pub sources: &'a BTreeMap<SecretName, SourceSecret>,
    pub sightings: &'a BTreeMap<CopyPlace, Sighting>,
    /// Names of copies that were looked for in all namespaces, and when that began.
    pub searched: &'a BTreeMap<Arc<str>, WallTime>,
    /// By namespace. One that is missing is unknown.
    pub selection: &'a BTreeMap<Arc<str>, Selection>,
    pub now: WallTime,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Look what is at the place.
    Look { place: CopyPlace },
    /// Make the copy, or give it the content and the marks that it should have.
    Apply { place: CopyPlace, of: SecretUse, why: &'static str },
    /// Remove the copy, if it is still as it was seen.
    Delete { place: CopyPlace, copy: Copy, why: &'static str },
    /// Look for copies of this name in every namespace.
    Search { name: Arc<str>, of: SecretUse },
    /// A foreign Secret is where the copy should be.
    Refuse { place: CopyPlace, of: SecretUse },
    /// Nothing is left to do before the policy may go.
    Release { owner: Arc<PolicyId> },
}

#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// In the order in which they should be carried out: what Pods wait for first.
    pub actions: Vec<Action>,
    /// What need not be remembered any longer.
    pub forget: Vec<CopyPlace>,
}

impl Plan {
    fn delete(&mut self, place: &CopyPlace, copy: &Copy, why: &'static str) {
        self.actions.push(Action::Delete { place: place.clone(), copy: copy.clone(), why });
    }
}

/// A name that copies are expected to have, and for whom.
struct Expected {
    of: SecretUse,
    deleting_since: Option<WallTime>,
}

pub fn plan_copies(view: &View<'_>) -> Plan {
    let mut expected = BTreeMap::new();
    for owner in view.owners {
        for secret in &owner.secrets {
            let of = SecretUse { secret: secret.clone(), by: owner.id.clone() };
            let name: Arc<str> = copy_name(secret, &owner.id.uid).into();
            expected.insert(name, Expected { of, deleting_since: owner.deleting_since });
        }
    }
    let owners: HashMap<&str, &Owner> = view.owners.iter().map(|owner| (&*owner.id.uid, owner)).collect();
    let planner = Planner { view, expected, owners };
    let places: BTreeSet<&CopyPlace> = view.used.iter().chain(view.sightings.keys()).collect();
    let mut plan = Plan::default();
    for place in places {
        planner.place(place, &mut plan);
    }
    planner.searches(&mut plan);
    planner.releases(&mut plan);
    plan.actions.sort_by_key(urgency);
    plan
}

/// There may be very many places to look at, and searching takes long.
fn urgency(action: &Action) -> u8 {
    match action {
        Action::Refuse { .. } => 0,
        Action::Apply { .. } => 1,
        Action::Delete { .. } => 2,
        Action::Release { .. } => 3,
        Action::Look { .. } => 4,
        Action::Search { .. } => 5,
    }
}

struct Planner<'a> {
    view: &'a View<'a>,
    expected: BTreeMap<Arc<str>, Expected>,
    owners: HashMap<&'a str, &'a Owner>,
}

impl Planner<'_> {
    fn place(&self, place: &CopyPlace, plan: &mut Plan) {
        let used = self.view.used.contains(place);
        let expected = self.expected.get(&place.name);
        let Some(sighting) = self.view.sightings.get(place) else {
            plan.actions.push(Action::Look { place: place.clone() });
            return;
        };
        let found = match (&sighting.found, expected) {
            // Its name says that it is for one policy and its labels that it is for another: not our doing.
            (FoundSecret::Copy(copy), Some(expected)) if copy.owner_uid != expected.of.by.uid => {
                &FoundSecret::Foreign
            }
            (found, _) => found,
        };
        match (found, expected) {
            (FoundSecret::Copy(copy), Some(expected)) if expected.deleting_since.is_none() => {
                self.live(place, copy, expected, sighting.at, plan);
            }
            (FoundSecret::Copy(copy), _) => self.unwanted(place, copy, expected, plan),
            _ if !used => plan.forget.push(place.clone()),
            // A Pod that names a copy gets none by that where the webhook would not have made it.
            (FoundSecret::Nothing, Some(expected)) if expected.deleting_since.is_none() => {
                let elsewhere = *place.namespace != *expected.of.secret.namespace;
                let covered = self.selection(place) == Selection::Covered;
                if self.content_of(expected).is_some() && elsewhere && covered {
                    let why = "Pods use it, and it is not there";
                    plan.actions.push(Action::Apply { place: place.clone(), of: expected.of.clone(), why });
                }
            }
            (FoundSecret::Foreign, Some(expected)) if expected.deleting_since.is_none() => {
                plan.actions.push(Action::Refuse { place: place.clone(), of: expected.of.clone() });
                self.look_after(FOREIGN_AFTER, place, sighting.at, plan);
            }
            _ => self.look_after(VERIFY_AFTER, place, sighting.at, plan),
        }
    }

    /// A copy that a policy wants.
    fn live(&self, place: &CopyPlace, copy: &Copy, expected: &Expected, seen: WallTime, plan: &mut Plan) {
        let left_out = self.selection(place) == Selection::LeftOut;
        if !self.view.used.contains(place) {
            if left_out {
                plan.delete(place, copy, "the webhook's selector leaves its namespace out");
            } else if self.age(copy) >= GRACE {
                plan.delete(place, copy, "no Pod uses it any more");
            }
            return;
        }
        // Pods that were given it before still pull with it; what has changed since does not reach them.
        if left_out {
            return self.look_after(VERIFY_AFTER, place, seen, plan);
        }
        let why = match (copy.content, self.content_of(expected)) {
            (None, Some(_)) => {
                plan.actions.push(Action::Look { place: place.clone() });
                return;
            }
            (Some(has), Some(wanted)) if has != wanted => Some("its source has changed"),
            (Some(_), Some(_)) if !copy.complete => Some("its marks are incomplete"),
            (_, None) | (Some(_), Some(_)) => None,
        };
        match why {
            Some(why) => {
                plan.actions.push(Action::Apply { place: place.clone(), of: expected.of.clone(), why });
            }
            None => self.look_after(VERIFY_AFTER, place, seen, plan),
        }
    }

    /// A copy that no policy wants any more.
    fn unwanted(&self, place: &CopyPlace, copy: &Copy, expected: Option<&Expected>, plan: &mut Plan) {
        if expected.is_some() {
            plan.delete(place, copy, "its policy is being deleted");
        } else if self.owners.contains_key(&*copy.owner_uid) {
            if self.age(copy) >= POLICY_GRACE {
                plan.delete(place, copy, "its policy no longer names the source");
            }
        } else if copy.complete && !self.view.unreadable.contains(&copy.owner_uid) {
            // Without our marks it might be for a policy that lives in a namespace: those are not known here.
            plan.delete(place, copy, "its policy is gone");
        } else if !self.view.used.contains(place) {
            plan.forget.push(place.clone());
        }
    }

    fn selection(&self, place: &CopyPlace) -> Selection {
        self.view.selection.get(&place.namespace).copied().unwrap_or(Selection::Unknown)
    }

    fn look_after(&self, time: Duration, place: &CopyPlace, seen: WallTime, plan: &mut Plan) {
        if self.view.now.saturating_sub(seen) >= time {
            plan.actions.push(Action::Look { place: place.clone() });
        }
    }

    fn searches(&self, plan: &mut Plan) {
        for (name, expected) in &self.expected {
            if !self.has_searched(name, expected) {
                plan.actions.push(Action::Search { name: name.clone(), of: expected.of.clone() });
            }
        }
    }

    fn has_searched(&self, name: &Arc<str>, expected: &Expected) -> bool {
        self.view.searched.get(name).is_some_and(|at| match expected.deleting_since {
            Some(since) => *at >= since,
            None => self.view.now.saturating_sub(*at) < SEARCH_EVERY,
        })
    }

    fn releases(&self, plan: &mut Plan) {
        let is_copy = |found: &FoundSecret| matches!(found, FoundSecret::Copy(_));
        for owner in self.view.owners.iter().filter(|owner| owner.deleting_since.is_some()) {
            let names: Vec<_> =
                self.expected.iter().filter(|(_, one)| one.of.by.uid == owner.id.uid).collect();
            let searched = names.iter().all(|(name, one)| self.has_searched(name, one));
            let left = self.view.sightings.iter().any(|(place, seen)| {
                is_copy(&seen.found) && names.iter().any(|(name, _)| **name == place.name)
            });
            if searched && !left {
                plan.actions.push(Action::Release { owner: owner.id.clone() });
            }
        }
    }

    fn content_of(&self, expected: &Expected) -> Option<Content> {
        match self.view.sources.get(&expected.of.secret) {
            Some(SourceSecret::Has(content)) => Some(*content),
            Some(SourceSecret::Unusable) | None => None,
        }
    }

    fn age(&self, copy: &Copy) -> Duration {
        self.view.now.saturating_sub(copy.applied_at)
    }
}
