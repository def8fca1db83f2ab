//! Limits towards registries: request budget, quota, circuit breaker, liveness, retries.
//!
//! Decisions are pure functions of the time passed in. Only [`budget`] waits, and only [`server`] sends trials.

pub mod budget;
pub mod circuit_breaker;
pub(crate) mod health;
pub(crate) mod liveness;
pub mod quota;
pub mod rate;
pub mod retry;
pub(crate) mod server;
pub mod tenant_queue;
