//! The certificates that the API server sees when it calls the webhook.
//!
//! [`Keeper`] makes them itself: an authority and a leaf in one Secret, which the leader writes and every replica reads,
//! and the bundle of trusted authorities in the webhook configuration. `fairlead_plan::certificates` decides what to do
//! when; this module carries it out. [`Files`] is the alternative for those who have cert-manager or the like: it
//! serves what is in a directory and writes nothing to the cluster.
//!
//! Both feed a [`Resolver`], from which every TLS handshake takes the leaf of the moment.

mod authority;
mod cluster;
mod files;
mod keeper;
mod material;
mod metrics;
mod resolver;
mod secret;
mod settings;

use std::{sync::Arc, time::SystemTime};

pub use self::{
    cluster::ClusterError,
    files::Files,
    keeper::Keeper,
    material::MaterialError,
    metrics::Metrics,
    resolver::{Resolver, ServeError},
    settings::{Settings, SettingsError},
};

/// Where the wall clock is read. Validity is judged by it, however long the machine slept.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Whether this replica may write, asked right before each write.
pub type Leads = Arc<dyn Fn() -> bool + Send + Sync>;

/// The clock of the machine.
pub fn system_clock() -> Clock {
    Arc::new(SystemTime::now)
}
