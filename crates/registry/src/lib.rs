//! The client for container registries that every capability of Fairlead shares.
//!
//! It is built for three demands. It must be fast where a Pod waits: connections, tokens and knowledge are shared by the
//! whole process. It must be polite, because a registry's quota is also the nodes': one budget per registry, admission
//! first, nothing asked of a registry that is down. And it must be hard to fool: whatever a registry answers, passwords
//! stay with it, nothing leads into the inside of the network, and no answer is larger than what is useful.
//!
//! [`Client`] is made once. [`Client::probe`] answers whether an image is there; [`Client::remote`] opens a repository for
//! everything else.

mod answer;
mod artifact;
pub mod auth;
mod authorities;
mod blob;
mod bounds;
mod calling;
mod client;
mod context;
pub mod copy;
mod delete;
mod error;
mod exchange;
mod health;
mod liveness;
pub mod login;
pub mod manifest;
pub mod manners;
mod outgoing;
mod pages;
mod peer;
mod probe;
mod recent;
mod referrers;
mod registry;
mod remote;
mod settings;
mod shared;
mod tags;
pub mod transport;
mod upload;

#[cfg(test)]
mod mutation;
#[cfg(test)]
mod tests;

pub use self::{
    artifact::Artifact,
    auth::scope::Right,
    blob::BlobReader,
    client::Client,
    context::Context,
    delete::Deleted,
    error::{Detail, Error, ErrorClass, Outage, OutageKind, Problem},
    health::RegistryHealth,
    liveness::Check,
    manners::{
        breaker::Patience,
        gate::Budget,
        pace::{Class, Rate},
    },
    probe::{ProbeMethod, ProbeOptions},
    referrers::{Referrers, fallback_tag},
    remote::Remote,
    settings::{RegistrySettings, Settings},
    shared::Shared,
    tags::Tags,
    upload::{Mount, Upload},
};
