//! The client for container registries that every capability of Fairlead shares.
//!
//! Fast where a Pod waits: connections, tokens and knowledge are shared by the whole process. Sparing, because nodes
//! share a registry's quota: one budget per registry, admission first, no requests while a registry is down. Hard to
//! abuse: whatever a registry answers, passwords stay with it, nothing leads into the internal network, and the size of
//! answers is limited.
//!
//! A process creates one [`Client`]. [`Client::probe`] tells whether an image can be pulled; [`Client::repository`]
//! opens a repository for everything else.

pub mod auth;
mod client;
pub mod copy;
mod error;
pub mod http_client;
pub mod limits;
mod lru;
pub mod manifest;
mod ops;
mod registry;
mod repository;
mod request;
mod settings;
mod size_limits;
pub mod transport;

#[cfg(test)]
mod testing;

pub use self::{
    auth::scope::Right,
    client::Client,
    error::{Detail, Error, ErrorClass, Outage, OutageKind, Problem},
    limits::{
        budget::Budget,
        circuit_breaker::BreakerSettings,
        health::RegistryHealth,
        liveness::Check,
        rate::{Class, Rate},
    },
    ops::{
        artifact::Artifact,
        blob::BlobReader,
        delete::Deleted,
        probe::{ProbeMethod, ProbeOptions},
        referrers::{Referrers, fallback_tag},
        tag_usage::TagUsage,
        tags::Tags,
        upload::{Mount, Upload},
    },
    repository::RepositoryClient,
    request::context::Context,
    settings::{RegistrySettings, Settings},
};
