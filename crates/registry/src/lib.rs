//! The client for container registries that every capability of Fairlead shares.
//!
//! It is built for three demands. It must be fast where a Pod waits: connections, tokens and knowledge are shared by the
//! whole process. It must be polite, because a registry's quota is also the nodes': one budget per registry, admission
//! first, nothing asked of a registry that is down. And it must be hard to fool: whatever a registry answers, passwords
//! stay with it, nothing leads into the inside of the network, and no answer is larger than what is useful.
//!
//! [`Client`] is made once. [`Client::probe`] answers whether an image is there; [`Client::remote`] opens a repository for
//! everything else.

pub mod auth;
mod client;
pub mod copy;
mod error;
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
