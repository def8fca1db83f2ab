//! What planning costs for one Pod, and how little that grows with the number of policies.
//!
//! Run with `cargo bench -p fairlead-plan --bench routing`. Ratios matter; times depend on the machine. To count
//! instructions, give one number of policies as argument and run it under `perf stat` or `valgrind --tool=callgrind`.

#![allow(clippy::print_stdout, reason = "printing is what a benchmark is for")]

use std::collections::BTreeMap;
use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_domain::reference::Reference;
use fairlead_domain::selector::PodFacts;
use fairlead_plan::routing::{Index, Policy, PullPolicy, Rules};
use serde_json::{Value, json};

const RUNS: usize = 9;
const PODS: usize = 400;
const IMAGES: usize = 3;

/// A third of the policies have label selectors, of which one matches; the others are for other images. One policy in
/// ten is a replicated set.
fn policies(count: usize) -> Result<Vec<Arc<Policy>>, Box<dyn Error>> {
    let filter = |n: usize| match n % 3 {
        0 => json!([{ "label": format!("app=web,team=team-{n}") }]),
        _ => json!([]),
    };
    let mirror = |n: usize| -> Value {
        let mut include = filter(n);
        if let Some(items) = include.as_array_mut() {
            let image = if n == 0 { "docker.io/.*".to_owned() } else { format!("docker.io/team-{n}/.+") };
            items.push(json!({ "image": image }));
        }
        json!({
            "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror", "metadata": { "name": format!("m-{n}") },
            "spec": { "priority": -1, "filter": { "include": include }, "mirrors": [{ "registry": "m.example.com", "path": "/m" }] },
        })
    };
    let replicated = |n: usize| {
        let upstream = |registry: &str| json!({ "registry": registry, "path": format!("/app-{n}"), "imageFilter": { "include": [format!("/app-{n}/.+")] } });
        json!({
            "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterReplicatedImageSet", "metadata": { "name": format!("r-{n}") },
            "spec": { "filter": { "include": filter(n) }, "upstreams": [upstream("docker.io"), upstream("quay.io")] },
        })
    };
    let compiled = (0..count).map(|n| -> Result<Arc<Policy>, Box<dyn Error>> {
        Ok(Arc::new(if n % 10 == 9 {
            Policy::cluster_replicated(&serde_json::from_value(replicated(n))?)?
        } else {
            Policy::cluster_mirror(&serde_json::from_value(mirror(n))?)?
        }))
    });
    compiled.collect()
}

struct Pod {
    namespace: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    images: Vec<Reference>,
}

/// Pods of twenty namespaces with varying labels and fifty images; with `matching` the one selector that fits does.
fn pods(matching: bool) -> Result<Vec<Pod>, Box<dyn Error>> {
    let pod = |n: usize| -> Result<Pod, Box<dyn Error>> {
        let team = if matching { "team-0".to_owned() } else { format!("team-x{}", n % 7) };
        let pairs = [("app", "web".to_owned()), ("team", team), ("pod-template-hash", format!("{n:x}"))];
        let images = (0..IMAGES)
            .map(|image| Reference::parse(&format!("docker.io/library/image-{}:v1", (n + image) % 50)));
        Ok(Pod {
            namespace: format!("namespace-{}", n % 20),
            labels: pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            annotations: BTreeMap::from([("prometheus.io/scrape".to_owned(), "true".to_owned())]),
            images: images.collect::<Result<_, _>>()?,
        })
    };
    (0..PODS).map(pod).collect()
}

fn plan(index: &Index, pods: &[Pod]) -> usize {
    let rules = Rules::default();
    let mut listed = 0;
    for pod in pods {
        let facts =
            PodFacts { namespace: &pod.namespace, labels: &pod.labels, annotations: &pod.annotations };
        let policies = index.for_pod(&facts);
        for image in &pod.images {
            let alternatives = policies.alternatives(image, PullPolicy::IfNotPresent, &rules);
            listed += black_box(alternatives).list().len();
        }
    }
    listed
}

fn median(mut once: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            once();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times.get(RUNS / 2).copied().unwrap_or_default()
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(count) = std::env::args().skip(1).find_map(|argument| argument.parse::<usize>().ok()) {
        let index = Index::new(policies(count)?);
        let pods = pods(std::env::args().any(|argument| argument == "matching"))?;
        let rounds = if std::env::args().any(|argument| argument == "build-only") { 0 } else { 100 };
        println!("{}", (0..rounds).map(|_| plan(&index, &pods)).sum::<usize>());
        return Ok(());
    }
    println!("one Pod with {IMAGES} images, nanoseconds, median of {RUNS} runs over {PODS} Pods");
    println!("{:20} {:>8} {:>8} {:>8} {:>8} {:>14}", "policies", "10", "100", "1000", "10000", "1000 to 10");
    for (name, matching) in [("none matches", false), ("one matches", true)] {
        let pods = pods(matching)?;
        let per_pod = |count: usize| -> Result<f64, Box<dyn Error>> {
            let index = Index::new(policies(count)?);
            plan(&index, &pods);
            let time = median(|| {
                (0..20).for_each(|_| {
                    black_box(plan(&index, &pods));
                });
            });
            Ok(time.as_secs_f64() * 1e9 / 20.0 / f64::from(u32::try_from(PODS)?))
        };
        let (ten, hundred, thousand, more) = (per_pod(10)?, per_pod(100)?, per_pod(1000)?, per_pod(10_000)?);
        println!("{name:20} {ten:8.0} {hundred:8.0} {thousand:8.0} {more:8.0} {:13.2}x", thousand / ten);
    }
    Ok(())
}
