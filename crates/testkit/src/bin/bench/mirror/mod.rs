//! Mirroring: from the creation of a mirror object to the last copy, beside `fairlead copy` on the same list; and a
//! restart with everything copied already.

mod copying;
mod restart;
pub(crate) mod stage;
mod writes;

use anyhow::Result;
use clap::{Args, ValueEnum};
use fairlead_testkit::measure::Bars;

#[derive(Args)]
pub(crate) struct Mirror {
    /// What to measure; everything unless said
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// Rounds in which the operator and the command have a turn each
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Images that are copied already when the operator is restarted
    #[arg(long, default_value_t = 20_000)]
    images: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// 200 small images into repositories of their own
    Copying,
    /// An operator that starts when everything is copied
    Restart,
}

impl Mirror {
    /// Whether every bar is held.
    pub(crate) async fn run(self) -> Result<bool> {
        let mut bars = Bars::default();
        let wanted = |scenario| self.scenarios.is_empty() || self.scenarios.contains(&scenario);
        if wanted(Scenario::Copying) {
            print!("{}", bars.add(copying::copying(self.rounds).await?));
        }
        if wanted(Scenario::Restart) {
            print!("{}", bars.add(restart::restart(self.images).await?));
        }
        print!("\nMirroring: {bars}");
        Ok(bars.all_held())
    }
}
