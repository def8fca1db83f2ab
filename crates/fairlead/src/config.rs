//! `fairlead config`: looks at a configuration file without running anything.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use fairlead_operator::platform::config;

/// Look at configuration files
#[derive(Debug, Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say whether a configuration file is valid, and everything that is wrong with it
    Check {
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

impl Config {
    /// What to print about a valid file.
    pub(crate) fn run(&self) -> Result<String> {
        let Command::Check { file } = &self.command;
        let loaded = config::Config::load(Some(file), |_| None)?;
        let warnings = loaded.warnings.iter().map(|warning| format!("warning: {warning}\n"));
        Ok(warnings.chain([format!("{} is valid\n", file.display())]).collect())
    }
}
