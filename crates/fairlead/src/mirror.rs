//! `fairlead mirror`: what people want to know about the copies that the operator makes.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use self::status::Status;

mod cluster;
mod object;
mod report;
mod rows;
mod status;
mod table;
mod view;

/// Look at mirrors and their copies
#[derive(Debug, Args)]
pub(crate) struct MirrorArguments {
    #[command(subcommand)]
    command: MirrorCommand,
}

#[derive(Debug, Subcommand)]
enum MirrorCommand {
    Status(Box<Status>),
}

impl MirrorArguments {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        match &self.command {
            MirrorCommand::Status(status) => status.run(),
        }
    }
}
