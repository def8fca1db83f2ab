//! Secrets, their copies and accounts that restrict their use, on a real API server.

mod accounts;
mod bench;
mod controlling;
mod copying;
mod reading;
mod selecting;
