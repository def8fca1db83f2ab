//! Leaves a cluster running for development, and ends it: what `make cluster` and `make cluster-down` call.

#![allow(clippy::print_stdout, reason = "a command speaks to its user on standard output")]

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use fairlead_testkit::cluster::node;
use fairlead_testkit::standing::{Standing, Up};

/// A Kubernetes cluster on this machine, without containers around it.
#[derive(Parser)]
#[command(name = "cluster", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a cluster with a node and two registries and leave it running
    Up {
        /// Control plane and registries only; needs no root
        #[arg(long)]
        no_node: bool,
        /// Stay, and end the cluster with this command
        #[arg(long)]
        foreground: bool,
    },
    /// End the cluster and remove all its files
    Down,
    /// Say whether a cluster is running and how to use it
    Status,
}

#[tokio::main]
async fn main() -> Result<()> {
    let place = Standing::from_environment()?;
    match Arguments::parse().command {
        Command::Up { no_node, foreground } => up(&place, no_node, foreground).await,
        Command::Down => {
            let text = if place.down()? {
                "The cluster has ended; nothing of it is left."
            } else {
                "No cluster was running."
            };
            println!("{text}");
            Ok(())
        }
        Command::Status => {
            let text = if place.is_running()? {
                place.guide()?
            } else {
                "No cluster is running. Start one with `make cluster`.\n".to_owned()
            };
            print!("{text}");
            Ok(())
        }
    }
}

async fn up(place: &Standing, no_node: bool, foreground: bool) -> Result<()> {
    let missing = if no_node { None } else { node::missing() };
    if let Some(reason) = &missing {
        println!("Going on without a node: {reason}.");
    }
    match place.up(!no_node && missing.is_none()).await? {
        Up::AlreadyRunning { guide } => print!("It is already up.\n\n{guide}"),
        Up::Started { guide, cluster, registries: _registries } => {
            print!("{guide}");
            if foreground {
                println!("Press Ctrl-C to end it.");
                tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C")?;
            } else {
                cluster.detach().await?;
            }
        }
    }
    Ok(())
}
