//! Manners towards registries: how often they are asked, when they are left alone, when a question is repeated.
//!
//! Decisions are pure functions of time passed in; [`budget`] alone waits.

pub mod budget;
pub mod circuit_breaker;
pub(crate) mod health;
pub(crate) mod liveness;
pub mod quota;
pub mod rate;
pub mod retry;
pub(crate) mod server;
pub mod tenant_queue;
