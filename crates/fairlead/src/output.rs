//! What commands for people have in common when they print.

use std::io::{self, Write};

use anyhow::{Context, Result};
use clap::ValueEnum;

/// The status for "this could not even be tried", which is what clap uses for arguments it does not understand.
pub(crate) const MISUSED: u8 = 2;

/// The form of an answer that is also for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
}

/// Writes to standard output at once. Whether somebody still reads.
pub(crate) fn write(text: &str) -> Result<bool> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}

/// Says something on standard error, beside the result. Nothing depends on whether somebody listens.
pub(crate) fn tell(text: &str) {
    drop(io::stderr().lock().write_all(format!("{text}\n").as_bytes()));
}

/// Words that partly come from strangers must neither break the line nor speak to the terminal.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// Adds a line to a page for people.
pub(crate) fn line(text: &mut String, indent: usize, content: &str) {
    for _ in 0..indent {
        text.push_str("  ");
    }
    text.push_str(one_line(content).trim_end());
    text.push('\n');
}

/// Adds a line for each row, in columns as wide as their longest text; whatever the terminal's width, so that lines can
/// be searched and cut by programs.
pub(crate) fn columns(text: &mut String, indent: usize, rows: &[impl AsRef<[String]>]) {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows.iter().map(AsRef::as_ref) {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in rows.iter().map(AsRef::as_ref) {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        line(text, indent, &cells.join("  "));
    }
}
