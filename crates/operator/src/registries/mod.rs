//! What the operator knows of registries: verdicts about images, and the credentials to ask with.

mod cache;
pub mod node_failures;
pub mod secrets;
mod single_flight;
pub mod verdicts;
