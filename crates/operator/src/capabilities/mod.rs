//! What the lease holder does, one folder for each capability.

pub mod account;
pub mod availability;
pub mod cache;
pub mod consistency;
pub mod heal;
pub mod mirror;
pub mod nodes;
pub mod warm;
