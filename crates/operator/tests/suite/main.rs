//! Behaviour of the operator against a real API server.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a failed expectation is how a test, and what helps it, reports"
)]

mod account;
mod admission;
mod availability;
mod cache;
mod candidate;
mod certificates;
mod config;
mod definitions;
mod discovery;
mod events;
mod frame;
mod leading;
mod ledgers;
mod nodes;
mod pins;
mod policies;
mod replica;
mod secrets;
mod verdicts;
mod warm;
