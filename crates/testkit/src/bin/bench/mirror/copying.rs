//! 200 small images into repositories of their own: the operator, from the creation of the object to the last copy, and
//! `fairlead copy` with the same list, taking turns, each time into a fresh registry.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fairlead_testkit::measure::{Align, Bar, Table, mebibytes, median, seconds};
use fairlead_testkit::registry::{Access, Registry, RegistryConfig};
use reqwest::Method;

use super::stage::Stage;
use super::writes::Writes;
use crate::copies::contenders::{Contender, Programs, Task};
use crate::copies::run::{Outcome, requests, run};
use crate::copies::source::{IMAGES, MANY, Small, Source};
use crate::copies::{count, in_mebibytes};

const DEADLINE: Duration = Duration::from_mins(3);
const LOOK: Duration = Duration::from_millis(25);

/// What the existing system came to on a machine like this: requests at the destination, of which half is the bar.
const REQUESTS_BEFORE: f64 = 5402.0;
const MOST_TIME: f64 = 1.5;
const MOST_MEMORY: f64 = 60.0;

/// One turn of the operator.
struct Turn {
    /// From the creation of the object until the last copy has its name.
    copied: Duration,
    /// Until the status says so.
    told: Duration,
    at_destination: usize,
    at_source: usize,
    peak: u64,
    writes: Writes,
}

impl Turn {
    /// Writes that are bounded, for each second that there was something to write about. The first comes at once.
    fn writes_per_second(&self) -> f64 {
        count(self.writes.of_progress()) / (self.told.as_secs_f64() + 1.0)
    }
}

pub(crate) async fn copying(rounds: usize) -> Result<Vec<Bar>> {
    let stage = Stage::set_up().await?;
    let (programs, source) = (Programs::find().await?, Source::start().await?);
    let small = source.small().await?;
    let host = source.registry().host();
    let images: Vec<Vec<String>> =
        small.images.iter().map(|(name, _)| vec![format!("{host}/{MANY}/{name}:1")]).collect();
    stage.pods(&images).await?;
    let (mut turns, mut commands) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // The one that comes first in one round comes last in the next.
        for turn in 0..2 {
            if (round + turn).is_multiple_of(2) {
                turns.push(one_turn(&stage, &source, &small, &format!("bench-{round}")).await?);
            } else {
                commands.push(run(&programs, &source, Contender::Fairlead, Task::ToMany(&small)).await?);
            }
        }
    }
    println!(
        "\nMirroring of {IMAGES} small images, medians of {rounds} rounds\n{}",
        table(&turns, &commands)
    );
    let command = median(commands.iter().map(|outcome| outcome.cost.wall.as_secs_f64()));
    let mirror = median(turns.iter().map(|turn| turn.copied.as_secs_f64()));
    let worst = |value: fn(&Turn) -> f64| turns.iter().map(value).fold(f64::NAN, f64::max);
    let title = format!("mirroring of {IMAGES} images");
    Ok(vec![
        Bar::at_most(format!("{title}: time, of that of fairlead copy"), mirror / command, MOST_TIME),
        Bar::at_most(
            format!("{title}: requests at the destination"),
            worst(|turn| count(turn.at_destination)),
            REQUESTS_BEFORE / 2.0,
        ),
        Bar::at_most(
            format!("{title}: writes of ledgers and statuses in each second"),
            worst(Turn::writes_per_second),
            1.0,
        ),
        Bar::at_most(
            format!("{title}: peak memory in MiB"),
            worst(|turn| in_mebibytes(turn.peak)),
            MOST_MEMORY,
        ),
    ])
}

async fn one_turn(stage: &Stage, source: &Source, small: &Small, name: &str) -> Result<Turn> {
    let destination = Registry::start(RegistryConfig::new()).await?;
    let operator = stage.operator(IMAGES).await?;
    let (before, at_source) = (stage.writes()?, requests(source.registry()).await?);
    let begun = Instant::now();
    stage.mirror(name, &source.registry().host(), &destination.host()).await?;
    let copied = async {
        until_all_are_named(&destination).await?;
        anyhow::Ok(begun.elapsed())
    };
    let told = async {
        stage.until_mirrored(name, IMAGES, DEADLINE).await?;
        anyhow::Ok(begun.elapsed())
    };
    let both = async { tokio::try_join!(copied, told) };
    let (copied, told) = both.await.map_err(|error| error.context(operator.process.log_tail()))?;
    let writes = stage.settled_writes(before, DEADLINE).await?;
    let turn = Turn {
        copied,
        told,
        at_destination: requests(&destination).await?,
        at_source: requests(source.registry()).await?.saturating_sub(at_source),
        peak: operator.process.peak_memory()?,
        writes,
    };
    check(&destination, small).await?;
    stage.remove(name).await?;
    operator.stop().await?;
    destination.kill().await?;
    std::fs::remove_dir_all(destination.directory())?;
    Ok(turn)
}

/// A copy is named last of all.
async fn until_all_are_named(destination: &Registry) -> Result<()> {
    let end = Instant::now() + DEADLINE;
    loop {
        let accesses = destination.accesses()?;
        let is_name = |access: &&Access| {
            access.method == "PUT" && access.path.contains("/manifests/") && access.status == 201
        };
        let named = accesses.iter().filter(is_name).count();
        if named >= IMAGES {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{named} of {IMAGES} images are copied");
        tokio::time::sleep(LOOK).await;
    }
}

/// Every copy is there, unchanged.
async fn check(destination: &Registry, small: &Small) -> Result<()> {
    let client = destination.endpoint().http()?;
    for (name, image) in &small.images {
        let path = format!("/v2/{MANY}/{name}/manifests/1");
        let head = destination.endpoint().request(&client, Method::HEAD, &path);
        let answer = head.header("accept", fairlead_testkit::images::media_type::MANIFEST).send().await?;
        let found = answer.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
        ensure!(found == Some(&image.digest), "the copy at {path} is {found:?} instead of {}", image.digest);
    }
    Ok(())
}

fn table(turns: &[Turn], commands: &[Outcome]) -> Table {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("last copy after", Align::Right),
        ("status after", Align::Right),
        ("requests at source", Align::Right),
        ("at destination", Align::Right),
        ("ledger writes", Align::Right),
        ("status writes", Align::Right),
        ("other writes", Align::Right),
        ("peak memory", Align::Right),
    ]);
    let of = |value: fn(&Turn) -> f64| median(turns.iter().map(value));
    let whole = |value: f64| format!("{value:.0}");
    table.row(vec![
        "operator".into(),
        seconds(Duration::try_from_secs_f64(of(|turn| turn.copied.as_secs_f64())).unwrap_or_default()),
        seconds(Duration::try_from_secs_f64(of(|turn| turn.told.as_secs_f64())).unwrap_or_default()),
        whole(of(|turn| count(turn.at_source))),
        whole(of(|turn| count(turn.at_destination))),
        whole(of(|turn| count(turn.writes.ledgers))),
        whole(of(|turn| count(turn.writes.statuses))),
        whole(of(|turn| count(turn.writes.objects + turn.writes.events))),
        mebibytes(turns.iter().map(|turn| turn.peak).max().unwrap_or_default()),
    ]);
    let of = |value: fn(&Outcome) -> f64| median(commands.iter().map(value));
    let nothing = || "-".to_owned();
    table.row(vec![
        "fairlead copy".into(),
        seconds(
            Duration::try_from_secs_f64(of(|outcome| outcome.cost.wall.as_secs_f64())).unwrap_or_default(),
        ),
        nothing(),
        whole(of(|outcome| count(outcome.at_source))),
        whole(of(|outcome| count(outcome.at_destination))),
        nothing(),
        nothing(),
        nothing(),
        mebibytes(commands.iter().map(|outcome| outcome.cost.peak).max().unwrap_or_default()),
    ]);
    table
}
