//! `fairlead copy`: copies images from registry to registry, with the logins a person already has.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use fairlead_domain::duration::Duration;
use fairlead_domain::platform::PlatformFilter;
use fairlead_domain::reference::Reference;
use fairlead_registry::copy::{Copier, CopyOptions, Observer, Place};
use fairlead_registry::{Budget, Class, Client, Context, Settings};
use futures::{StreamExt, stream};
use tokio::runtime::Runtime;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::display::Display;
use self::list::{Origin, Pair};
use self::progress::{Meter, Progress};
use self::report::Report;
use crate::access::{Access, Person};
use crate::ending::Interruption;
use crate::output::MISUSED;

mod display;
mod list;
mod progress;
mod report;

/// A person's command does not share a registry's budget with Pods that wait. It leaves the pace to the registry.
const CONNECTIONS: u32 = 24;
/// More threads would wait for the network, too.
const MOST_THREADS: usize = 8;
/// How long registries are given to hear that uploads were abandoned.
const FAREWELL: std::time::Duration = std::time::Duration::from_secs(5);

/// Copy images from registry to registry, and print a line for each
///
/// Everything of an image is copied and its digest stays the same, unless platforms are chosen. What the destination has
/// already is not sent again. Logins are those of docker and podman: their files and credential helpers. Ends with 0 if
/// every image was copied, with 1 if one was not, and with 2 if the request makes no sense.
#[derive(Debug, Args)]
pub(crate) struct CopyImages {
    /// Image to copy
    #[arg(value_name = "SRC", required_unless_present = "file", requires = "destination")]
    source: Option<Reference>,
    /// Where to copy it: repository and tag; latest where there is no tag
    #[arg(value_name = "DST", required_unless_present = "file")]
    destination: Option<Reference>,
    /// File with further images to copy, SRC and DST on each line; - is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// How many images to copy at once
    #[arg(long, value_name = "N", default_value = "16")]
    jobs: NonZeroUsize,
    /// Copy only this platform of an image that is for several, such as linux/arm64; may be given several times
    #[arg(long = "platform", value_name = "OS/ARCH[/VARIANT]")]
    platforms: Vec<PlatformFilter>,
    /// Copy signatures, attestations and whatever else refers to the image, too
    #[arg(long)]
    referrers: bool,
    /// Print a JSON object for each image, as soon as it is copied
    #[arg(long)]
    json: bool,
    /// How long the copy of one image may take
    #[arg(long, value_name = "DURATION", default_value = "2h")]
    timeout: Duration,
    #[command(flatten)]
    access: Access,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    AllCopied,
    SomeFailed,
    Interrupted,
}

impl CopyImages {
    pub(crate) fn run(mut self) -> ExitCode {
        let told = |error: anyhow::Error, status| {
            eprintln!("Error: {error:#}");
            status
        };
        let (worker, pairs) = match self.prepare() {
            Ok(prepared) => prepared,
            Err(error) => return told(error, MISUSED.into()),
        };
        match carry_out(worker, pairs, self.jobs.get()) {
            Ok(End::AllCopied) => ExitCode::SUCCESS,
            Ok(End::SomeFailed | End::Interrupted) => ExitCode::FAILURE,
            Err(error) => told(error, ExitCode::FAILURE),
        }
    }

    /// Everything that can be found wrong before a registry is asked.
    fn prepare(&mut self) -> Result<(Worker, Vec<Pair>)> {
        let pairs = self.pairs()?;
        ensure!(!self.timeout.is_zero(), "--timeout must be more than nothing");
        let client = Client::new(self.access.settings(settings())?);
        let worker = Worker {
            copier: Copier::new(&client),
            person: self.access.person()?,
            options: CopyOptions {
                platforms: std::mem::take(&mut self.platforms),
                referrers: self.referrers,
                ..CopyOptions::default()
            },
            timeout: self.timeout.as_std(),
            progress: Arc::default(),
            display: Display::new(self.json, &pairs),
        };
        Ok((worker, pairs))
    }

    fn pairs(&mut self) -> Result<Vec<Pair>> {
        let mut pairs = Vec::new();
        if let (Some(source), Some(destination)) = (self.source.take(), self.destination.take()) {
            pairs.push(Pair { source, destination, origin: Origin::Arguments });
        }
        if let Some(file) = &self.file {
            pairs.extend(list::read(file)?);
        }
        ensure!(!pairs.is_empty(), "there is nothing to copy: the list has no images");
        list::check_destinations(&pairs)?;
        Ok(pairs)
    }
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    let connections = NonZeroU32::new(CONNECTIONS).unwrap_or(NonZeroU32::MIN);
    settings.default.budget = Budget { rate: None, connections };
    settings
}

fn carry_out(worker: Worker, pairs: Vec<Pair>, at_once: usize) -> Result<End> {
    let runtime = runtime()?;
    let end = runtime.block_on(worker.copy_all(pairs, at_once))?;
    drop(worker);
    if end != End::AllCopied {
        runtime.block_on(farewell(&runtime));
    }
    // Connections that nobody uses any more, and names that are still being resolved, must not hold up the end.
    runtime.shutdown_background();
    Ok(end)
}

fn runtime() -> Result<Runtime> {
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MOST_THREADS);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

/// Waits until registries know which uploads were abandoned. With everything else gone, only that and the connections it
/// uses are still at work; whoever interrupts again does not want to wait.
async fn farewell(runtime: &Runtime) {
    let Ok(mut interruption) = Interruption::new() else { return };
    let until = Instant::now() + FAREWELL;
    let mut look = interval(std::time::Duration::from_millis(10));
    while runtime.metrics().num_alive_tasks() > 0 && Instant::now() < until {
        tokio::select! {
            _ = look.tick() => {}
            () = interruption.wait() => return,
        }
    }
}

struct Worker {
    copier: Copier,
    person: Person,
    options: CopyOptions,
    timeout: std::time::Duration,
    progress: Arc<Progress>,
    display: Display,
}

impl Worker {
    async fn copy_all(&self, pairs: Vec<Pair>, at_once: usize) -> Result<End> {
        let count = pairs.len();
        let mut interruption = Interruption::new()?;
        let mut tick = interval(self.display.interval());
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tick.tick().await;
        let (mut copied, mut failed) = (0, 0);
        // Dropping it, as every way out of here does, ends the copies under way: the name of each is written last of all.
        let mut reports =
            std::pin::pin!(stream::iter(pairs).map(|pair| self.copy(pair)).buffer_unordered(at_once));
        loop {
            tokio::select! {
                report = reports.next() => {
                    let Some(report) = report else { break };
                    if report.is_good() { copied += 1 } else { failed += 1 }
                    self.display.finished(&report)?;
                }
                _ = tick.tick() => self.display.show(&self.progress, copied + failed),
                () = interruption.wait() => {
                    self.display.end();
                    eprintln!(
                        "Interrupted: {copied} of {count} images were copied; the names of the others are as they were"
                    );
                    return Ok(End::Interrupted);
                }
            }
        }
        self.display.end();
        Ok(if failed == 0 { End::AllCopied } else { End::SomeFailed })
    }

    async fn copy(&self, pair: Pair) -> Report {
        let started = Instant::now();
        let context = Context::new(Class::Background, started + self.timeout);
        let (source, destination) = tokio::join!(self.place(&pair.source), self.place(&pair.destination));
        let meter = Arc::new(Meter::new(&self.progress));
        let observer: Arc<dyn Observer> = Arc::clone(&meter) as _;
        let result = self.copier.copy(&source, &destination, &self.options, &observer, &context).await;
        meter.close();
        Report::new(&pair, result, started.elapsed())
    }

    async fn place(&self, image: &Reference) -> Place {
        let warn = |problem: &String| self.display.warn(problem);
        let credentials = self.person.credentials(&image.repository(), warn).await;
        Place { reference: image.clone(), credentials: credentials.into() }
    }
}
