//! Which stored ledgers count, and which of their rows.
//!
//! A user who may write objects in some namespace could write a ledger there in the name of any other object. So a
//! ledger counts only where Fairlead itself writes it: in the operator's namespace for cluster-scoped objects, beside
//! the object for others, under the name and with the owner reference that follow from the object. And a row of it
//! counts only for a copy in one of that object's mirrors.

use std::fmt;

use fairlead_api::fairlead::LedgerOwner;
use fairlead_api::kuik;
use fairlead_domain::reference::Reference;

use super::{Owner, OwnerKind, ShardId};
use crate::routing::Policy;

/// A stored ledger as it was found, without its rows.
#[derive(Debug, Clone, Copy)]
pub struct FoundLedger<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    /// The object that its content names.
    pub owner: &'a LedgerOwner,
    pub references: &'a [FoundReference<'a>],
}

/// One of its owner references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundReference<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

/// Why a stored ledger counts for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distrust {
    Kind,
    Place,
    Name,
    Reference,
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kind => "it names an owner of a kind that keeps no ledgers",
            Self::Place => "ledgers of cluster-scoped objects are in the operator's namespace only",
            Self::Name => "its name does not follow from the object that it names",
            Self::Reference => "it has no owner reference to the object that it names",
        })
    }
}

/// The owner of a stored ledger and the shard that it is, if it is where Fairlead writes it. Whether that owner exists
/// is left to the caller, who compares the whole of it, not its UID alone.
pub fn trusted(found: &FoundLedger<'_>, operator_namespace: &str) -> Result<(Owner, ShardId), Distrust> {
    let FoundLedger { namespace, name, owner, references } = *found;
    let kind = OwnerKind::parse(&owner.kind).ok_or(Distrust::Kind)?;
    if kind.is_cluster_scoped() && namespace != operator_namespace {
        return Err(Distrust::Place);
    }
    let owner = Owner {
        kind,
        namespace: (!kind.is_cluster_scoped()).then(|| namespace.into()),
        name: owner.name.as_str().into(),
        uid: owner.uid.as_str().into(),
    };
    let shard = owner.shard_named(name).ok_or(Distrust::Name)?;
    let api_version = kuik::API_VERSION;
    let own = FoundReference { api_version, kind: kind.name(), name: &owner.name, uid: &owner.uid };
    if !references.contains(&own) {
        return Err(Distrust::Reference);
    }
    Ok((owner, shard))
}

/// Whether a row about this destination counts. `policy` is the owner's, if it exists and makes sense: it must have a
/// mirror that the destination lies in.
///
/// Where there is no such policy, the object was broken by an edit, is being deleted, or its kind is not served just
/// now. A cluster-scoped object's copies are still what its ledger says, since only the operator writes where that is.
/// A forged ledger of a namespaced object claims nothing then.
pub fn row_counts(kind: OwnerKind, policy: Option<&Policy>, destination: &Reference) -> bool {
    policy.map_or(kind.is_cluster_scoped(), |policy| policy.keeps(destination))
}
