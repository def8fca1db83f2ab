//! Warming: images on nodes before a Pod asks for them.

pub mod discovery;
