//! What the operator knows of registries: verdicts about images, and the credentials to ask with.

pub mod ask;
mod cache;
pub mod node_failures;
pub mod pins;
pub mod secrets;
mod single_flight;
pub mod verdicts;
