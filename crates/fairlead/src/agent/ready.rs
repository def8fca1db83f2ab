//! Whether the agent is ready, as a file that a probe reads.
//!
//! During an upgrade two agents share the network of their node, so a probe by address could reach the other one.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use fairlead_node::status::Readiness;

use crate::output::tell;

/// An agent that has not said so for longer is not ready.
const FRESH: Duration = Duration::from_mins(1);

/// Tell whether an agent is ready, by the file that it keeps
#[derive(Debug, Args)]
pub(crate) struct Ready {
    /// File that the agent was given with --ready-file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Tell whether the agent does anything at all, ready or not
    #[arg(long)]
    alive: bool,
}

impl Ready {
    pub(super) fn run(&self) -> ExitCode {
        match self.problem() {
            None => ExitCode::SUCCESS,
            Some(problem) => {
                tell(&problem);
                ExitCode::FAILURE
            }
        }
    }

    fn problem(&self) -> Option<String> {
        let read = std::fs::read_to_string(&self.file).and_then(|text| {
            let age = std::fs::metadata(&self.file)?.modified()?.elapsed().unwrap_or_default();
            Ok((text, age))
        });
        match read {
            Err(error) => Some(format!("{}: {error}", self.file.display())),
            Ok((_, age)) if age > FRESH => {
                Some(format!("the agent has been silent for {} seconds", age.as_secs()))
            }
            Ok((text, _)) => (!text.is_empty() && !self.alive).then_some(text),
        }
    }
}

/// Writes to the file what keeps the agent from being ready, or nothing, whenever the agent says it.
pub(super) async fn keep(file: PathBuf, mut readiness: Readiness) {
    loop {
        let text = readiness.borrow_and_update().clone().unwrap_or_default();
        // A few bytes in memory: not worth another thread.
        if let Err(error) = std::fs::write(&file, text) {
            tracing::warn!(%error, file = %file.display(), "cannot write the file for readiness probes");
        }
        if readiness.changed().await.is_err() {
            return;
        }
    }
}
