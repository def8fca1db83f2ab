//! Secrets with registry credentials, and their copies in the namespaces of Pods.
//!
//! Secrets are read by name and never listed or watched: the operator holds what policies and Pods name, and nothing
//! else of a cluster's secrets. [`Secrets`] reads and remembers them, [`copies::Copies`] makes the copies that Pods
//! need at admission, [`copies::Controller`] renews and removes them while this replica leads. [`Problems`] tells, for
//! each policy, what is wrong with the Secrets that it names.

mod cached;
pub mod copies;
mod credentials;
mod logins;
mod metrics;
mod names;
mod opaque;
mod problems;
mod pull_keys;
mod reader;
mod refresh;

pub use self::copies::{Copies, CopyError};
pub use self::credentials::{Keys, Read, identity};
pub use self::logins::Logins;
pub use self::metrics::Metrics;
pub(crate) use self::opaque::OpaqueSecret;
pub use self::problems::Problems;
pub use self::pull_keys::PullKeys;
pub use self::reader::Secrets;
