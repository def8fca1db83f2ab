//! `fairlead probe`: asks registries whether images are there, as admission would.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use fairlead_domain::duration::Duration;
use fairlead_domain::reference::Reference;
use fairlead_registry::{Class, Client, Context, ProbeOptions, Settings};
use futures::{Stream, StreamExt, stream};
use tokio::time::Instant;

use self::report::ProbeReport;
use crate::access::{self, Access, Person};
use crate::ending::run_to_end;
use crate::output::{MISUSED, tell, write};
use crate::references;

mod report;

/// Enough to keep many registries busy at once; each of them has its own, lower limit.
const AT_ONCE: usize = 64;

/// Ask registries whether images can be pulled, and print a line for each
///
/// Logins are those of docker and podman: their files and credential helpers. Ends with 0 if every image is available,
/// with 1 if one is not, and with 2 if an argument is invalid.
#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// Image references
    #[arg(value_name = "REF", required_unless_present = "file")]
    references: Vec<Reference>,
    /// File with further references, one on each line; - is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print a JSON object on each line, as soon as it is known
    #[arg(long)]
    json: bool,
    /// How long to wait for an answer about one image
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    timeout: Duration,
    /// After a tag was found, ask for its digest, too: a proxy may know a tag whose image it no longer has
    #[arg(long)]
    digest: bool,
    #[command(flatten)]
    access: Access,
}

impl Probe {
    pub(crate) fn run(mut self) -> ExitCode {
        let told = |error: anyhow::Error, status| {
            tell(&format!("Error: {error:#}"));
            status
        };
        let (asker, images) = match self.prepare() {
            Ok(prepared) => prepared,
            Err(error) => return told(error, MISUSED.into()),
        };
        match self.print(&asker, &images) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => told(error, ExitCode::FAILURE),
        }
    }

    /// Everything that can be wrong before a registry is asked.
    fn prepare(&mut self) -> Result<(Asker, Vec<Reference>)> {
        let mut images = std::mem::take(&mut self.references);
        if let Some(file) = &self.file {
            images.extend(references::read(file)?);
        }
        ensure!(!images.is_empty(), "there is nothing to probe: the list has no references");
        ensure!(!self.timeout.is_zero(), "--timeout must be more than nothing");
        let asker = Asker {
            client: Client::new(self.access.settings(Settings::default())?),
            person: self.access.person()?,
            options: ProbeOptions { check_digest: self.digest, ..ProbeOptions::default() },
            timeout: self.timeout.as_std(),
        };
        Ok((asker, images))
    }

    /// Whether every image is available, and that was printed.
    fn print(&self, asker: &Asker, images: &[Reference]) -> Result<bool> {
        run_to_end(async {
            let questions = asker.questions(images);
            if self.json {
                print_json(questions.buffer_unordered(AT_ONCE)).await
            } else {
                print_table(questions.buffered(AT_ONCE)).await
            }
        })
    }
}

struct Asker {
    client: Client,
    person: Person,
    options: ProbeOptions,
    timeout: std::time::Duration,
}

impl Asker {
    fn questions(&self, images: &[Reference]) -> impl Stream<Item: Future<Output = ProbeReport>> {
        stream::iter(images.iter().cloned()).map(|image| self.ask(image))
    }

    async fn ask(&self, image: Reference) -> ProbeReport {
        let credentials = self.person.credentials(&image.repository(), access::warn).await;
        // A person waits, which is as urgent as a Pod that waits.
        let started = Instant::now();
        let context = Context::new(Class::Admission, started + self.timeout);
        let verdict = self.client.probe(&image, &credentials, self.options, &context).await;
        ProbeReport::new(image, verdict, started.elapsed())
    }
}

async fn print_json(reports: impl Stream<Item = ProbeReport>) -> Result<bool> {
    let mut reports = std::pin::pin!(reports);
    let mut all_available = true;
    while let Some(report) = reports.next().await {
        all_available &= report.is_available();
        let line = serde_json::to_string(&report).context("cannot write a report")?;
        if !write(&format!("{line}\n"))? {
            // The reader has seen enough; what it has not seen is not known to be good.
            return Ok(false);
        }
    }
    Ok(all_available)
}

async fn print_table(reports: impl Stream<Item = ProbeReport>) -> Result<bool> {
    let reports: Vec<ProbeReport> = reports.collect().await;
    write(&report::table(&reports))?;
    Ok(reports.iter().all(ProbeReport::is_available))
}
