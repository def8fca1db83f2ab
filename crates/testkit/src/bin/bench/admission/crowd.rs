//! One namespace asks for too much: thirty replicated sets of thirty-two upstreams and thirty mirror sets of thirty-two
//! mirrors, and six requests at once about its Pods, again and again. What it costs Pods of other namespaces, in time,
//! and the operator, in memory.

use anyhow::{Context, Result};
use fairlead_testkit::measure::{Align, Bar, Table, mebibytes, median};
use serde_json::{Value, json};

use super::SOON;
use super::compare::milliseconds;
use super::reviews::Shape;
use super::server::Patience;
use super::stage::Stage;

const NAMESPACE: &str = "bench-crowd";
const OBJECTS: usize = 30;
const ENTRIES: usize = 32;
/// Requests of the crowd at once.
const AT_ONCE: usize = 6;
/// Requests of the others at once.
const OTHERS: usize = 2;
const WARM_UP: f64 = 0.5;
const MOST_MEDIAN: f64 = 1.5;
/// In MiB.
const MOST_MEMORY: f64 = 20.0;

pub(crate) async fn crowd(stage: &mut Stage, rounds: usize, seconds: f64) -> Result<Vec<Bar>> {
    stage.policies(1).await?;
    let objects = objects(&stage.source());
    stage.crowd(NAMESPACE, &objects).await?;
    let operator = stage.warm_operator(stage.operator(), Patience(SOON)).await?;
    let others = || {
        let mut load = stage.load(&operator, Shape::of(1), WARM_UP + seconds);
        (load.warm_up, load.expect, load.connections) = (WARM_UP, Some(stage.first()), OTHERS);
        load
    };
    let mut attack = stage.load(&operator, Shape::of(1), WARM_UP + seconds);
    (attack.connections, attack.namespace) = (AT_ONCE, Some(NAMESPACE.to_owned()));
    // Memory of what all requests need is there before.
    others().elsewhere().await?;
    let (lease, before) = (stage.lease().await?, operator.process().peak_memory()?);
    let mut results = Vec::new();
    for _ in 0..rounds {
        let quiet = others().elsewhere().await?;
        let (load, attack) = (others(), attack.clone());
        let (busy, crowd) = tokio::try_join!(load.elsewhere(), attack.elsewhere())
            .with_context(|| operator.process().log_tail())?;
        results.push((quiet, busy, crowd));
    }
    let grown = operator.process().peak_memory()?.saturating_sub(before);
    let kept = stage.lease().await? == lease;
    let mut table = Table::new(&[
        ("Pods of", Align::Left),
        ("admissions a second", Align::Right),
        ("median", Align::Right),
        ("99th percentile", Align::Right),
    ]);
    for (name, of) in
        [("other namespaces, alone", 0), ("other namespaces, beside the crowd", 1), ("the crowd", 2)]
    {
        let turn = |(quiet, busy, crowd): &(_, _, _)| [*quiet, *busy, *crowd].get(of).copied();
        let middle = |value: fn(&super::load::Outcome) -> f64| {
            median(results.iter().filter_map(turn).map(|one| value(&one)))
        };
        table.row(vec![
            name.to_owned(),
            format!("{:.0}", middle(|one| one.rate)),
            milliseconds(middle(|one| one.median)),
            milliseconds(middle(|one| one.p99)),
        ]);
    }
    println!(
        "\nA namespace with {} policies, {AT_ONCE} requests at once, medians of {rounds} rounds\n{table}",
        objects.len()
    );
    println!("  Memory grows by {}; the lease is {}\n", mebibytes(grown), if kept { "kept" } else { "lost" });
    #[allow(clippy::cast_precision_loss, reason = "far below where it matters")]
    let grown = grown as f64 / f64::from(1 << 20);
    let ratio = median(results.iter().map(|(quiet, busy, _)| busy.median / quiet.median));
    Ok(vec![
        Bar::at_most("a crowded namespace: median of the others, of their median alone", ratio, MOST_MEDIAN),
        Bar::at_most("a crowded namespace: MiB that memory grows", grown, MOST_MEMORY),
        Bar::at_least("a crowded namespace: the lease is kept", f64::from(u8::from(kept)), 1.0),
    ])
}

/// Every set holds the images of the load, and its places come before all others.
fn objects(source: &str) -> Vec<Value> {
    let mut objects = Vec::new();
    for object in 0..OBJECTS {
        let entry = |kind: &str, number: usize| {
            let path = format!("/p{object}/n{number}");
            json!({"registry": format!("{kind}-{object}-{number}.crowd.invalid"), "path": path})
        };
        let mut upstreams: Vec<Value> = (1..ENTRIES).map(|number| entry("upstream", number)).collect();
        upstreams.push(json!({"registry": source, "path": "/", "imageFilter": {"include": [".*"]}}));
        let mirrors: Vec<Value> = (0..ENTRIES).map(|number| entry("mirror", number)).collect();
        for (kind, spec) in [
            ("ReplicatedImageSet", json!({"priority": -5, "upstreams": upstreams})),
            (
                "ImageSetMirror",
                json!({"priority": -5, "filter": {"include": [{"image": ".*"}]}, "mirrors": mirrors}),
            ),
        ] {
            objects.push(json!({
                "apiVersion": "kuik.enix.io/v1alpha1", "kind": kind,
                "metadata": {"name": format!("crowd-{object}"), "namespace": NAMESPACE}, "spec": spec,
            }));
        }
    }
    objects
}
