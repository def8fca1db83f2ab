//! A terminal that is drawn anew again and again. What was on it before comes back at the end.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};

use anyhow::{Context, Result};

/// Assumed where a terminal does not tell its size, as terminals once were.
const USUAL: Size = Size { rows: 24, columns: 80 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    rows: usize,
    columns: usize,
}

/// The second screen of a terminal, until it is dropped.
pub(crate) struct Screen(());

impl Screen {
    /// Whether standard output can be drawn on.
    pub(crate) fn is_there() -> bool {
        io::stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|kind| kind != "dumb")
    }

    pub(crate) fn open() -> Result<Self> {
        // The other screen, without a cursor.
        put("\x1b[?1049h\x1b[?25l")?;
        Ok(Self(()))
    }

    #[allow(clippy::unused_self, reason = "only an open screen can be drawn on")]
    pub(crate) fn draw(&self, text: &str) -> Result<()> {
        put(&frame(text, size()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that has gone away needs no tidying up.
        drop(put("\x1b[?25h\x1b[?1049l"));
    }
}

fn put(text: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).context("cannot write to the terminal")
}

fn size() -> Size {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
            Size { rows: size.ws_row.into(), columns: size.ws_col.into() }
        }
        _ => USUAL,
    }
}

/// What to send so that the terminal shows the text, and as much of it as there is room for.
fn frame(text: &str, size: Size) -> String {
    let lines = text.lines().count();
    let room = if lines > size.rows { size.rows.saturating_sub(1) } else { lines };
    let mut frame = String::from("\x1b[H");
    for (number, line) in text.lines().take(room).enumerate() {
        if number > 0 {
            frame.push_str("\r\n");
        }
        frame.extend(line.chars().take(size.columns));
        frame.push_str("\x1b[K");
    }
    if lines > room {
        let more = format!("… {} more lines; --once prints everything", lines - room);
        let more: String = more.chars().take(size.columns).collect();
        // Writing to a string cannot fail.
        let _ = write!(frame, "\r\n{more}\x1b[K");
    }
    frame.push_str("\x1b[J");
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_cut_off_and_counted() {
        let size = Size { rows: 3, columns: 30 };
        assert_eq!(frame("one\ntwo\n", size), "\x1b[Hone\x1b[K\r\ntwo\x1b[K\x1b[J");
        let long = "x".repeat(100);
        let drawn = frame(&format!("{long}\n2\n3\n4\n"), size);
        assert_eq!(drawn.lines().count(), 3);
        assert!(drawn.contains(&"x".repeat(30)) && !drawn.contains(&"x".repeat(31)), "{drawn}");
        assert!(drawn.contains("… 2 more lines") && !drawn.contains("3\x1b"), "{drawn}");
    }
}
