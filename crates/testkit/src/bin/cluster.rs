//! Leaves a cluster running for development, and ends it: what `make cluster` and `make cluster-down` call.

#![allow(clippy::print_stdout, reason = "a command speaks to its user on standard output")]

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use fairlead_testkit::cluster::node;
use fairlead_testkit::standing::{Holds, Standing, Up};

/// A Kubernetes cluster on this machine, without containers around it.
#[derive(Parser)]
#[command(name = "cluster", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a cluster with a node, two registries and Fairlead, and leave it running
    Up {
        /// Control plane and registries only; needs no root
        #[arg(long)]
        no_node: bool,
        /// Leave Fairlead out
        #[arg(long)]
        no_fairlead: bool,
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
        Command::Up { no_node, no_fairlead, foreground } => {
            let holds = match (no_node, no_fairlead) {
                (true, _) => Holds::ControlPlane,
                (false, true) => Holds::Node,
                (false, false) => Holds::Fairlead,
            };
            up(&place, holds, foreground).await
        }
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

async fn up(place: &Standing, mut holds: Holds, foreground: bool) -> Result<()> {
    if holds != Holds::ControlPlane
        && let Some(reason) = node::missing()
    {
        println!("Going on without a node, and so without Fairlead: {reason}.");
        holds = Holds::ControlPlane;
    }
    match place.up(holds).await? {
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
