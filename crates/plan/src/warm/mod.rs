//! Warming: images pulled onto nodes before a Pod asks for them.

pub mod discovery;
