//! The admission webhook: asked by the API server about every new Pod, on every replica.
//!
//! Nothing here may stop a Pod from being created. Whatever goes wrong, an error, a panic, a request that makes no
//! sense, too much to do, too little time, the answer is "allowed, unchanged", with a warning that the author of the
//! Pod sees and a count in the metrics. Only a request from which not even its identity can be read gets an HTTP error,
//! which the API server treats the same way.

mod answer;
mod body;
mod connection;
mod decide;
mod ephemeral;
mod handle;
mod limits;
mod metrics;
mod patch;
mod review;
mod route;
mod server;
mod shares;
mod state;

pub use self::decide::{AdmissionOutcome, Decide, PodRequest, Subject};
pub use self::ephemeral::{Notice, Recorder, Records};
pub use self::limits::Limits;
pub use self::metrics::{Metrics, Rewrites};
pub use self::patch::{Operation, Patch};
pub use self::review::{
    Container, ImageVolume, Pairs, PodImage, PodMetadata, PodObject, PodSpec, SecretName, Text, Volume,
};
pub use self::route::{Router, survey};
pub use self::server::serve;
pub use self::shares::Share;
pub use self::state::AdmissionState;
