//! `fairlead warm`: what people want to know about the images that the operator pulls onto nodes.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use self::status::Status;

mod cluster;
mod report;
mod status;
mod table;

/// Look at images that are pulled onto nodes before Pods ask for them
#[derive(Debug, Args)]
pub(crate) struct Warm {
    #[command(subcommand)]
    command: WarmCommand,
}

#[derive(Debug, Subcommand)]
enum WarmCommand {
    Status(Box<Status>),
}

impl Warm {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        match &self.command {
            WarmCommand::Status(status) => status.run(),
        }
    }
}
