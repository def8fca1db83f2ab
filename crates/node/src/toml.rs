//! The little TOML that is written here, byte for byte the same for the same table.

use std::fmt::Write;

pub(crate) const HEADER: &str = "# Written by Fairlead from mirror policies: edit those, not this file.\n";

/// Adds a line `key = value`.
pub(crate) fn key(text: &mut String, indent: usize, key: &str, value: &str) {
    // Writing to a text cannot fail.
    let _ = writeln!(text, "{:indent$}{key} = {value}", "");
}

/// Sources and mirrors hold nothing that would have to be escaped: their grammar has neither quotes nor backslashes.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}
