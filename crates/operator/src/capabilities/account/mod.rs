//! Accounting: which digest every container and image volume runs, and pins that hold workloads to theirs.

pub mod inventory;
mod metrics;
pub mod observe;
pub mod pins;

pub use self::metrics::Metrics;
