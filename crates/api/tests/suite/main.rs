//! Definitions, examples and malformed objects against a real API server: only it can tell what it accepts, and what it
//! says when it does not.

#![allow(clippy::indexing_slicing, reason = "a value that is not there fails the test, as it should")]

mod definitions;
mod discovery;
mod drop;
mod examples;
mod fairlead;
mod kuik;
mod openshift;
mod reef;
mod refused;
mod status;
mod table;
mod upgrade;
