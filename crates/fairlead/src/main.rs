//! The program: arguments, wiring, signals. Everything it does is in the crates below it.

mod access;
mod config;
mod connect;
mod copy;
mod crds;
mod logging;
mod manifests;
mod operator;
mod output;
mod probe;
mod references;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The allocator of the static C library that releases are built with is slow under several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Dependable image pulls for Kubernetes
#[derive(Debug, Parser)]
#[command(name = "fairlead", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Operator(Box<operator::Operator>),
    Probe(Box<probe::Probe>),
    Copy(Box<copy::CopyImages>),
    Manifests(manifests::Manifests),
    Crds(crds::Crds),
    Config(config::Config),
}

fn main() -> ExitCode {
    match Arguments::parse().command.run() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn run(self) -> Result<ExitCode> {
        match self {
            Self::Probe(probe) => return Ok(probe.run()),
            Self::Copy(copy) => return Ok(copy.run()),
            Self::Operator(operator) => operator.run(),
            Self::Manifests(manifests) => print(&manifests.render()?),
            Self::Crds(crds) => print(&crds.render()?),
            Self::Config(config) => print(&config.run()?),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes a result to standard output. Whoever reads it may have seen enough before the end, which is no error.
fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
