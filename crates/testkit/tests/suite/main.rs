//! The bench itself is tested against the real parts it starts.

mod controlplane;
mod harbor;
mod leaks;
mod node;
mod processes;
mod proxy;
mod registries;
mod simulated;
mod standing;
