//! What it costs to run a program once: time, processor time, memory.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::assets::{Assets, Group};
use crate::process::Program;

#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub wall: Duration,
    /// Of all its threads, in user space and in the kernel.
    pub cpu: Duration,
    /// Most bytes of memory at one time.
    pub peak: u64,
}

/// What `cluster/programs/measure` prints.
#[derive(Deserialize)]
struct Line {
    wall_ns: u64,
    cpu_ns: u64,
    peak_bytes: u64,
    code: i32,
}

/// Runs a program to its end, which must be a success and come before the deadline.
pub async fn cost_of<A: AsRef<str>>(
    program: &Path,
    args: impl IntoIterator<Item = A>,
    deadline: Duration,
) -> Result<Cost> {
    let measure = Assets::ensure(&[Group::Programs]).await?.program("measure")?;
    let mut run = Program::new(measure).arg(program.display().to_string());
    for arg in args {
        run = run.arg(arg.as_ref());
    }
    let process = run.start().await?;
    let ending = process.wait(deadline).await;
    let name = program.file_name().and_then(OsStr::to_str).unwrap_or_default();
    if ending.is_err() {
        process.kill().await?;
    }
    ensure!(ending?.code == Some(0), "{name} could not be measured; its last lines:\n{}", process.log_tail());
    let logs = process.logs()?;
    let last = logs.lines().last().with_context(|| format!("the cost of {name} is missing"))?;
    let line: Line = serde_json::from_str(last).with_context(|| format!("the cost of {name}: {last}"))?;
    ensure!(line.code == 0, "{name} ended with {}; its last lines:\n{}", line.code, process.log_tail());
    Ok(Cost {
        wall: Duration::from_nanos(line.wall_ns),
        cpu: Duration::from_nanos(line.cpu_ns),
        peak: line.peak_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    async fn shell(script: &str, deadline: Duration) -> Result<Cost> {
        cost_of(Path::new("/bin/sh"), ["-c", script], deadline).await
    }

    #[tokio::test]
    async fn time_and_memory_are_those_of_the_program() -> Result<()> {
        let cost = shell("sleep 0.2", SOON).await?;
        assert!(cost.wall >= Duration::from_millis(200) && cost.cpu < cost.wall, "{cost:?}");
        assert!((1 << 16..64 << 20).contains(&cost.peak), "{cost:?}");
        Ok(())
    }

    #[tokio::test]
    async fn a_program_that_fails_has_no_cost() {
        let error = shell("echo some words; exit 3", SOON).await.unwrap_err().to_string();
        assert!(error.contains("ended with 3") && error.contains("some words"), "{error}");
        assert!(shell("sleep 60", Duration::from_millis(100)).await.is_err());
    }
}
