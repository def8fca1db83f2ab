//! What the lease holder does, one folder for each capability.

pub mod availability;
pub mod consistency;
pub mod heal;
pub mod mirror;
pub mod warm;
