//! Admission: what it costs beside the bare cost of reading a review, what policies add, and what a dead registry and a
//! namespace that asks for too much add.

mod answers;
mod bare;
pub(crate) mod client;
mod compare;
mod crowd;
mod instructions;
mod load;
mod outage;
mod pinning;
mod policies;
mod quiet;
pub(crate) mod reviews;
mod server;
mod stage;

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use fairlead_testkit::measure::Bars;

pub(crate) use bare::Bare;
pub(crate) use load::Load;
use stage::Stage;

/// Policies in the cluster.
const POLICIES: usize = 1000;
const SOON: Duration = Duration::from_mins(1);

#[derive(Args)]
pub(crate) struct Admission {
    /// What to measure; everything unless said
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// Rounds in which each has a turn
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of each turn
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Instructions of one admission with 10 and with 1,000 policies
    Instructions,
    /// The operator beside the bare handler
    Compare,
    /// A registry that accepts connections and never answers
    Outage,
    /// A registry that dies while no Pod is created
    Quiet,
    /// The operator that pins every tag beside one that pins none
    Pinning,
    /// A namespace with so many policies that its lists would have a million places
    Crowd,
}

impl Admission {
    /// Whether every bar is held.
    pub(crate) async fn run(self) -> Result<bool> {
        let mut stage = Stage::set_up().await?;
        let mut bars = Bars::default();
        let wanted = |scenario| self.scenarios.is_empty() || self.scenarios.contains(&scenario);
        // First, while there are few policies.
        if wanted(Scenario::Instructions) {
            print!("{}", bars.add(instructions::instructions(&mut stage).await?));
        }
        if wanted(Scenario::Compare) {
            print!("{}", bars.add(compare::compare(&mut stage, self.rounds, self.seconds).await?));
        }
        if wanted(Scenario::Pinning) {
            print!("{}", bars.add(pinning::pinning(&mut stage, self.rounds, self.seconds).await?));
        }
        if wanted(Scenario::Outage) {
            print!("{}", bars.add(outage::outage(&mut stage, self.rounds, self.seconds).await?));
        }
        if wanted(Scenario::Quiet) {
            print!("{}", bars.add(quiet::quiet(&mut stage).await?));
        }
        if wanted(Scenario::Crowd) {
            print!("{}", bars.add(crowd::crowd(&mut stage, self.rounds, self.seconds).await?));
        }
        print!("\nAdmission: {bars}");
        Ok(bars.all_held())
    }
}
