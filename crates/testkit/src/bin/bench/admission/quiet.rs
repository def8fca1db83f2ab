//! A registry that dies while no Pod is created, first in order: whether any Pod of the wave that ends the quiet gets
//! it, how long the first of them waits, and what a healthy registry is asked at that moment.

use std::time::Duration;

use anyhow::{Result, ensure};
use fairlead_testkit::measure::{Align, Bar, Table};

use super::compare::milliseconds;
use super::load::Outcome;
use super::reviews::Shape;
use super::server::{Patience, Server};
use super::stage::Stage;
use super::{POLICIES, SOON};

const QUIET: Duration = Duration::from_secs(20);
/// Pods of one wave, all at once.
const WAVE: usize = 50;
/// Configuration's default for a check, in seconds, and what the machine may add.
const LONGEST_FIRST: f64 = 1.0 + 0.1;

/// What happens to the first mirror.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The process is stopped: connections are accepted and nothing answers.
    Stopped,
    /// Connections break, new ones are refused.
    Killed,
    /// Established connections work, new ones are refused.
    Refusing,
    /// Established connections work, new ones are reset.
    Resetting,
}

impl Fault {
    const ALL: [Self; 4] = [Self::Stopped, Self::Killed, Self::Refusing, Self::Resetting];

    async fn strike(self, stage: &Stage) -> Result<()> {
        match self {
            Self::Stopped => stage.first_mirror.pause().await?,
            Self::Killed => stage.wire.kill(),
            Self::Refusing => stage.wire.refuse_new(),
            Self::Resetting => stage.wire.reset_new(),
        }
        Ok(())
    }

    async fn heal(self, stage: &Stage) -> Result<()> {
        if matches!(self, Self::Stopped) {
            stage.first_mirror.resume().await?;
        }
        stage.wire.heal();
        Ok(())
    }
}

pub(crate) async fn quiet(stage: &mut Stage) -> Result<Vec<Bar>> {
    stage.policies(POLICIES).await?;
    let operator = stage.warm_operator(stage.operator_without_refresh()?, Patience(SOON)).await?;
    tokio::time::sleep(QUIET).await;
    let before = (stage.wire.connections(), stage.first_mirror.accesses()?.len());
    let healthy = wave(stage, &operator, stage.first()).await?;
    let connections = stage.wire.connections() - before.0;
    // A registry writes some of its log after it has answered.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let requests = stage.first_mirror.accesses()?.len() - before.1;
    let mut table = Table::new(&[
        ("after 20 s of quiet", Align::Left),
        ("median", Align::Right),
        ("slowest", Align::Right),
    ]);
    let mut row = |what: String, outcome: &Outcome| {
        table.row(vec![what, milliseconds(outcome.median), milliseconds(outcome.slowest)]);
    };
    row("healthy".to_owned(), &healthy);
    let mut bars = vec![
        Bar::at_most("healthy and quiet: connections that the first wave costs", count(connections), 1.0),
        Bar::at_most("healthy and quiet: requests that the first wave costs", count(requests), 1.0),
    ];
    for fault in Fault::ALL {
        stage.until_all_from(&operator, &stage.first()).await?;
        tokio::time::sleep(QUIET).await;
        fault.strike(stage).await?;
        // It fails if any Pod gets the first mirror.
        let outcome = wave(stage, &operator, stage.second()).await;
        fault.heal(stage).await?;
        let outcome = outcome?;
        ensure!(outcome.requests == WAVE, "{} of {WAVE} Pods", outcome.requests);
        row(format!("{fault:?}").to_lowercase(), &outcome);
        let what = format!("dead while quiet ({fault:?}): seconds that the slowest Pod waits");
        bars.push(Bar::at_most(what, outcome.slowest, LONGEST_FIRST));
    }
    println!("\n{WAVE} Pods at once\n{table}");
    Ok(bars)
}

fn count(found: usize) -> f64 {
    u32::try_from(found).map_or(f64::INFINITY, f64::from)
}

/// Pods that come all at once, and must get their images from `place`.
async fn wave(stage: &Stage, operator: &Server, place: String) -> Result<Outcome> {
    let mut load = stage.load(operator, Shape::of(1), SOON.as_secs_f64());
    (load.connections, load.requests, load.expect) = (WAVE, Some(WAVE), Some(place));
    load.elsewhere().await
}
