//! A client of Harbor's API, version 2, as far as proxy caches need it: endpoints, projects, repositories.
//!
//! It keeps no cookies, because Harbor asks a request that carries its session cookie for a CSRF token. It says with
//! every request that path segments are names, because Harbor takes a name of digits for a number otherwise.

mod client;
mod encode;
mod error;
mod wire;

pub use client::{EndpointUpdate, Harbor, HarborSettings, NewEndpoint, Removed};
pub use error::{Class, Error};
