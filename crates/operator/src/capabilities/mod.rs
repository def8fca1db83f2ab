//! What the lease holder does, one folder for each capability.

pub mod availability;
pub mod cache;
pub mod consistency;
pub mod heal;
pub mod mirror;
pub mod warm;
