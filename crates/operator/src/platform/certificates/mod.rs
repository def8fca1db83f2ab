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
mod turns;

use std::sync::Arc;
use std::time::SystemTime;

pub use self::client_authorities::{ClientAuthorities, ClientAuthorityError};
pub use self::cluster::ClusterError;
pub(crate) use self::cluster::is_own_webhook;
pub use self::files::Files;
pub use self::keeper::Keeper;
pub use self::material::MaterialError;
pub use self::metrics::Metrics;
pub use self::path::PathKeeper;
pub use self::resolver::{Resolver, ServeError};
pub use self::settings::{Settings, SettingsError};
pub use self::token::{Paths, Token};

/// Where the wall clock is read. Validity is judged by it, however long the machine slept.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Whether this replica may write, asked right before each write.
pub type Leads = Arc<dyn Fn() -> bool + Send + Sync>;

/// The clock of the machine.
pub fn system_clock() -> Clock {
    Arc::new(SystemTime::now)
}
