//! Routing as people meet it: a real API server, the installed operator under its own rights, real registries.

mod consistency;
mod credentials;
mod faults;
mod images;
mod limits;
pub mod owners;
mod proxy_cache;
pub mod rig;
mod tenants;
mod transport;
