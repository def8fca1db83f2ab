//! A registry that accepts connections and never answers, first in order: what it costs the Pods that meet it first,
//! what it costs all others while it stays dead, and how long it takes until it is used again.

use std::time::Duration;

use anyhow::Result;
use fairlead_testkit::measure::{Align, Bar, Table, median};

use super::compare::milliseconds;
use super::reviews::{IMAGES, Shape};
use super::server::{Patience, Server};
use super::stage::Stage;
use super::{POLICIES, SOON};

const WARM_UP: f64 = 0.5;
/// Configuration's default for a probe, in seconds, and what the machine may add.
const LONGEST_FIRST: f64 = 1.0 + 0.1;
const MOST_MEDIAN: f64 = 1.5;
/// How long the registry refuses connections before it is back.
const RESTART: Duration = Duration::from_millis(500);
/// Seconds until a registry that answers again is used again.
const BACK: f64 = 10.0;

/// One round, in seconds.
struct Round {
    dead: f64,
    dead_p99: f64,
    healthy: f64,
    healthy_p99: f64,
    /// From its return until it is used for every image.
    back: f64,
    /// From its death until no Pod is sent to it.
    away: f64,
    /// The longest that a Pod waited meanwhile.
    slowest: f64,
}

pub(crate) async fn outage(stage: &mut Stage, rounds: usize, seconds: f64) -> Result<Vec<Bar>> {
    stage.policies(POLICIES).await?;
    stage.wire.stall();
    let operator = stage.fresh_operator(stage.operator(), Patience(SOON)).await?;
    let mut load = stage.load(&operator, Shape::of(1), SOON.as_secs_f64());
    (load.requests, load.expect) = (Some(IMAGES), Some(stage.second()));
    let first = load.elsewhere().await?;
    println!(
        "\nThe first {IMAGES} Pods that meet a dead registry: median {}, slowest {}",
        milliseconds(first.median),
        milliseconds(first.slowest)
    );
    let mut results = Vec::new();
    for _ in 0..rounds {
        results.push(round(stage, &operator, seconds).await?);
    }
    // For what is measured next.
    stage.wire.heal();
    let middle = |value: fn(&Round) -> f64| median(results.iter().map(value));
    let mut table = Table::new(&[
        ("first in order", Align::Left),
        ("median", Align::Right),
        ("99th percentile", Align::Right),
    ]);
    table.row(vec![
        "healthy".into(),
        milliseconds(middle(|r| r.healthy)),
        milliseconds(middle(|r| r.healthy_p99)),
    ]);
    table.row(vec!["dead".into(), milliseconds(middle(|r| r.dead)), milliseconds(middle(|r| r.dead_p99))]);
    println!("\nAdmission of {}, medians of {rounds} rounds\n{table}", Shape::of(1));
    println!(
        "  Used again after {:.1} s. When it dies while it is in use, no Pod is sent to it after {:.1} s; the slowest \
         admission meanwhile takes {}.",
        middle(|r| r.back),
        middle(|r| r.away),
        milliseconds(middle(|r| r.slowest)),
    );
    let worst = |value: fn(&Round) -> f64| results.iter().map(value).fold(0.0, f64::max);
    Ok(vec![
        Bar::at_most(
            "a dead registry first: seconds that the slowest of the first Pods waits",
            first.slowest,
            LONGEST_FIRST,
        ),
        Bar::at_most(
            "a dead registry first: median, of the healthy case's",
            middle(|r| r.dead / r.healthy),
            MOST_MEDIAN,
        ),
        Bar::at_most(
            "a dead registry that comes back: seconds until it is used again",
            worst(|r| r.back),
            BACK,
        ),
    ])
}

/// Begins and ends with the registry dead and known to be so.
async fn round(stage: &Stage, operator: &Server, seconds: f64) -> Result<Round> {
    let measure = async |place: String| {
        let mut load = stage.load(operator, Shape::of(1), WARM_UP + seconds);
        (load.warm_up, load.expect) = (WARM_UP, Some(place));
        load.elsewhere().await
    };
    let dead = measure(stage.second()).await?;
    // As after a restart: connections from before are lost, and bytes on their way with them.
    stage.wire.cut();
    tokio::time::sleep(RESTART).await;
    stage.wire.heal();
    let (back, _) = stage.until_all_from(operator, &stage.first()).await?;
    let healthy = measure(stage.first()).await?;
    stage.wire.stall();
    let (away, slowest) = stage.until_all_from(operator, &stage.second()).await?;
    let seconds = |time: Duration| time.as_secs_f64();
    Ok(Round {
        dead: dead.median,
        dead_p99: dead.p99,
        healthy: healthy.median,
        healthy_p99: healthy.p99,
        back: seconds(back),
        away: seconds(away),
        slowest: seconds(slowest),
    })
}
