//! The frame that every controller runs on.

pub mod events;
pub mod rate_limit;
pub mod status;
pub mod tasks;
