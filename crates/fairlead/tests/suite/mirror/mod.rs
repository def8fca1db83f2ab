//! Mirroring as people meet it: a real API server, the installed operator under its own rights, real registries.

mod access;
mod adoption;
mod cleanup;
mod clock;
mod conflict;
mod copying;
mod credentials;
mod edits;
mod isolation;
mod leaving;
mod ownership;
mod restart;
mod rig;
mod scope;
mod sharing;
mod stress;
mod unserved;
