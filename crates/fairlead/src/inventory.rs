//! `fairlead inventory`: which digest every container and image volume runs, and where a digest runs.

mod cyclonedx;
mod groups;
pub(crate) mod registries;
mod report;
pub(crate) mod sources;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use fairlead_domain::digest::Digest;
use fairlead_domain::duration::Duration;
use jiff::Timestamp;
use tokio::time::Instant;

use self::registries::{Answers, Registries};
use self::report::{Depth, Filter, Report};
use self::sources::Found;
use crate::access::{self, Access};
use crate::connect::Server;
use crate::ending::run_to_end;
use crate::output::{FAILING, MISUSED, tell, write};

/// Say which image every container and image volume runs: requested, routed, expected and reported
///
/// *Expected* is the digest that a registry named for the reference, before the pull where it says so; *reported* is
/// what the kubelet says. Reads Pods of a cluster, or of files with -f. Where digests differ, registries are asked what
/// is behind them, each digest once. Ends with 0, with 1 if the Pods cannot be read, with 2 for wrong arguments, and
/// with 3 if something differs or, with --drift, has drifted.
#[derive(Debug, Args)]
pub(crate) struct Inventory {
    /// Only images that are named so, or whose name or digest contains this
    image: Option<String>,
    /// Namespace of the Pods [default: all]
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// Only this Pod
    #[arg(long, value_name = "NAME")]
    pod: Option<String>,
    /// Only Pods of this node
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Only what is expected or reported to be of this digest: of an index, of an image in it, or of its configuration
    #[arg(long, value_name = "DIGEST")]
    digest: Option<Digest>,
    /// What the table has a line for, and what JSON has groups of
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = By::Pod)]
    by: By,
    /// Only images that are not what their references suggest: replicas with different content, tags that have moved,
    /// places that differ
    #[arg(long)]
    drift: bool,
    /// Ask registries also what is behind digests that agree: of an index or of an image, and of which one on the node
    #[arg(long)]
    details: bool,
    /// Ask no registry: what only they know is unknown
    #[arg(long, conflicts_with = "details")]
    no_registries: bool,
    /// How long to ask registries, in all
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    timeout: Duration,
    /// Pods from a file, a directory or standard input (-) instead of a cluster, and Nodes, for their platforms
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Form of the answer
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Form::Table)]
    output: Form,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    access: Access,
}

/// Of JSON with all images: which digests their tags name now would be a question for each of them.
const TAGS_UNASKED: &str = "whether tags have moved and whether places differ was not asked of each image, so drift \
                            may lack it: use --drift";

/// Rounds of questions to registries, each about what the last one brought.
const ROUNDS: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Pod,
    Image,
    Node,
    Digest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Table,
    /// Every row with all that is known, versioned
    Json,
    /// A bill of materials, `CycloneDX` 1.5
    Cyclonedx,
}

impl Inventory {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if self.drift && self.output == Form::Cyclonedx {
            tell("Error: a bill of materials says what runs; write --drift as table or json");
            return Ok(MISUSED.into());
        }
        let report = run_to_end(self.report())?;
        let text = match self.output {
            Form::Json => report.json(self.drift, self.by)?,
            Form::Cyclonedx => {
                report.warnings.iter().for_each(access::warn);
                cyclonedx::document(&report, Timestamp::now())
                    .context("cannot write the bill of materials")?
            }
            Form::Table => {
                report.warnings.iter().for_each(access::warn);
                if self.drift { table::drift(&report) } else { table::rows(&report, self.by) }
            }
        };
        write(&text)?;
        let troubled = if self.drift { !report.drift.is_empty() } else { report.is_troubled() };
        Ok(if troubled { FAILING.into() } else { ExitCode::SUCCESS })
    }

    async fn report(&self) -> Result<Report> {
        let Found { pods, platforms, mut warnings } = self.find().await?;
        let filter = Filter {
            text: self.image.as_deref(),
            namespace: self.namespace.as_deref(),
            pod: self.pod.as_deref(),
            node: self.node.as_deref(),
            digest: self.digest.as_ref(),
        };
        let drift = self.drift || self.output == Form::Json;
        let depth = Depth { details: self.details, drift, tags: self.drift };
        let mut answers = Answers::default();
        let (mut report, mut questions) = Report::of(&pods, &platforms, &filter, depth, &answers);
        if !self.no_registries && !questions.is_empty() {
            let registries = Registries::new(&self.access, Instant::now() + self.timeout.as_std())?;
            // Tags lead to indexes, indexes to images.
            for _ in 0..ROUNDS {
                if !registries.ask(questions, &mut answers).await {
                    break;
                }
                (report, questions) = Report::of(&pods, &platforms, &filter, depth, &answers);
            }
        }
        warnings.append(&mut report.warnings);
        if drift && !self.drift {
            warnings.push(TAGS_UNASKED.to_owned());
        }
        report.warnings = warnings;
        Ok(report)
    }

    async fn find(&self) -> Result<Found> {
        if self.file.is_empty() {
            let client = self.server.connect().await?.client;
            sources::cluster(&client, self.namespace.as_deref(), self.pod.as_deref(), self.node.as_deref())
                .await
        } else {
            sources::files(&self.file)
        }
    }
}
