//! Healing: many Pods on simulated nodes whose registry dies at once, and single Pods on a real node.

mod node;
mod stage;
mod storm;

use anyhow::Result;
use clap::{Args, ValueEnum};
use fairlead_testkit::measure::Bars;

use self::storm::Storm;

#[derive(Args)]
pub(crate) struct Heal {
    /// What to measure; everything unless said
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// Pods that fail at once
    #[arg(long, default_value_t = 2000)]
    pods: usize,
    /// Images that they use
    #[arg(long, default_value_t = 200)]
    images: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// 200 patches per second are allowed
    Fast,
    /// 20 patches per second are allowed, as without configuration
    Slow,
    /// From the first failure to a running container, on a real node; needs root
    Node,
}

impl Heal {
    /// Whether every bar is held.
    pub(crate) async fn run(self) -> Result<bool> {
        let mut bars = Bars::default();
        let wanted = |scenario| self.scenarios.is_empty() || self.scenarios.contains(&scenario);
        for (scenario, per_second, limit) in [(Scenario::Fast, 200, 15.0), (Scenario::Slow, 20, 130.0)] {
            if wanted(scenario) {
                let storm = Storm { pods: self.pods, images: self.images, per_second, limit };
                print!("{}", bars.add(storm.measure().await?));
            }
        }
        if wanted(Scenario::Node) {
            print!("{}", bars.add(node::measure().await?));
        }
        print!("\nHealing: {bars}");
        Ok(bars.all_held())
    }
}
