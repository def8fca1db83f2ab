//! A pull of 2 GiB by a real containerd: direct, through a router that passes layers on, and through one that sends
//! containerd to the mirror for them. The three take turns.

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fairlead_testkit::measure::{Align, Bar, Table, mebibytes, median};
use fairlead_testkit::{OldContainerd, Process, Program};
use tempfile::TempDir;

use super::fairlead;
use crate::copies::source::Source;

const LAYERS: u64 = 8;
const LAYER: u64 = 256 << 20;
/// Most of the time of a direct pull.
const PROXY: f64 = 1.3;
const REDIRECT: f64 = 1.1;
/// Most memory of the agent, in mebibytes.
const MOST_MEMORY: f64 = 32.0;
const SOON: Duration = Duration::from_secs(30);

/// The registry of the images, as Pods name them. Nothing is asked there.
const SOURCE: &str = "hub.test";

/// An agent with one policy, which leads all images to a mirror.
struct Agent {
    process: Process,
    directory: TempDir,
}

impl Agent {
    async fn start(mirror: &str, arguments: &[&str]) -> Result<Self> {
        let directory = TempDir::new()?;
        std::fs::create_dir(directory.path().join("policies"))?;
        let policy = format!(
            "apiVersion: config.openshift.io/v1\nkind: ImageSourceTagPolicy\nmetadata: {{name: bench}}\nspec:\n  \
             repositoryTagMirrors:\n  - {{source: {SOURCE}/bench, mirrors: ['{mirror}']}}\n"
        );
        std::fs::write(directory.path().join("policies/all.yaml"), policy)?;
        // Free a moment ago; the agent waits for an address that is taken.
        let router = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let process = Program::new(fairlead()?)
            .args(["agent", "--log-format=json", "--runtime=containerd", "--status=127.0.0.1:0"])
            .arg(format!("--policies={}", directory.path().join("policies").display()))
            .arg(format!("--config-dir={}", directory.path().join("certs.d").display()))
            .arg(format!("--router={router}"))
            .args(arguments.iter().copied())
            .start()
            .await?;
        process.wait_for_log("\"endpoint\":\"router\"", SOON).await?;
        Ok(Self { process, directory })
    }

    fn hosts(&self) -> PathBuf {
        self.directory.path().join("certs.d")
    }
}

pub(super) async fn measure(runs: usize) -> Result<Vec<Bar>> {
    ensure!(OldContainerd::is_installed(), "on Debian, apt-get install containerd");
    println!("Pulls of {LAYERS} layers of {} by containerd, {runs} of each kind", mebibytes(LAYER));
    let source = Source::start().await?;
    let large = source.large("copies/app", LAYERS, LAYER).await?;
    let mirror = format!("{}/copies", source.registry().host());
    let proxy = Agent::start(&mirror, &[]).await?;
    let redirect = Agent::start(&mirror, &["--redirect"]).await?;
    let routed = format!("{SOURCE}/bench/app:1");
    let direct = format!("{}/{}:1", source.registry().host(), large.repository);
    let ways =
        [("direct", None, &direct), ("proxy", Some(&proxy), &routed), ("redirect", Some(&redirect), &routed)];
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..runs {
        for ((name, agent, image), times) in ways.iter().zip(&mut times) {
            let containerd = OldContainerd::start("").await?;
            let hosts = agent.map(Agent::hosts);
            let begun = Instant::now();
            let fetched = containerd.fetch(hosts.as_deref(), image).await?;
            let time = begun.elapsed().as_secs_f64();
            ensure!(fetched.status.success(), "{name}: {}", String::from_utf8_lossy(&fetched.stderr));
            println!("  {name}: {time:.2} s");
            times.push(time);
        }
    }
    let [direct, through, sent] = times.map(median);
    let mut table = Table::new(&[
        ("", Align::Left),
        ("median", Align::Right),
        ("of direct", Align::Right),
        ("agent", Align::Right),
    ]);
    let mut bars = Vec::new();
    table.row(vec!["direct".into(), format!("{direct:.2} s"), "1.00".into(), String::new()]);
    for (name, time, limit, agent) in
        [("proxy", through, PROXY, &proxy), ("redirect", sent, REDIRECT, &redirect)]
    {
        let peak = agent.process.peak_memory()?;
        table.row(vec![
            name.into(),
            format!("{time:.2} s"),
            format!("{:.2}", time / direct),
            mebibytes(peak),
        ]);
        bars.push(Bar::at_most(format!("2 GiB, {name}: time of a direct pull's"), time / direct, limit));
        #[allow(clippy::cast_precision_loss, reason = "a tenth of a mebibyte is as exact as it gets")]
        let mebibytes = peak as f64 / f64::from(1 << 20);
        bars.push(Bar::at_most(
            format!("2 GiB, {name}: most memory of the agent, MiB"),
            mebibytes,
            MOST_MEMORY,
        ));
    }
    println!("{table}");
    Ok(bars)
}
