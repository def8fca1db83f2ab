//! Nodes that follow mirror policies: what a pull through the router takes beside a direct one, what the agent takes
//! while nothing happens, how soon a change holds, and what reports of many nodes cost.

mod agent;
mod pulls;
mod reports;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use fairlead_testkit::measure::Bars;

#[derive(Args)]
pub(crate) struct Nodes {
    /// What to measure; everything unless said
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// How long an agent is watched while nothing happens. What it does by itself repeats after 10 and after 60 s, so
    /// an hour, which the bar is about, shows no more than some minutes
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    idle: u64,
    /// Runs of each way to pull
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// 2 GiB through the router, beside a direct pull
    Pulls,
    /// One agent: changes, and nothing at all
    Agent,
    /// 1,000 reports
    Reports,
}

impl Nodes {
    /// Whether every bar is held.
    pub(crate) async fn run(self) -> Result<bool> {
        let mut bars = Bars::default();
        let wanted = |scenario| self.scenarios.is_empty() || self.scenarios.contains(&scenario);
        if wanted(Scenario::Pulls) {
            print!("{}", bars.add(pulls::measure(self.runs).await?));
        }
        if wanted(Scenario::Agent) {
            print!("{}", bars.add(agent::measure(Duration::from_secs(self.idle)).await?));
        }
        if wanted(Scenario::Reports) {
            print!("{}", bars.add(reports::measure().await?));
        }
        println!("\n{bars}");
        Ok(bars.all_held())
    }
}

/// The program beside this one.
fn fairlead() -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("fairlead");
    ensure!(program.exists(), "{} is not built", program.display());
    Ok(program)
}
