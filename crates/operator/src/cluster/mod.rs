//! What the operator knows of the cluster: watches, and the caches and indexes that they fill.

pub mod agents;
pub mod identity;
pub mod ledgers;
pub mod namespaces;
pub mod nodes;
pub mod own_secrets;
pub mod policies;
pub mod service_accounts;
pub mod state;
pub mod usage;
pub mod watch;
