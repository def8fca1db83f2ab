//! Copies: the same images, the same two registries, one contender after the other, each time into a fresh destination.

pub(crate) mod contenders;
mod content;
mod floor;
pub(crate) mod run;
pub(crate) mod source;

use anyhow::Result;
use clap::{Args, ValueEnum};
use fairlead_testkit::measure::{Align, Bar, Bars, Table, mebibytes, median};

use self::contenders::{Contender, Programs, Task};
pub(crate) use self::floor::Floor;
use self::run::{Outcome, run};
use self::source::{IMAGES, Source};

const MIB: u64 = 1 << 20;
/// Most that a large copy may take of the time of the fastest other tool.
const LARGE_RATIO: f64 = 1.1;
const MOST_MEMORY: f64 = 32.0;
const LARGE_RUNS: usize = 7;
const SMALL_RUNS: usize = 5;

#[derive(Args)]
pub(crate) struct Copies {
    /// What to copy; everything unless said
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// Runs of each contender, instead of seven for large images and five for many small ones
    #[arg(long)]
    runs: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// One image of 8 layers of 16 MiB
    Medium,
    /// One image of 8 layers of 256 MiB
    Large,
    /// 200 small images, each into a repository of its own
    Many,
    /// 200 small images into one repository
    One,
    /// 60 images of ordinary sizes, for the memory they take
    Ordinary,
    /// One image of a single layer of 4 GiB, for the memory it takes
    Huge,
}

/// What one contender came to in all its runs.
struct Results {
    contender: Contender,
    outcomes: Vec<Outcome>,
}

struct Bench {
    programs: Programs,
    source: Source,
    runs: Option<usize>,
    bars: Bars,
}

impl Copies {
    /// Whether every bar is held.
    pub(crate) async fn run(self) -> Result<bool> {
        let mut bench = Bench {
            programs: Programs::find().await?,
            source: Source::start().await?,
            runs: self.runs,
            bars: Bars::default(),
        };
        let wanted = |scenario| self.scenarios.is_empty() || self.scenarios.contains(&scenario);
        if wanted(Scenario::Medium) {
            bench.large("medium", 8, 16 * MIB).await?;
        }
        if wanted(Scenario::Large) {
            bench.large("large", 8, 256 * MIB).await?;
        }
        if wanted(Scenario::Many) || wanted(Scenario::One) {
            bench.small(wanted(Scenario::Many), wanted(Scenario::One)).await?;
        }
        if wanted(Scenario::Ordinary) {
            bench.ordinary().await?;
        }
        if wanted(Scenario::Huge) {
            bench.huge().await?;
        }
        print!("\nCopies: {}", bench.bars);
        Ok(bench.bars.all_held())
    }
}

impl Bench {
    async fn large(&mut self, name: &'static str, layers: u64, size: u64) -> Result<()> {
        let title = format!("{layers} layers of {} MiB", size / MIB);
        let large = self.source.large(name, layers, size).await?;
        let contenders = [Contender::Fairlead, Contender::Skopeo, Contender::Crane, Contender::Floor];
        let results = self.compare(&title, Task::Large(&large), &contenders, LARGE_RUNS).await?;
        std::fs::remove_dir_all(&large.directory)?;
        let time = |contender| wall(&results, contender);
        let fastest = time(Contender::Skopeo).min(time(Contender::Crane));
        self.hold(
            &title,
            &results,
            vec![Bar::at_most(
                format!("{title}: time, of that of the faster of skopeo and crane"),
                time(Contender::Fairlead) / fastest,
                LARGE_RATIO,
            )],
        );
        Ok(())
    }

    async fn small(&mut self, many: bool, one: bool) -> Result<()> {
        let small = self.source.small().await?;
        let comparisons = [
            (many, Task::ToMany(&small), "repositories", Contender::Skopeo, "skopeo sync", 4.0, 0.5),
            (
                one,
                Task::ToOne(&small),
                "one repository",
                Contender::Crane,
                "crane copy --all-tags",
                // The registries keep both cores busy: a client that costs nothing would hardly reach two.
                1.4,
                0.75,
            ),
        ];
        for (_, task, whereto, other, command, speed, share) in comparisons.into_iter().filter(|row| row.0) {
            let title = format!("{IMAGES} small images into {whereto}");
            let contenders = [Contender::Fairlead, other, Contender::Floor];
            let results = self.compare(&title, task, &contenders, SMALL_RUNS).await?;
            let faster = wall(&results, other) / wall(&results, Contender::Fairlead);
            let requests = requests(&results, Contender::Fairlead) / requests(&results, other);
            self.hold(
                &title,
                &results,
                vec![
                    Bar::at_least(format!("{title}: times faster than {command}"), faster, speed),
                    Bar::at_most(
                        format!("{title}: requests at the destination, of those of {command}"),
                        requests,
                        share,
                    ),
                ],
            );
        }
        Ok(())
    }

    /// Memory does not depend on how many connections have carried how much.
    async fn ordinary(&mut self) -> Result<()> {
        let title = "60 images of ordinary sizes";
        let ordinary = self.source.ordinary().await?;
        let results =
            self.compare(title, Task::ToMany(&ordinary), &[Contender::Fairlead], SMALL_RUNS).await?;
        self.hold(title, &results, Vec::new());
        Ok(())
    }

    /// Memory does not depend on the size of an image.
    async fn huge(&mut self) -> Result<()> {
        let title = "a layer of 4096 MiB";
        let huge = self.source.large("huge", 1, 4096 * MIB).await?;
        std::fs::remove_dir_all(&huge.directory)?;
        let results = self.compare(title, Task::Large(&huge), &[Contender::Fairlead], 1).await?;
        self.hold(title, &results, Vec::new());
        Ok(())
    }

    /// Lets the contenders take turns, and prints what they came to.
    async fn compare(
        &self,
        title: &str,
        task: Task<'_>,
        contenders: &[Contender],
        runs: usize,
    ) -> Result<Vec<Results>> {
        let runs = self.runs.unwrap_or(runs);
        let mut results: Vec<Results> = contenders
            .iter()
            .map(|contender| Results { contender: *contender, outcomes: Vec::new() })
            .collect();
        for _ in 0..runs {
            for result in &mut results {
                result.outcomes.push(run(&self.programs, &self.source, result.contender, task).await?);
            }
            // The one that comes after a slow one would always do so.
            results.rotate_left(1);
        }
        results.sort_by_key(|result| contenders.iter().position(|contender| *contender == result.contender));
        println!("\nCopy of {title}, medians of {runs} runs\n{}", table(&results));
        Ok(results)
    }

    /// Notes the bars of a comparison, and the one that every copy has.
    fn hold(&mut self, title: &str, results: &[Results], mut bars: Vec<Bar>) {
        let ours = results.iter().filter(|result| result.contender == Contender::Fairlead);
        let peak = ours.flat_map(|result| &result.outcomes).map(|outcome| outcome.cost.peak).max();
        bars.push(Bar::at_most(
            format!("{title}: peak memory in MiB"),
            peak.map_or(f64::NAN, in_mebibytes),
            MOST_MEMORY,
        ));
        print!("{}", self.bars.add(bars));
    }
}

fn table(results: &[Results]) -> Table {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("time", Align::Right),
        ("fastest", Align::Right),
        ("slowest", Align::Right),
        ("processor", Align::Right),
        ("of the registries", Align::Right),
        ("peak memory", Align::Right),
        ("requests at source", Align::Right),
        ("at destination", Align::Right),
    ]);
    for Results { contender, outcomes } in results {
        let time = |pick: fn(f64, f64) -> f64, begin| {
            let all = outcomes.iter().map(|outcome| outcome.cost.wall.as_secs_f64());
            format!("{:.2} s", all.fold(begin, pick))
        };
        let peak = outcomes.iter().map(|outcome| outcome.cost.peak).max().unwrap_or_default();
        let middle = |value: fn(&Outcome) -> f64| median(outcomes.iter().map(value));
        table.row(vec![
            contender.name().to_owned(),
            format!("{:.2} s", middle(|outcome| outcome.cost.wall.as_secs_f64())),
            time(f64::min, f64::INFINITY),
            time(f64::max, 0.0),
            format!("{:.2} s", middle(|outcome| outcome.cost.cpu.as_secs_f64())),
            format!("{:.2} s", middle(|outcome| outcome.registries.as_secs_f64())),
            mebibytes(peak),
            format!("{:.0}", middle(|outcome| count(outcome.at_source))),
            format!("{:.0}", middle(|outcome| count(outcome.at_destination))),
        ]);
    }
    table
}

fn of(results: &[Results], contender: Contender, value: fn(&Outcome) -> f64) -> f64 {
    let found = results.iter().find(|result| result.contender == contender);
    median(found.into_iter().flat_map(|result| &result.outcomes).map(value))
}

fn wall(results: &[Results], contender: Contender) -> f64 {
    of(results, contender, |outcome| outcome.cost.wall.as_secs_f64())
}

fn requests(results: &[Results], contender: Contender) -> f64 {
    of(results, contender, |outcome| count(outcome.at_destination))
}

pub(crate) fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, f64::from)
}

#[allow(clippy::cast_precision_loss, reason = "far below where it matters")]
pub(crate) fn in_mebibytes(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}
