//! Warming: images onto simulated nodes, beside a loop that creates, watches and deletes the same Pods; and with an
//! operator that is killed meanwhile.

mod bare;
mod compare;
mod kills;
mod load;
mod stage;
mod turn;
mod witness;
mod writes;

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use fairlead_testkit::measure::{Bar, Bars};

use self::load::Load;
use self::stage::Stage;
use self::turn::{Running, Turn};
use crate::copies::count;

const QUICK: Duration = Duration::from_millis(200);
const SLOW: Duration = Duration::from_secs(3);
const MOST_GROWTH: f64 = 1.3;

#[derive(Args)]
pub(crate) struct Warm {
    /// What to measure; everything unless said
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// Rounds in which the operator and the bare loop have a turn each; large loads have one round
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Nodes of every load, instead of those of the scenario
    #[arg(long)]
    nodes: Option<usize>,
    /// Images of every load, instead of those of the scenario
    #[arg(long)]
    images: Option<usize>,
    /// How often the operator is killed
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// Decides when it is killed; chosen and printed unless said
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// 200 nodes and 5 images, with quick pulls and with slow ones
    Small,
    /// 1,000 nodes and 20 images
    Large,
    /// 100 nodes and 5 images, with an operator that is killed
    Kills,
    /// 200 nodes and 5 images, 1,000 nodes and 20 images, with one Pod for all images of a node
    Batch,
    /// Processor time for each pull, with 1,000 nodes and with 100
    Cpu,
}

impl Warm {
    /// Whether every bar is held.
    pub(crate) async fn run(self) -> Result<bool> {
        let mut bars = Bars::default();
        let wanted = |scenario| self.scenarios.is_empty() || self.scenarios.contains(&scenario);
        if wanted(Scenario::Small) {
            for pull in [QUICK, SLOW] {
                let load = self.load(200, 5, pull);
                print!("{}", bars.add(compare::compare(&load, self.rounds).await?.0));
            }
        }
        let mut large = None;
        if wanted(Scenario::Large) {
            let (found, turn) = compare::compare(&self.load(1000, 20, QUICK), 1).await?;
            large = turn;
            print!("{}", bars.add(found));
        }
        if wanted(Scenario::Batch) {
            for (nodes, images, rounds) in [(200, 5, self.rounds), (1000, 20, 1)] {
                let load = Load { batch: true, ..self.load(nodes, images, QUICK) };
                print!("{}", bars.add(compare::compare(&load, rounds).await?.0));
            }
        }
        if wanted(Scenario::Kills) {
            let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
            print!("{}", bars.add(kills::kills(&self.load(100, 5, QUICK), self.kills, seed).await?));
        }
        if wanted(Scenario::Cpu) {
            print!("{}", bars.add(vec![self.growth(large).await?]));
        }
        print!("\nWarming: {bars}");
        Ok(bars.all_held())
    }

    fn load(&self, nodes: usize, images: usize, pull: Duration) -> Load {
        Load { nodes: self.nodes.unwrap_or(nodes), images: self.images.unwrap_or(images), pull, batch: false }
    }

    /// How processor time for each pull grows with the number of nodes: from a tenth of them to all.
    async fn growth(&self, large: Option<Turn>) -> Result<Bar> {
        let load = self.load(1000, 20, QUICK);
        let tenth = Load { nodes: load.nodes.div_ceil(10), ..load };
        let large = match large {
            Some(turn) => turn,
            None => one(&load).await?,
        };
        let small = one(&tenth).await?;
        let each = |turn: &Turn| 1000.0 * turn.processor.as_secs_f64() / count(turn.load.pulls());
        println!(
            "\nProcessor time for each pull: {:.3} ms with {} nodes, {:.3} ms with {}",
            each(&large),
            large.load.nodes,
            each(&small),
            small.load.nodes
        );
        let what = format!("processor time for each pull with {} nodes, of that with a tenth", load.nodes);
        Ok(Bar::at_most(what, each(&large) / each(&small), MOST_GROWTH))
    }
}

async fn one(load: &Load) -> Result<Turn> {
    let stage = Stage::set_up(load).await?;
    Running::begin(&stage, load, "alone").await?.end().await
}
