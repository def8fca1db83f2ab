//! The operator: what it sees of the cluster, who leads, how it serves, what it reports.
//!
//! It observes, asks `fairlead-plan` what to do, and carries that out. Decisions do not belong here.

pub mod admission;
pub mod capabilities;
pub mod cluster;
pub mod context;
pub mod controller;
pub mod platform;
pub mod registries;
mod run;

pub use platform::settings::Settings;
pub use run::{RunError, run};
