//! Routing: from the policies of a cluster and one image of a Pod to the ordered list of places to try, and the choice.
//!
//! A custom resource is compiled once into a [`Policy`], all policies together into an [`Index`]. The index tells
//! which policies concern a Pod ([`PodPolicies`]) and what they offer for an image ([`Alternatives`]); what registries
//! said then leads to a [`Decision`]. Nothing here asks a registry or reads a Secret.

mod alternatives;
mod builder;
mod choice;
mod compile;
pub mod explain;
mod identity;
mod index;
mod layer;
mod merge;
mod policy;
mod pull;
#[cfg(test)]
mod tests;
mod text;

pub use fairlead_domain::selector::PodFacts;

pub use self::alternatives::{
    Alternative, Alternatives, GuardedCopy, MOST_ALTERNATIVES, Origin, SecretUse, Withheld,
};
pub use self::choice::{Decision, LocationAnswer, RoutingFailure, judge};
pub(crate) use self::compile::is_serving;
pub use self::compile::serves;
pub(crate) use self::compile::{identity, scope};
pub use self::identity::{PolicyId, PolicyKind, SecretName};
pub use self::index::{Index, PodPolicies};
pub use self::policy::{MirrorTarget, Policy, PolicyError, PolicyProblem};
pub use self::pull::{PullPolicy, Rules};
pub(crate) use self::text::clip;
