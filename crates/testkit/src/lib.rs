//! The bench every test of Fairlead stands on: a real Kubernetes on one machine without containers, real registries,
//! images made on the spot, and faults on request. Nothing of it is shipped.
//!
//! Whatever is started here dies with the process that started it, by whatever death: see [`supervisor`].

pub mod assets;
pub mod audit;
pub mod cluster;
pub mod containerd;
pub mod definitions;
pub mod fake_registry;
pub mod harbor;
pub mod images;
pub mod installation;
pub mod load;
pub mod loki;
pub mod measure;
pub mod mutation;
pub mod nginx;
pub mod operator;
pub mod oracle;
pub mod pki;
pub mod poll;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod registry;
pub mod service;
pub mod standing;
pub mod supervisor;
pub mod webhook;

mod kubeconfig;
mod names;
mod ports;
mod workdir;

pub use cluster::{Cluster, ClusterBuilder, Part, shared};
pub use containerd::OldContainerd;
pub use harbor::FakeHarbor;
pub use loki::Loki;
pub use names::unique;
pub use nginx::Nginx;
pub use operator::Operator;
pub use poll::eventually;
pub use process::{Ending, Process, Program};
pub use prometheus::{Prometheus, PrometheusConfig};
pub use proxy::ApiProxy;
pub use registry::{Registry, RegistryConfig};
pub use supervisor::Signal;

/// Makes *ring* the TLS provider of this process; every client and server made afterwards needs one to be chosen.
pub fn install_crypto() {
    // An error says that a provider is in place already, which is what is wanted.
    drop(rustls::crypto::ring::default_provider().install_default());
}
