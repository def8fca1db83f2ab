//! What a person sees while images are copied, and what remains afterwards.
//!
//! Results go to standard output, everything else to standard error: as a bar where it is a terminal, otherwise as a
//! line now and then. Each has a thread of its own, so that a reader that is slow, or absent, holds up neither the
//! copies nor a requested shutdown. What is not read yet waits in memory, which is little for each image.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};
use tokio::task::spawn_blocking;

use super::list::Pair;
use super::progress::Progress;
use super::report::CopyResult;
use crate::output::{tell, write};

/// The bytes to copy become known on the way, so the bar shows them beside its length.
const LOOK: &str = "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {wide_msg}";

/// Takes what there is to print. Everything is said once it is dropped.
pub(crate) struct Display {
    json: bool,
    results: Sender<String>,
    words: Sender<String>,
}

impl Display {
    /// Begins to print. The future ends when everything is printed, or earlier if results cannot be.
    pub(crate) fn start(
        json: bool,
        pairs: &[Pair],
        progress: Arc<Progress>,
    ) -> (Self, impl Future<Output = Result<()>> + use<>) {
        let (results, printable) = channel();
        let (words, sayable) = channel();
        let speaker = Speaker::new(json, pairs, progress);
        // Only results on a terminal have a bar in their way.
        let bar = speaker.bar.clone().filter(|_| io::stdout().is_terminal());
        let printing = spawn_blocking(move || print(&printable, bar.as_ref()));
        let speaking = spawn_blocking(move || speaker.speak(&sayable));
        let end = async {
            tokio::try_join!(async { printing.await? }, async { Ok(speaking.await?) })?;
            Ok(())
        };
        (Self { json, results, words }, end)
    }

    /// Prints the result of a copy.
    pub(crate) fn finished(&self, report: &CopyResult) -> Result<()> {
        let line = if self.json { report.json()? } else { report.line() };
        // What can no longer be printed has ended the printing task, whose result says why.
        drop(self.results.send(line + "\n"));
        Ok(())
    }

    /// Says something beside the results.
    pub(crate) fn say(&self, words: String) {
        drop(self.words.send(words));
    }
}

/// Prints results as they come. If the reader leaves, the copies go on all the same.
fn print(results: &Receiver<String>, bar: Option<&ProgressBar>) -> Result<()> {
    for line in results {
        beside(bar, || write(&line))?;
    }
    Ok(())
}

struct Speaker {
    json: bool,
    bar: Option<ProgressBar>,
    progress: Arc<Progress>,
    images: usize,
    /// What the bar stands for, where it is one image.
    name: Option<String>,
}

impl Speaker {
    fn new(json: bool, pairs: &[Pair], progress: Arc<Progress>) -> Self {
        let able = io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb");
        let bar = (able && !json).then(|| {
            let style = ProgressStyle::with_template(LOOK).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style.progress_chars("=> "))
        });
        let name = match pairs {
            [pair] => Some(pair.destination.written().to_owned()),
            _ => None,
        };
        Self { json, bar, progress, images: pairs.len(), name }
    }

    /// Says what there is to say, and shows the progress meanwhile.
    fn speak(&self, words: &Receiver<String>) {
        let pause = if self.bar.is_some() { Duration::from_millis(100) } else { Duration::from_secs(10) };
        let mut next = Instant::now() + pause;
        loop {
            match words.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(words) => beside(self.bar.as_ref(), || tell(&words)),
                Err(RecvTimeoutError::Timeout) => {
                    self.show();
                    next = Instant::now() + pause;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn show(&self) {
        let (done, known) = (self.progress.done(), self.progress.known());
        let what = match &self.name {
            Some(name) => name.clone(),
            None => format!("{} of {} images", self.progress.copied() + self.progress.failed(), self.images),
        };
        if let Some(bar) = &self.bar {
            bar.set_length(known);
            bar.set_position(done);
            bar.set_message(what);
        } else if !self.json {
            tell(&format!("Copying: {} of {}, {what}", BinaryBytes(done), BinaryBytes(known)));
        }
    }
}

fn beside<R>(bar: Option<&ProgressBar>, print: impl FnOnce() -> R) -> R {
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}
