//! Warming as a whole: the program beside a real API server, with simulated nodes.

mod rig;
mod rights;
mod simulated;
