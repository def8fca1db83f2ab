//! Decisions of Fairlead as pure functions.
//!
//! Everything here turns what was observed into what should be done, with the reasons. Time and chance come in
//! as arguments, so a decision can be printed, compared in a test and replayed. Nothing here performs input or
//! output: the operator carries decisions out.

pub mod access;
pub mod admission;
pub mod availability;
pub mod cache;
pub mod capability;
pub mod certificates;
pub mod clock;
pub mod consistency;
pub mod copy_queue;
pub mod credentials;
pub mod exclusions;
mod fair_share;
pub mod heal;
pub mod internal_errors;
pub mod inventory;
pub mod leadership;
pub mod ledger;
pub mod mirroring;
pub mod named_registries;
pub mod node;
pub mod node_config;
pub mod node_failures;
pub mod owners;
pub mod pinning;
pub mod pod_record;
pub mod policy_status;
pub mod pull_failure;
pub mod pull_secrets;
pub mod routing;
pub mod routing_events;
pub mod secret_ttl;
pub mod tenant;
pub mod usage;
pub mod usage_list;
pub mod verdict_ttl;
pub mod warm;
pub mod warnings;
