//! The registry client against registries: real ones where no fault is needed, the testkit's double where one is.

mod auth;
mod blobs;
mod copying;
mod copying_real;
mod crowded;
mod defence;
mod health;
mod holding;
mod listing;
mod manners;
mod probing;
mod real;
mod removal;
mod settled;
mod support;
