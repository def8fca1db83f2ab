//! The certificates that the API server sees when it calls the webhook.
//!
//! [`Keeper`] makes them itself: an authority and a leaf in one Secret, which the leader writes and every replica
//! reads, and the bundle of trusted authorities in the webhook configuration. `fairlead_plan::certificates` decides
//! what to do when; this module carries it out. [`Files`] is the alternative for those who have cert-manager or the
//! like: it serves what is in a directory and writes no certificate to the cluster.
//!
//! Both feed a [`Resolver`], from which every TLS handshake takes the leaf of the moment.
//!
//! The path that API servers call carries a random [`Token`]. It is kept beside the certificates, or by [`PathKeeper`]
//! where those come from files, and [`Paths`] tells admission which tokens to answer to.

mod authority;
mod client_authorities;
mod cluster;
mod files;
mod keeper;
mod material;
mod metrics;
mod path;
mod resolver;
mod secret;
mod settings;
mod token;
mod tokens;

use std::{sync::Arc, time::SystemTime};

pub(crate) use self::cluster::is_own_webhook;
pub use self::{
    client_authorities::{ClientAuthorities, ClientAuthorityError},
    cluster::ClusterError,
    files::Files,
    keeper::Keeper,
    material::MaterialError,
    metrics::Metrics,
    path::PathKeeper,
    resolver::{Resolver, ServeError},
    settings::{Settings, SettingsError},
    token::{Paths, Token},
};

/// Where the wall clock is read. Validity is judged by it, however long the machine slept.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Whether this replica may write, asked right before each write.
pub type Leads = Arc<dyn Fn() -> bool + Send + Sync>;

/// The clock of the machine.
pub fn system_clock() -> Clock {
    Arc::new(SystemTime::now)
}
