//! `ProxyCache` objects: what Harbor should hold for them, and what is done about the difference.
//!
//! An object stands for a pair in Harbor, an endpoint and a project of one name. [`plan`] compares the pair with the
//! object and says what to do next, one step after the other, each on fresh facts; [`report`] makes the status of what
//! came of it; [`finalization`] says what goes with a deleted object.
//!
//! Several clusters and people share a Harbor, so a pair belongs to an object only if its endpoint says so: see
//! [`ownership`]. What belongs to others is used where it fits, and never changed.

mod desired;
mod finalize;
mod offered;
mod ownership;
mod reconcile;
mod report;
#[cfg(test)]
mod tests;

use fairlead_domain::harbor::{Endpoint, Login, Project};

pub use desired::{Desired, SecretKeys, SpecError, default_key};
pub use finalize::{
    DeletedCache, Finalization, Removal, Stage, finalization, left_by_invalid, next_attempt, wants_finalizer,
};
pub use offered::{Offer, offered, routing_error};
pub use ownership::{CacheObject, Mark, Ownership, is_former, ownership};
pub use reconcile::{Action, Drift, Facts, Plan, Problem, plan};
pub use report::{Outcome, Report, Seen, leaving, not_configured, report, says};

/// What Harbor holds for an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    pub endpoint: Option<Endpoint>,
    pub project: Option<Project>,
    /// Pairs that were made for the object while it had other names.
    pub former: Vec<Pair>,
}

/// An endpoint with the project of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub endpoint: Endpoint,
    pub project: Option<Project>,
}

/// A login of an upstream, as a Secret holds it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamLogin {
    pub login: Login,
    /// Which version of which Secret it is, and which keys of it: see [`SecretKeys::version`].
    pub version: String,
    /// Hash of the login that means something within this process only.
    pub hash: u64,
}
