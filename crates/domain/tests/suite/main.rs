//! Our readings of foreign formats, held against the programs that define them.
//!
//! Each module generates thousands of inputs, asks the reference implementation (a small Go program, built on demand)
//! and compares. `FAIRLEAD_TEST_SEED` chooses other inputs, `FAIRLEAD_TEST_CASES` multiplies their number.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a failed expectation is how a test, and what helps it, reports"
)]

mod bytes;
mod credentials;
mod oracle;
mod patterns;
mod random;
mod references;
mod selectors;
