//! What merging mirror policies costs: how it grows with the number of sources, counted in instructions, and how long
//! it takes beside the library that OpenShift merges with.
//!
//! Run with `cargo bench -p fairlead-node --bench merge`; fails if a bar is not held. Instructions are counted by
//! valgrind, which runs this program again with a shape and a size as arguments.

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "printing is what a benchmark is for")]

use std::hint::black_box;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fairlead_plan::node_config::{Inputs, MirrorPolicy, NodeConfig, PolicyId, PolicyKind, Set};
use fairlead_testkit::measure::{Align, Bar, Bars, Table, median};
use fairlead_testkit::oracle::Oracle;
use serde::Serialize;

/// The one that merges on nodes.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Debian's package.
const VALGRIND: &str = "/usr/bin/valgrind";
const FEW: usize = 1_000;
const MANY: usize = 10_000;
/// Most instructions with ten times as many sources.
const GROWTH: f64 = 12.0;
/// Least times that the other library takes.
const FASTER: f64 = 10.0;
const RUNS: usize = 5;
/// A source cannot be much deeper: its text has 256 characters at most.
const DEPTH: usize = 100;
const LISTED: usize = 4;

/// The shape with one source.
const LISTS: &str = "lists";

struct Shape {
    name: &'static str,
    /// The source and the mirrors of one set, by its number.
    set: fn(usize, usize) -> (String, Vec<String>),
}

const SHAPES: [Shape; 4] = [
    Shape {
        name: "flat",
        set: |number, _| (format!("hub{}.test/team/app{number}", number % 97), mirrors(number)),
    },
    Shape {
        name: "nested",
        set: |number, _| {
            let below = "/a".repeat(number % DEPTH);
            (format!("hub{}.test/x{below}", number / DEPTH), mirrors(number))
        },
    },
    Shape {
        name: LISTS,
        set: |number, count| {
            let mirror = |step: usize| format!("m{}.test/app", (number * 7 + step * 13) % (count / 4));
            ("hub.test/team/app".to_owned(), (0..LISTED).map(mirror).collect())
        },
    },
    Shape {
        name: "domains",
        set: |number, _| (format!("*.d{number}.e{}.test", number % 89), mirrors(number)),
    },
];

fn mirrors(number: usize) -> Vec<String> {
    (0..LISTED).map(|step| format!("m{}.test/copies/{step}", (number + step * 3) % 11)).collect()
}

fn inputs(shape: &Shape, count: usize) -> Inputs {
    let policies = (0..count).map(|number| {
        let (source, mirrors) = (shape.set)(number, count);
        let kind =
            if number % 2 == 0 { PolicyKind::ImageDigestMirrorSet } else { PolicyKind::ImageTagMirrorSet };
        let set = Set { source, mirrors, never_contact_source: number % 5 == 0 };
        MirrorPolicy { id: PolicyId { kind, name: format!("p{number}") }, sets: vec![set] }
    });
    Inputs { policies: policies.collect(), ..Inputs::default() }
}

/// The same for the other library.
#[derive(Default, Serialize)]
struct Question {
    digests: Vec<Asked>,
    tags: Vec<Asked>,
}

#[derive(Serialize)]
struct Asked {
    source: String,
    mirrors: Vec<String>,
    never: bool,
}

fn question(inputs: &Inputs) -> Question {
    let mut question = Question::default();
    for policy in &inputs.policies {
        let list = match policy.id.kind {
            PolicyKind::ImageDigestMirrorSet => &mut question.digests,
            _ => &mut question.tags,
        };
        list.extend(policy.sets.iter().map(|set| Asked {
            source: set.source.clone(),
            mirrors: set.mirrors.clone(),
            never: set.never_contact_source,
        }));
    }
    question
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let outcome = match arguments.as_slice() {
        [shape, count, merges] => once(shape, count, merges).map(|()| true),
        _ => measure(),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("The measurement could not go on: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What is counted: the policies are made, and merged so many times.
fn once(shape: &str, count: &str, merges: &str) -> Result<()> {
    let shape = SHAPES.iter().find(|one| one.name == shape).context("there is no such shape")?;
    let inputs = inputs(shape, count.parse()?);
    for _ in 0..merges.parse()? {
        black_box(NodeConfig::plan(black_box(&inputs)));
    }
    Ok(())
}

fn measure() -> Result<bool> {
    ensure!(Path::new(VALGRIND).exists(), "{VALGRIND} is not there: on Debian, apt-get install valgrind");
    let oracle = Oracle::build("mirrors")?;
    let mut bars = Bars::default();
    let mut table = Table::new(&[
        ("", Align::Left),
        ("1,000: instructions", Align::Right),
        ("10,000", Align::Right),
        ("growth", Align::Right),
        ("10,000: time", Align::Right),
        ("runtime-utils", Align::Right),
        ("ratio", Align::Right),
    ]);
    let mut held = Vec::new();
    for shape in &SHAPES {
        let (few, many) = (instructions(shape, FEW)?, instructions(shape, MANY)?);
        let inputs = inputs(shape, MANY);
        let ours = median((0..RUNS).map(|_| {
            let begun = Instant::now();
            black_box(NodeConfig::plan(black_box(&inputs)));
            begun.elapsed().as_secs_f64()
        }));
        let nanoseconds: Vec<f64> = oracle.ask(&["time"], &[question(&inputs)])?;
        let theirs = median(nanoseconds) / 1e9;
        table.row(vec![
            shape.name.to_owned(),
            format!("{few:.0}"),
            format!("{many:.0}"),
            format!("{:.2}", many / few),
            format!("{:.1} ms", ours * 1e3),
            format!("{:.1} ms", theirs * 1e3),
            format!("{:.0}", theirs / ours),
        ]);
        let name = shape.name;
        held.push(Bar::at_most(
            format!("{name}: instructions with {MANY} sets, of those with {FEW}"),
            many / few,
            GROWTH,
        ));
        // Of one source with many lists, both take about as long: the other library's cost follows from the number of
        // sources, and it neither checks a mirror nor names an object that disagrees with others. The growth is held.
        if shape.name == LISTS {
            continue;
        }
        held.push(Bar::at_least(
            format!("{name}: time of runtime-utils with {MANY} sets, of ours"),
            theirs / ours,
            FASTER,
        ));
    }
    println!("Merging mirror policies\n{table}");
    bars.add(held);
    println!("{bars}");
    Ok(bars.all_held())
}

/// Of one merge: what a run with it takes more than one without.
fn instructions(shape: &Shape, count: usize) -> Result<f64> {
    Ok(counted(shape, count, 1)? - counted(shape, count, 0)?)
}

fn counted(shape: &Shape, count: usize, merges: usize) -> Result<f64> {
    let output = Command::new(VALGRIND)
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args([shape.name, &count.to_string(), &merges.to_string()])
        .output()?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{told}");
    let count = told.lines().find_map(|line| line.split_once("Collected :")).context(told.clone())?;
    Ok(count.1.trim().parse()?)
}
