//! What a person sees while images are copied, and what remains afterwards.
//!
//! Results go to standard output, everything else to standard error: as a bar where it is a terminal, otherwise as a line
//! now and then.

use std::io::{self, IsTerminal};
use std::time::Duration;

use anyhow::Result;
use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};

use super::list::Pair;
use super::progress::Progress;
use super::report::Report;
use crate::access;
use crate::output::write;

/// The bytes to copy become known on the way, so the bar shows them beside its length.
const LOOK: &str = "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {wide_msg}";

pub(crate) struct Display {
    json: bool,
    bar: Option<ProgressBar>,
    images: usize,
    /// What the bar stands for, where it is one image.
    name: Option<String>,
}

impl Display {
    pub(crate) fn new(json: bool, pairs: &[Pair]) -> Self {
        let able = io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb");
        let bar = (able && !json).then(|| {
            let style = ProgressStyle::with_template(LOOK).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style.progress_chars("=> "))
        });
        let name = match pairs {
            [pair] => Some(pair.destination.written().to_owned()),
            _ => None,
        };
        Self { json, bar, images: pairs.len(), name }
    }

    /// How often to show the progress.
    pub(crate) fn interval(&self) -> Duration {
        if self.bar.is_some() { Duration::from_millis(100) } else { Duration::from_secs(10) }
    }

    pub(crate) fn show(&self, progress: &Progress, finished: usize) {
        let (done, known) = (progress.done(), progress.known());
        let what = match &self.name {
            Some(name) => name.clone(),
            None => format!("{finished} of {} images", self.images),
        };
        if let Some(bar) = &self.bar {
            bar.set_length(known);
            bar.set_position(done);
            bar.set_message(what);
        } else if !self.json {
            eprintln!("Copying: {} of {}, {what}", BinaryBytes(done), BinaryBytes(known));
        }
    }

    /// Prints the result of a copy. If nobody reads any more, the copies go on all the same.
    pub(crate) fn finished(&self, report: &Report) -> Result<()> {
        let line = if self.json { report.json()? } else { report.line() };
        self.beside_the_bar(|| write(&format!("{line}\n"))).map(drop)
    }

    pub(crate) fn warn(&self, problem: &String) {
        self.beside_the_bar(|| access::warn(problem));
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn beside_the_bar<R>(&self, print: impl FnOnce() -> R) -> R {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}
