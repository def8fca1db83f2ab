//! Ledgers of mirrored and watched images: how they are stored, and what every replica keeps of them.
//!
//! A ledger counts only where Fairlead writes it ([`trusted`]). The lease holder alone writes them ([`Shelves`]) and
//! has them in memory whole. Every replica follows them and keeps hashes only ([`Claims`]): enough to know at admission
//! which source a copy belongs to, and to notice when a probe says otherwise than the ledger ([`Findings`]).

mod claims;
mod discrepancies;
mod index;
mod lean;
mod report;
mod sink;
mod store;
#[cfg(test)]
pub(crate) mod tests;
mod trust;
mod warm;

pub use self::{
    claims::{Claims, LedgerObject},
    discrepancies::{Findings, Missed},
    store::{Shelves, Stored, WriteError},
    trust::trusted,
    warm::LeanWarmLedger,
};
pub(crate) use self::{lean::LeanLedger, sink::LedgerSink};
