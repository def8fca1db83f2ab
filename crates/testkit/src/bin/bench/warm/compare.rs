//! A load warmed by the operator, beside the bare loop on the same cluster, taking turns.

use std::time::Duration;

use anyhow::Result;
use fairlead_testkit::measure::{Align, Bar, Table, mebibytes, median, seconds};

use super::bare::{self, Bare};
use super::load::Load;
use super::stage::Stage;
use super::turn::{Running, Turn};
use crate::copies::{count, in_mebibytes};

const MOST_TIME: f64 = 1.3;
const MOST_MEMORY: f64 = 60.0;
/// Writes of Pods for each pull: one that creates and one that deletes, and some for what goes wrong.
const MOST_WRITES: f64 = 2.05;

/// What a batch makes of that, for each node and image.
fn most_writes(load: &Load) -> f64 {
    match load.images {
        _ if !load.batch => MOST_WRITES,
        ..20 => 0.5,
        20.. => 0.15,
    }
}

/// The bars, and the last turn of the operator.
pub(crate) async fn compare(load: &Load, rounds: usize) -> Result<(Vec<Bar>, Option<Turn>)> {
    eprintln!("{load}");
    let stage = Stage::set_up(load).await?;
    let (mut turns, mut loops) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // The contender that is first in one round is last in the next.
        for turn in 0..2 {
            if (round + turn).is_multiple_of(2) {
                let bare = bare::run(&stage, load).await?;
                eprintln!("  bare loop: {}", seconds(bare.gone));
                loops.push(bare);
            } else {
                let turn = Running::begin(&stage, load, &format!("round-{round}")).await?.end().await?;
                eprintln!("  operator: {}", seconds(turn.gone));
                turns.push(turn);
            }
        }
    }
    println!("\n{load}, medians of {rounds} rounds\n{}", table(&turns, &loops));
    let without = median(loops.iter().map(|turn| turn.gone.as_secs_f64()));
    let with = median(turns.iter().map(|turn| turn.gone.as_secs_f64()));
    let writes = turns.iter().map(|turn| count(turn.writes)).fold(f64::NAN, f64::max);
    let mut bars = vec![
        Bar::at_most(format!("{load}: time, of that of a bare loop"), with / without, MOST_TIME),
        Bar::at_most(
            format!("{load}: writes of Pods, for each node and image"),
            writes / count(load.pulls()),
            most_writes(load),
        ),
    ];
    bars.extend(outcome(&load.to_string(), &turns));
    Ok((bars, turns.pop()))
}

/// Bars that every turn has to hold, whatever happens meanwhile.
pub(crate) fn outcome(title: &str, turns: &[Turn]) -> Vec<Bar> {
    let worst = |value: &dyn Fn(&Turn) -> f64| turns.iter().map(value).fold(f64::NAN, f64::max);
    vec![
        Bar::at_most(
            format!("{title}: Pods more or fewer than one for each node and image"),
            worst(&|turn| count(turn.deviation.total())),
            0.0,
        ),
        Bar::at_most(
            format!("{title}: nodes that statuses miss, over all images"),
            worst(&|turn| count(turn.missing)),
            0.0,
        ),
        Bar::at_most(format!("{title}: Pods left after 30 s"), worst(&|turn| count(turn.left)), 0.0),
        Bar::at_most(
            format!("{title}: peak memory in MiB"),
            worst(&|turn| in_mebibytes(turn.peak)),
            MOST_MEMORY,
        ),
    ]
}

fn table(turns: &[Turn], loops: &[Bare]) -> Table {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("last pull after", Align::Right),
        ("last Pod gone after", Align::Right),
        ("status after", Align::Right),
        ("Pod writes", Align::Right),
        ("processor time", Align::Right),
        ("peak memory", Align::Right),
    ]);
    let time = |values: Vec<Duration>| {
        let middle = median(values.iter().map(Duration::as_secs_f64));
        seconds(Duration::try_from_secs_f64(middle).unwrap_or_default())
    };
    let of = |value: fn(&Turn) -> Duration| time(turns.iter().map(value).collect());
    table.row(vec![
        "operator".into(),
        of(|turn| turn.pulled),
        of(|turn| turn.gone),
        of(|turn| turn.told),
        format!("{:.0}", median(turns.iter().map(|turn| count(turn.writes)))),
        of(|turn| turn.processor),
        mebibytes(turns.iter().map(|turn| turn.peak).max().unwrap_or_default()),
    ]);
    let nothing = || "-".to_owned();
    table.row(vec![
        "bare loop".into(),
        time(loops.iter().map(|bare| bare.pulled).collect()),
        time(loops.iter().map(|bare| bare.gone).collect()),
        nothing(),
        nothing(),
        nothing(),
        nothing(),
    ]);
    table
}
