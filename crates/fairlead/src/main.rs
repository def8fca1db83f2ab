//! The program: arguments, wiring, signals. Everything it does is in the crates below it.

mod access;
mod agent;
mod api_server;
mod config;
mod connect;
mod copy;
mod crds;
mod ending;
mod explain;
mod inventory;
mod logging;
mod login;
mod manifests;
mod mirror;
mod nodes;
mod operator;
mod output;
mod pin;
mod probe;
mod readiness;
mod references;
mod screen;
mod stored;
mod warm;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

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
    Agent(Box<agent::Agent>),
    Explain(Box<explain::Explain>),
    Probe(Box<probe::Probe>),
    Copy(Box<copy::CopyImages>),
    Inventory(Box<inventory::Inventory>),
    Pin(Box<pin::Pin>),
    Mirror(mirror::MirrorArguments),
    Warm(warm::Warm),
    Render(Box<nodes::Render>),
    Resolve(Box<nodes::Resolve>),
    Convert(nodes::Convert),
    Manifests(manifests::Manifests),
    Crds(crds::Crds),
    Config(config::Config),
}

fn main() -> ExitCode {
    match arguments().command.run() {
        Ok(status) => status,
        Err(error) => {
            output::tell(&format!("Error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// kubectl runs `kubectl-fairlead` where a person types `kubectl fairlead`, so that is what usage texts must say.
fn arguments() -> Arguments {
    let called = std::env::args_os().next().unwrap_or_default();
    let mut command = Arguments::command();
    if Path::new(&called).file_stem().is_some_and(|name| name == "kubectl-fairlead") {
        command = command.bin_name("kubectl fairlead");
    }
    Arguments::from_arg_matches(&command.get_matches_mut()).unwrap_or_else(|error| error.exit())
}

impl Command {
    fn run(self) -> Result<ExitCode> {
        match self {
            Self::Explain(explain) => return explain.run(),
            Self::Probe(probe) => return Ok(probe.run()),
            Self::Copy(copy) => return Ok(copy.run()),
            Self::Inventory(inventory) => return inventory.run(),
            Self::Pin(pin) => return pin.run(),
            Self::Mirror(mirror) => return mirror.run(),
            Self::Warm(warm) => return warm.run(),
            Self::Render(render) => return render.run(),
            Self::Resolve(resolve) => return resolve.run(),
            Self::Convert(convert) => return convert.run(),
            Self::Agent(agent) => return agent.run(),
            Self::Operator(operator) => operator.run(),
            Self::Manifests(manifests) => print(&manifests.render()?),
            Self::Crds(crds) => print(&crds.render()?),
            Self::Config(config) => print(&config.run()?),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes a result to standard output. A reader that leaves before the end is no error.
fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
