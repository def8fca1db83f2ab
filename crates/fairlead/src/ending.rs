//! How commands for people end: with their work, or when they are interrupted.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Does the work of a command that mostly waits for answers.
pub(crate) fn run_to_end<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let done = runtime.block_on(work)?;
    // Abandoned probes, and names that are still being resolved, must not hold up the end.
    runtime.shutdown_background();
    Ok(done)
}

/// A request to end, from a person or from whatever started the program.
pub(crate) struct Interruption {
    from_keyboard: Signal,
    termination: Signal,
}

impl Interruption {
    pub(crate) fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            from_keyboard: listen(SignalKind::interrupt())?,
            termination: listen(SignalKind::terminate())?,
        })
    }

    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.from_keyboard.recv() => {}
            _ = self.termination.recv() => {}
        }
    }
}
