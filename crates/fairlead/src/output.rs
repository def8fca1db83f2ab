//! What commands for people have in common when they print.

use std::io::{self, Write};

use anyhow::{Context, Result};

/// The status for "this could not even be tried", which is what clap uses for arguments it does not understand.
pub(crate) const MISUSED: u8 = 2;

/// Writes to standard output at once. Whether somebody still reads.
pub(crate) fn write(text: &str) -> Result<bool> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}

/// Words that partly come from strangers must neither break the line nor speak to the terminal.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}
