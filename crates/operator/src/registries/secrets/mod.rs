//! Secrets with registry credentials, and their copies in the namespaces of Pods.
//!
//! Secrets are read by name and never listed or watched: the operator holds what somebody has named to it, and nothing
//! else of a cluster's secrets. [`Secrets`] reads and remembers them, [`copies::Copies`] makes the copies that Pods
//! need at admission, [`copies::Controller`] renews and removes them while this replica leads. [`Problems`] tells, for
//! each policy, what is wrong with the Secrets that it names.

mod cached;
pub mod copies;
mod credentials;
mod logins;
mod metrics;
mod names;
mod problems;
mod reader;
mod refresh;

pub use self::{
    copies::{Copies, CopyError},
    credentials::{Keys, Read, identity},
    logins::Logins,
    metrics::Metrics,
    problems::Problems,
    reader::Secrets,
};
