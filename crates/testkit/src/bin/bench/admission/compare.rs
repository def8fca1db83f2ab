//! The operator with a thousand policies beside the bare handler: the same reviews, the same connections, taking turns.

use anyhow::Result;
use fairlead_testkit::measure::{Align, Bar, Table, mebibytes, median};

use super::reviews::Shape;
use super::server::{Patience, Server};
use super::stage::{Stage, measured};
use super::{POLICIES, SOON};

/// The more there is in a Pod that need not be read, the better for the operator; so plain ones are measured, too.
fn shapes() -> [Shape; 5] {
    [Shape::of(1), Shape::of(3), Shape::of(20), Shape::plain(1), Shape::plain(3)]
}

/// Pods with more containers have no bar: there are few of them.
const MOST_CONTAINERS: usize = 3;
const WARM_UP: f64 = 0.5;
const LEAST_RATE: f64 = 0.5;
const MOST_MEDIAN: f64 = 2.0;

/// One turn of one server.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    pub(super) rate: f64,
    pub(super) median: f64,
    p99: f64,
    /// Of the server, for one admission.
    processor: f64,
}

/// All turns of one server.
#[derive(Default)]
pub(super) struct Turns(Vec<Turn>);

impl Turns {
    pub(super) fn middle(&self, value: fn(&Turn) -> f64) -> f64 {
        median(self.0.iter().map(value))
    }

    fn cells(&self, name: &str) -> Vec<String> {
        vec![
            name.to_owned(),
            format!("{:.0}", self.middle(|turn| turn.rate)),
            milliseconds(self.middle(|turn| turn.median)),
            milliseconds(self.middle(|turn| turn.p99)),
            format!("{:.0} µs", self.middle(|turn| turn.processor) * 1e6),
        ]
    }
}

pub(crate) fn milliseconds(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}

pub(crate) async fn compare(stage: &mut Stage, rounds: usize, seconds: f64) -> Result<Vec<Bar>> {
    stage.policies(POLICIES).await?;
    let operator = stage.warm_operator(stage.operator(), Patience(SOON)).await?;
    let bare = Server::start(stage.bare()?, Patience(SOON)).await?;
    let mut demands = Vec::new();
    for shape in shapes() {
        let servers = [(&bare, None), (&operator, Some(stage.first()))];
        let [of_bare, of_operator] = take_turns(stage, servers, shape, rounds, seconds).await?;
        let size = stage.size(shape)?;
        println!(
            "\nAdmission of {shape} (reviews of {size} bytes), {POLICIES} policies, medians of {rounds} rounds\n{}",
            table(("bare handler", &of_bare), ("operator", &of_operator))
        );
        if shape.containers <= MOST_CONTAINERS {
            let ratio = |value| of_operator.middle(value) / of_bare.middle(value);
            let what = |figure: &str| format!("{shape}: {figure}, of the bare handler's");
            demands.push(Bar::at_least(what("admissions a second"), ratio(|turn| turn.rate), LEAST_RATE));
            demands.push(Bar::at_most(what("median"), ratio(|turn| turn.median), MOST_MEDIAN));
        }
    }
    println!("  Peak memory of the operator: {}\n", mebibytes(operator.process().peak_memory()?));
    Ok(demands)
}

/// Puts the same load onto two servers in turn. Where copies are expected is said with each server.
pub(super) async fn take_turns(
    stage: &Stage,
    servers: [(&Server, Option<String>); 2],
    shape: Shape,
    rounds: usize,
    seconds: f64,
) -> Result<[Turns; 2]> {
    let mut results = [Turns::default(), Turns::default()];
    for round in 0..rounds {
        // The contender that comes first in one round comes last in the next.
        let mut turns: Vec<_> = servers.iter().zip(&mut results).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for ((server, expect), results) in turns {
            let mut load = stage.load(server, shape, WARM_UP + seconds);
            (load.warm_up, load.expect) = (WARM_UP, expect.clone());
            let (outcome, processor) = measured(server, &load).await?;
            let (rate, median, p99) = (outcome.rate, outcome.median, outcome.p99);
            results.0.push(Turn { rate, median, p99, processor });
        }
    }
    Ok(results)
}

/// Two servers, and the second in ratio to the first.
pub(super) fn table((first, of_first): (&str, &Turns), (second, of_second): (&str, &Turns)) -> Table {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("admissions a second", Align::Right),
        ("median", Align::Right),
        ("99th percentile", Align::Right),
        ("processor time of one", Align::Right),
    ]);
    table.row(of_first.cells(first));
    table.row(of_second.cells(second));
    let ratio = |value| format!("{:.2}", of_second.middle(value) / of_first.middle(value));
    table.row(vec![
        "ratio".to_owned(),
        ratio(|turn| turn.rate),
        ratio(|turn| turn.median),
        ratio(|turn| turn.p99),
        ratio(|turn| turn.processor),
    ]);
    table
}
