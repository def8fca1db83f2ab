//! Ledgers of mirrored and watched images: how they are stored, and what every replica keeps of them.
//!
//! A ledger counts only where Fairlead writes it ([`trusted`]). The lease holder alone writes them ([`Shelves`]) and has them in memory whole. Every replica follows them and keeps
//! hashes only ([`Claims`]): enough to know at admission which source a copy belongs to, and to notice when a probe says
//! otherwise than the ledger ([`Findings`]).

mod claims;
mod findings;
mod index;
mod lean;
mod shelves;
mod sink;
mod status;
mod telling;
#[cfg(test)]
pub(crate) mod tests;
mod trust;

pub use self::{
    claims::{Claims, LedgerObject},
    findings::{Findings, Missed},
    shelves::{Shelves, Stored, WriteError},
    trust::trusted,
};
pub(crate) use self::{lean::LeanLedger, sink::LedgerSink};
