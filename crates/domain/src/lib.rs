//! The values that every part of Fairlead shares, with their parsing, printing and comparison.
//!
//! Nothing here knows Kubernetes' client, the network or the clock, so every rule can be tested by itself.

pub mod backoff;
pub mod cause;
pub mod digest;
pub mod duration;
pub mod harbor;
pub mod json;
pub mod keyring;
pub mod platform;
pub mod reference;
pub mod selector;
pub mod verdict;
