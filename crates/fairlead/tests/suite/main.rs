//! The program as a whole, as separate processes against a real API server.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a test that fails may do so by any means"
)]

mod account;
mod agent;
mod alerts;
mod chart;
mod cli;
mod copy;
mod dashboards;
mod deployment;
mod docs;
mod explain;
mod guard;
mod heal;
mod image;
mod install;
mod installed;
mod kubectl;
mod kuik;
mod leader;
mod memory;
mod mirror;
mod mirror_status;
mod nodes;
mod person;
mod pinning;
mod probe;
mod probe_proxy;
mod release;
mod replica;
mod rights;
mod route;
mod takeover;
mod unread;
mod warm;
mod warm_status;
mod watch;
mod watched;
mod webhook;
mod workspace;
mod yaml;
