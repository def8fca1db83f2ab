//! Ledgers of mirrored and watched images: how they are stored, and what every replica keeps of them.
//!
//! A ledger counts only where Fairlead writes it ([`trusted`]). The lease holder alone writes them ([`LedgerStore`])
//! and has them in memory whole. Every replica follows them and keeps hashes only ([`Claims`]): enough to know at
//! admission which source a copy belongs to, and to notice when a probe says otherwise than the ledger ([`Findings`]).

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

pub use self::claims::{Claims, LedgerObject};
pub use self::discrepancies::{Findings, Missed};
pub(crate) use self::lean::LeanLedger;
pub(crate) use self::sink::LedgerSink;
pub use self::store::{LedgerStore, Stored, WriteError};
pub use self::trust::trusted;
pub use self::warm::LeanWarmLedger;
