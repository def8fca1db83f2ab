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

pub use self::auth::scope::Right;
pub use self::client::Client;
pub use self::error::{Detail, Error, ErrorClass, Outage, OutageKind, Problem};
pub use self::limits::budget::Budget;
pub use self::limits::circuit_breaker::BreakerSettings;
pub use self::limits::health::RegistryHealth;
pub use self::limits::liveness::Check;
pub use self::limits::rate::{Class, Rate};
pub use self::ops::artifact::Artifact;
pub use self::ops::blob::BlobReader;
pub use self::ops::delete::Deleted;
pub use self::ops::probe::{ProbeMethod, ProbeOptions};
pub use self::ops::referrers::{Referrers, fallback_tag};
pub use self::ops::tag_usage::TagUsage;
pub use self::ops::tags::Tags;
pub use self::ops::upload::{Mount, Upload};
pub use self::repository::RepositoryClient;
pub use self::request::context::Context;
pub use self::settings::{RegistrySettings, Settings};
