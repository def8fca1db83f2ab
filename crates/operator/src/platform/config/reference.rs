//! The reference table of the documentation, made from the declaration of the keys.

use std::fmt::Write as _;

use super::declare;
use super::keys::Keys;
use super::types::Config;

/// One key, described.
pub(super) struct KeyRow {
    pub(super) path: String,
    pub(super) kind: String,
    pub(super) default: String,
    pub(super) meaning: &'static str,
    /// JSON schema of what it holds.
    pub(super) schema: serde_json::Value,
}

/// Every key there is.
pub(super) fn rows() -> Vec<KeyRow> {
    Keys::describe(|keys| declare::declare(keys, &mut Config::default()))
}

/// All keys with what they hold, their defaults and their meaning, as a Markdown table.
pub fn reference() -> String {
    let mut table = String::from("| key | value | default | meaning |\n| --- | --- | --- | --- |\n");
    for row in rows() {
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| `{}` | {} | {} | {} |", row.path, row.kind, row.default, row.meaning);
    }
    table
}
