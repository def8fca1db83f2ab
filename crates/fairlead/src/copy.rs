//! `fairlead copy`: copies images from registry to registry, with the logins a person already has.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use fairlead_domain::cause::Cause;
use fairlead_domain::duration::Duration;
use fairlead_domain::platform::PlatformFilter;
use fairlead_domain::reference::Reference;
use fairlead_registry::copy::{Copier, CopyEndpoint, CopyOptions, Observer};
use fairlead_registry::{Budget, Class, Client, Context, Settings};
use futures::future::join;
use futures::{StreamExt, stream};
use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout};

use self::display::Display;
use self::list::{Origin, Pair};
use self::progress::{Meter, Progress};
use self::report::CopyResult;
use crate::access::{self, Access, Person};
use crate::ending::Interruption;
use crate::output::{MISUSED, tell};

mod display;
mod list;
mod progress;
mod report;

/// A person's command does not share a registry's budget with Pods that wait. It leaves the pace to the registry.
const CONNECTIONS: u32 = 24;
/// A registry that is away is tried again at least so often, since a person waits for it.
const LONGEST_PAUSE: std::time::Duration = std::time::Duration::from_secs(10);
/// More threads would wait for the network, too.
const MOST_THREADS: usize = 8;
/// After an interruption, the reader gets so long for the lines that are left.
const LAST_LINES: std::time::Duration = std::time::Duration::from_secs(1);

/// Copy images from registry to registry, and print a line for each
///
/// Everything of an image is copied and its digest stays the same, unless platforms are chosen. What the destination
/// has already is not sent again. Logins are those of docker and podman: their files and credential helpers. Ends with
/// 0 if every image was copied, with 1 if one was not, and with 2 if an argument is invalid.
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
    /// How long the copy of one image may take, from when its logins are known
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
            tell(&format!("Error: {error:#}"));
            status
        };
        let (worker, pairs) = match self.prepare() {
            Ok(prepared) => prepared,
            Err(error) => return told(error, MISUSED.into()),
        };
        match carry_out(&worker, pairs, self.jobs.get()) {
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
            timeout: self.timeout.clone(),
            progress: Arc::default(),
            json: self.json,
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
    settings.patience.longest_pause = LONGEST_PAUSE;
    settings
}

fn carry_out(worker: &Worker, pairs: Vec<Pair>, at_once: usize) -> Result<End> {
    let runtime = runtime()?;
    let end = runtime.block_on(worker.copy_all(pairs, at_once));
    // Idle connections, names that are still being resolved and lines that no reader takes must not
    // hold up the end.
    runtime.shutdown_background();
    end
}

fn runtime() -> Result<Runtime> {
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MOST_THREADS);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

struct Worker {
    copier: Copier,
    person: Person,
    options: CopyOptions,
    timeout: Duration,
    progress: Arc<Progress>,
    json: bool,
}

impl Worker {
    async fn copy_all(&self, pairs: Vec<Pair>, at_once: usize) -> Result<End> {
        let count = pairs.len();
        let mut interruption = Interruption::new()?;
        let (display, printed) = Display::start(self.json, &pairs, Arc::clone(&self.progress));
        let mut printed = pin!(printed);
        // Whatever comes first drops the copies under way, which ends them: the name of each is written last of all.
        let end = tokio::select! {
            end = self.copy_each(pairs, at_once, &display) => end,
            failed = &mut printed => failed.map(|()| End::SomeFailed),
            () = interruption.wait() => {
                let copied = self.progress.copied();
                display.say(format!(
                    "Interrupted: {copied} of {count} images were copied; the names of the others stand for what they did \
                     before, or for the whole new image"
                ));
                Ok(End::Interrupted)
            }
        };
        drop(display);
        let printed = async {
            match &end {
                Ok(End::Interrupted) => timeout(LAST_LINES, printed).await.unwrap_or(Ok(())),
                Ok(_) => printed.await,
                Err(_) => Ok(()),
            }
        };
        tokio::select! {
            (printed, ()) = join(printed, self.copier.cancellations_sent()) => printed.and(end),
            // A second interruption ends the wait.
            () = interruption.wait() => Ok(End::Interrupted),
        }
    }

    async fn copy_each(&self, pairs: Vec<Pair>, at_once: usize, display: &Display) -> Result<End> {
        let copies = stream::iter(pairs).map(|pair| self.copy(pair, display)).buffer_unordered(at_once);
        let mut reports = pin!(copies);
        while let Some(report) = reports.next().await {
            self.progress.count(report.is_good());
            display.finished(&report)?;
        }
        Ok(if self.progress.failed() == 0 { End::AllCopied } else { End::SomeFailed })
    }

    async fn copy(&self, pair: Pair, display: &Display) -> CopyResult {
        let started = Instant::now();
        let (source, destination) =
            tokio::join!(self.place(&pair.source, display), self.place(&pair.destination, display));
        // Helpers have their own time: a passphrase may have to be typed.
        let context = Context::new(Class::Background, Instant::now() + self.timeout.as_std());
        let meter = Arc::new(Meter::new(&self.progress));
        let observer: Arc<dyn Observer> = Arc::clone(&meter) as _;
        let result = self.copier.copy(&source, &destination, &self.options, &observer, &context).await;
        meter.close();
        let exceeded = context.has_passed().then_some(&self.timeout);
        CopyResult::new(&pair, result, started.elapsed(), exceeded)
    }

    async fn place(&self, image: &Reference, display: &Display) -> CopyEndpoint {
        let warn = |problem: &String| display.say(access::warning(problem));
        let credentials = self.person.credentials(&image.repository(), warn).await;
        CopyEndpoint {
            reference: image.clone(),
            credentials: credentials.into(),
            cause: Cause::Administrator,
        }
    }
}
