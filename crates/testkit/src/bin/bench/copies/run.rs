//! One run: a fresh destination, one contender, and what came of it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::images::media_type;
use fairlead_testkit::measure::{Cost, cost_of};
use fairlead_testkit::registry::{Registry, RegistryConfig};
use reqwest::Method;
use reqwest::header::ACCEPT;

use super::contenders::{Contender, Ends, Programs, Task};
use super::source::{ONE, Source};

/// Far beyond what any of them needs.
const DEADLINE: Duration = Duration::from_mins(5);
/// A registry writes down a request after it has answered; when nothing is added for so long, everything is there.
const QUIET: Duration = Duration::from_millis(50);
const MOST_LOOKS: usize = 100;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) cost: Cost,
    pub(crate) at_source: usize,
    pub(crate) at_destination: usize,
    /// Processor time of both registries together.
    pub(crate) registries: Duration,
}

pub(crate) async fn run(
    programs: &Programs,
    source: &Source,
    contender: Contender,
    task: Task<'_>,
) -> Result<Outcome> {
    let destination = Registry::start(RegistryConfig::new()).await?;
    let outcome = measured(programs, source, &destination, contender, task).await;
    destination.kill().await?;
    // Thousands of small files are left until the end of the program: to remove them keeps the disk busy beyond this,
    // at the cost of the next writer.
    if let Task::Large(_) = task {
        let directory = destination.directory();
        std::fs::remove_dir_all(directory)
            .with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    outcome.with_context(|| contender.name())
}

async fn measured(
    programs: &Programs,
    source: &Source,
    destination: &Registry,
    contender: Contender,
    task: Task<'_>,
) -> Result<Outcome> {
    let (from, to) = (source.registry().host(), destination.host());
    let ends = Ends { source: &from, destination: &to, directory: destination.directory() };
    let (program, args) = programs.command(contender, task, ends)?;
    let before = [requests(source.registry()).await?, requests(destination).await?];
    let idle = processor_time(source.registry(), destination)?;
    let cost = cost_of(program, args, DEADLINE).await?;
    let registries = processor_time(source.registry(), destination)?.saturating_sub(idle);
    let after = [requests(source.registry()).await?, requests(destination).await?];
    if contender != Contender::Floor {
        check(destination, task).await?;
    }
    let [at_source, at_destination] = [0, 1].map(|end| {
        let count = |of: &[usize; 2]| of.get(end).copied().unwrap_or_default();
        count(&after).saturating_sub(count(&before))
    });
    Ok(Outcome { cost, at_source, at_destination, registries })
}

fn processor_time(source: &Registry, destination: &Registry) -> Result<Duration> {
    Ok(source.process().processor_time()? + destination.process().processor_time()?)
}

/// How many requests a registry has answered, when it has written all of them down.
pub(crate) async fn requests(registry: &Registry) -> Result<usize> {
    let mut last = registry.accesses()?.len();
    for _ in 0..MOST_LOOKS {
        tokio::time::sleep(QUIET).await;
        let now = registry.accesses()?.len();
        if now == last {
            return Ok(now);
        }
        last = now;
    }
    anyhow::bail!("{} goes on answering requests of nobody", registry.host())
}

/// Everything that was to be copied is there, unchanged.
async fn check(destination: &Registry, task: Task<'_>) -> Result<()> {
    let client = destination.endpoint().http()?;
    let expected: Vec<(String, &str)> = match task {
        Task::Large(large) => vec![(format!("{}/manifests/1", large.repository), &large.image.digest)],
        Task::ToMany(small) => small
            .images
            .iter()
            .map(|(name, image)| (format!("{name}/manifests/1"), image.digest.as_str()))
            .collect(),
        Task::ToOne(small) => small
            .images
            .iter()
            .map(|(name, image)| (format!("{ONE}/manifests/{name}"), image.digest.as_str()))
            .collect(),
    };
    for (path, digest) in expected {
        let head = destination.endpoint().request(&client, Method::HEAD, &format!("/v2/{path}"));
        let answer = head.header(ACCEPT, media_type::MANIFEST).send().await?;
        let found = answer.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
        ensure!(found == Some(digest), "the copy at {path} is {found:?} instead of {digest}");
    }
    Ok(())
}
