//! The registry client against registries: real ones where no fault is needed, the testkit's double where one is.

mod artifacts;
mod auth;
mod blobs;
mod classes;
mod copying;
mod copying_real;
mod crowded;
mod defence;
mod guessing;
mod health;
mod holding;
mod joining;
mod listing;
mod liveness;
mod logins;
mod manners;
mod oddities;
mod probing;
mod real;
mod referring;
mod removal;
mod repeating;
mod setbacks;
mod settled;
mod stalls;
mod support;
