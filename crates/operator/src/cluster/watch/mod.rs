//! Watches: one per kind, each supervised on its own, feeding `state`.
//!
//! A watch outlives everything a cluster does to it: objects that cannot be read, definitions that are missing, come
//! late or are taken away, an API server that restarts, rights that are missing. None of these ends the process or
//! touches another watch; all of them show in the log, in metrics and on the readiness page.

mod board;
mod discovery;
mod follow;
mod kinds;
mod lean;
mod metrics;
pub mod pod;
pub(crate) mod sink;
mod tolerant;

pub(crate) use lean::{LeanMeta, or_default, stands_for};

pub use board::{Board, Presence, WatchRow};
pub use kinds::{Resources, Watches};
pub use metrics::Metrics;
pub use tolerant::{Tolerant, Unreadable};
