//! The operator: what it sees of the cluster, who leads, how it serves, what it tells.
//!
//! It observes, asks `fairlead-plan` what to do, and carries that out. Decisions do not belong here.

pub mod accounts;
pub mod admission;
pub mod certificates;
pub mod clock;
pub mod config;
pub mod consistency;
pub mod events;
pub mod failure;
pub mod health;
pub mod http;
pub mod install;
pub mod leader;
pub mod ledgers;
pub mod mirror;
pub mod namespaces;
pub mod pace;
pub mod policies;
pub mod run;
pub mod secrets;
pub mod settings;
pub mod skip;
pub mod state;
mod status;
pub mod supervise;
pub mod telemetry;
pub mod usage;
pub mod verdicts;
pub mod watch;
pub mod watching;

pub use run::{RunError, run};
pub use settings::Settings;
