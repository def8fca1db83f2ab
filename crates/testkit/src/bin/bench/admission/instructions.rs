//! Instructions of one admission, counted rather than timed, with few policies and with many.
//!
//! The real operator runs under valgrind's callgrind, which can be asked for the count at any moment. A load of some
//! requests and one of three times as many are counted; what the second costs more is the cost of the requests, without
//! that of connecting. Controllers go on meanwhile, and valgrind stretches the time that they have: what they cost in a
//! second without requests is subtracted. Machines that are virtual seldom have counters of their own, so valgrind is
//! used everywhere.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_testkit::measure::{Align, Bar, Table};
use tokio::process::Command;

use super::POLICIES;
use super::reviews::Shape;
use super::server::{Patience, Server};
use super::stage::Stage;

/// Debian's package.
const VALGRIND: &str = "/usr/bin/valgrind";
const FEW_POLICIES: usize = 10;
const MOST_GROWTH: f64 = 1.10;

/// Containers in all requests of the shorter load together, and the most requests.
const CONTAINERS: usize = 360;
const REQUESTS: usize = 120;
/// How often each load is counted. What else a server does meanwhile only adds, so the least counts.
const REPEATS: usize = 2;
/// For how long the server is watched without requests.
const IDLE: Duration = Duration::from_secs(15);
/// Everything is some fifty times slower.
const SLOW: Duration = Duration::from_mins(5);

/// Plain Pods are the hard case: the less there is to read, the more the rest counts.
fn shapes() -> [Shape; 4] {
    [Shape::of(1), Shape::of(3), Shape::of(20), Shape::plain(1)]
}

pub(crate) async fn instructions(stage: &mut Stage) -> Result<Vec<Bar>> {
    ensure!(Path::new(VALGRIND).exists(), "{VALGRIND} is not there: on Debian, apt-get install valgrind");
    let mut counts = Vec::new();
    for policies in [FEW_POLICIES, POLICIES] {
        stage.policies(policies).await?;
        let (command, output) = counted(stage, "operator", stage.operator_without_refresh()?);
        let operator = stage.warm_operator(command, Patience(SLOW)).await?;
        counts.push(count(stage, &operator, &output).await?);
        operator.process().kill().await?;
    }
    let (command, output) = counted(stage, "bare", stage.bare()?);
    let bare = count(stage, &Server::start(command, Patience(SLOW)).await?, &output).await?;
    let [few, many] = counts.as_slice() else { return Ok(Vec::new()) };
    let mut table = Table::new(&[
        ("", Align::Left),
        ("bare handler", Align::Right),
        ("10 policies", Align::Right),
        ("1,000 policies", Align::Right),
        ("growth", Align::Right),
        ("of the bare handler's", Align::Right),
    ]);
    let mut demands = Vec::new();
    for (((shape, bare), few), many) in shapes().into_iter().zip(&bare).zip(few).zip(many) {
        let growth = many / few;
        table.row(vec![
            shape.to_string(),
            format!("{bare:.0}"),
            format!("{few:.0}"),
            format!("{many:.0}"),
            format!("{:+.1} %", (growth - 1.0) * 100.0),
            format!("{:.2}", many / bare),
        ]);
        let what = format!("{shape}: instructions with {POLICIES} policies, of those with {FEW_POLICIES}");
        demands.push(Bar::at_most(what, growth, MOST_GROWTH));
    }
    println!("\nInstructions of one admission\n{table}");
    Ok(demands)
}

/// A command under callgrind, not counting yet, and the beginning of the names of its output files.
fn counted(stage: &Stage, name: &str, command: Vec<String>) -> (Vec<String>, PathBuf) {
    let output = stage.directory().join(fairlead_testkit::unique(name));
    let mut counted = vec![
        VALGRIND.to_owned(),
        "--tool=callgrind".to_owned(),
        "--instr-atstart=no".to_owned(),
        format!("--callgrind-out-file={}", output.display()),
    ];
    counted.extend(command);
    (counted, output)
}

/// Instructions of one admission, for each size of Pods.
async fn count(stage: &Stage, server: &Server, output: &Path) -> Result<Vec<f64>> {
    let mut counter = Counter { server, output, dumps: 0 };
    counter.command("instrumentation on").await?;
    tokio::time::sleep(IDLE).await;
    counter.since_last().await?;
    let begun = Instant::now();
    tokio::time::sleep(IDLE).await;
    let idle = counter.since_last().await? / begun.elapsed().as_secs_f64();
    println!("  In a second without requests: {idle:.0} instructions");
    let mut results = Vec::new();
    for shape in shapes() {
        let mut load = stage.load(server, shape, SLOW.as_secs_f64());
        load.connections = 1;
        let mut cost = async |requests: usize| {
            load.requests = Some(requests);
            let begun = Instant::now();
            load.elsewhere().await?;
            let all = counter.since_last().await?;
            anyhow::Ok(all - idle * begun.elapsed().as_secs_f64())
        };
        let requests = (CONTAINERS / shape.containers).clamp(1, REQUESTS);
        // The first one brings everything that is made at the first use.
        cost(requests).await?;
        let (mut short, mut long) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..REPEATS {
            short = short.min(cost(requests).await?);
            long = long.min(cost(3 * requests).await?);
        }
        results.push((long - short) / u32::try_from(2 * requests).map_or(f64::NAN, f64::from));
    }
    Ok(results)
}

struct Counter<'a> {
    server: &'a Server,
    output: &'a Path,
    dumps: usize,
}

impl Counter<'_> {
    /// Instructions since the last time this was asked.
    async fn since_last(&mut self) -> Result<f64> {
        self.command("dump").await?;
        self.dumps += 1;
        let file = PathBuf::from(format!("{}.{}", self.output.display(), self.dumps));
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        Ok(total.context("callgrind tells no total")?.trim().parse()?)
    }

    async fn command(&self, command: &str) -> Result<()> {
        let pid = self.server.process().pid().context("the server has ended")?;
        let output = Command::new("vgdb")
            .arg(format!("--pid={pid}"))
            .args(command.split(' '))
            .kill_on_drop(true)
            .output();
        let output =
            tokio::time::timeout(SLOW, output).await?.context("cannot run vgdb, a part of valgrind")?;
        ensure!(
            output.status.success(),
            "callgrind does not take {command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}
