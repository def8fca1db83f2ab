//! Manners towards registries: how often they are asked, when they are left alone, when a question is repeated.
//!
//! Decisions are pure functions of time passed in; [`gate`] alone waits.

pub mod breaker;
pub mod gate;
pub mod line;
pub mod pace;
pub mod quota;
pub mod retry;
