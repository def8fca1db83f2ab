//! What commands for people have in common when they print.

use std::io::{self, Write};

use anyhow::{Context, Result};
use clap::ValueEnum;
use jiff::{SignedDuration, Timestamp};

/// The status for "this could not even be tried", which is what clap uses for arguments it does not understand.
pub(crate) const MISUSED: u8 = 2;

/// The status for "something fails".
pub(crate) const FAILING: u8 = 3;

/// The form of an answer that is also for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
}

/// Writes to standard output at once. Returns whether the reader is still there.
pub(crate) fn write(text: &str) -> Result<bool> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}

/// Says something on standard error, beside the result. A closed standard error is no failure.
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

/// Adds a list with a title and a header, unless it is empty. What is more than `most` is counted.
pub(crate) fn list<T>(
    text: &mut String,
    title: &str,
    items: &[T],
    most: usize,
    header: &[&str],
    row: impl Fn(&T) -> Vec<String>,
) {
    if items.is_empty() || most == 0 {
        return;
    }
    text.push('\n');
    line(text, 1, &format!("{title}:"));
    let mut rows = vec![header.iter().map(|&word| word.to_owned()).collect()];
    rows.extend(items.iter().take(most).map(row));
    columns(text, 2, &rows);
    let more = items.len().saturating_sub(most);
    if more > 0 {
        line(text, 2, &format!("and {more} more: --limit shows them, and -o json has them all"));
    }
}

pub(crate) fn age(now: Timestamp, since: Timestamp) -> String {
    short(now.duration_since(since))
}

/// In the largest unit, as kubectl shows ages.
pub(crate) fn short(time: SignedDuration) -> String {
    let seconds = time.as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Adds a line that begins with a word of its own.
pub(crate) fn fact(text: &mut String, label: &str, fact: &str) {
    line(text, 1, &format!("{label:9}{fact}"));
}
