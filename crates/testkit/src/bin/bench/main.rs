//! `make bench`: the product measured beside other programs that do the same, with bars that hold or do not.
//!
//! Each measurement is a module of its own and a command of this program, which ends with a failure if a bar is not
//! held.

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a measurement is there to be read")]

mod admission;
mod copies;
mod heal;
mod inventory;
mod mirror;
mod nodes;
mod warm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures the product
#[derive(Parser)]
#[command(name = "bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Admit Pods: the operator with many policies, beside a handler that only reads the review
    Admission(admission::Admission),
    /// Read reviews and admit the Pods, and nothing else
    BareAdmission(admission::Bare),
    /// Keep connections to a webhook busy with reviews of Pods
    AdmissionLoad(admission::Load),
    /// Copy images between two registries: fairlead, skopeo, crane and the bare cost of sending the same bytes
    Copies(copies::Copies),
    /// Heal Pods: many whose registry dies at once, on simulated nodes, and single ones on a real node
    Heal(heal::Heal),
    /// Keep the inventory of a full cluster: memory of the replica that leads beside another one, series, and queries
    Inventory(inventory::Inventory),
    /// Mirror images: the operator beside fairlead copy on the same list, and a restart with everything copied
    Mirror(mirror::Mirror),
    /// Follow mirror policies on a node: pulls through the router beside direct ones, and what the agent costs
    Nodes(nodes::Nodes),
    /// Warm nodes: the operator on simulated ones, beside a bare loop that creates and deletes the same Pods
    Warm(warm::Warm),
    /// Send the blobs of a directory to a registry, eight at once, and nothing else
    Floor(copies::Floor),
}

#[tokio::main]
async fn main() -> ExitCode {
    fairlead_testkit::install_crypto();
    let outcome = match Arguments::parse().command {
        Command::Admission(admission) => admission.run().await,
        Command::BareAdmission(bare) => bare.run().await.map(|()| true),
        Command::AdmissionLoad(load) => load.run().await.map(|()| true),
        Command::Copies(copies) => copies.run().await,
        Command::Heal(heal) => heal.run().await,
        Command::Inventory(inventory) => inventory.run().await,
        Command::Mirror(mirror) => mirror.run().await,
        Command::Nodes(nodes) => nodes.run().await,
        Command::Warm(warm) => warm.run().await,
        Command::Floor(floor) => floor.run().await.map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("The measurement could not go on: {error:#}");
            ExitCode::FAILURE
        }
    }
}
