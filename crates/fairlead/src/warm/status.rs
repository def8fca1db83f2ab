//! `fairlead warm status`: which nodes hold which images, and what is wrong where they do not.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use jiff::Timestamp;
use kube::Client;
use tokio::time::{MissedTickBehavior, interval};

use super::cluster;
use super::report::{ImageReport, WarmReport};
use super::table::{one_image, overview};
use crate::access;
use crate::api_server::operator_namespace;
use crate::connect::Server;
use crate::ending::{Interruption, run_to_end};
use crate::output::{FAILING, Output, write};
use crate::screen::Screen;

/// How often the cluster is asked for a live view.
const REDRAW: Duration = Duration::from_secs(2);

/// Say which nodes hold the images of each `CachedImage` and `CachedImageSet`, and why others do not
///
/// With a name: one `CachedImage` with all its nodes, and when those that failed are tried again. On a terminal the
/// view is kept up to date until Ctrl-C; elsewhere it is printed once. Ends with 0, with 1 if the cluster cannot be
/// asked or has no object of that name, with 2 for wrong arguments, and with 3 if something is Degraded.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// `CachedImage` to look at; all unless said
    name: Option<String>,
    /// How many nodes are shown in a table
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Print once also on a terminal
    #[arg(long)]
    once: bool,
    /// Form of the answer
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    server: Server,
    /// Namespace of the operator, where its records are [default: where the webhook's Service is, else
    /// fairlead-system]
    #[arg(long, value_name = "NS")]
    operator_namespace: Option<String>,
}

impl Status {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let report = run_to_end(self.show())?;
        let text = match self.output {
            Output::Table => {
                report.warnings.iter().for_each(access::warn);
                self.text(&report, Timestamp::now())
            }
            Output::Json => serde_json::to_string_pretty(&report).context("cannot write the report")? + "\n",
        };
        write(&text)?;
        Ok(if report.is_troubled() { FAILING.into() } else { ExitCode::SUCCESS })
    }

    /// Draws until the person has seen enough, where there is a terminal, and returns what there is to see at the end.
    async fn show(&self) -> Result<WarmReport> {
        let client = self.server.connect().await?.client;
        let namespace = match &self.operator_namespace {
            Some(namespace) => namespace.clone(),
            None => operator_namespace(&client).await,
        };
        let mut report = self.find(&client, &namespace).await?;
        if self.output != Output::Table || self.once || !Screen::is_there() {
            return Ok(report);
        }
        let mut interruption = Interruption::new()?;
        let screen = Screen::open()?;
        let mut tick = interval(REDRAW);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tick.reset();
        let mut trouble = None;
        loop {
            let warnings =
                report.warnings.iter().chain(&trouble).map(|warning| format!("Warning: {warning}"));
            let text = warnings.chain([self.text(&report, Timestamp::now())]).collect::<Vec<_>>().join("\n");
            screen.draw(&text)?;
            let found = async {
                tick.tick().await;
                self.find(&client, &namespace).await
            };
            tokio::select! {
                biased;
                () = interruption.wait() => return Ok(report),
                found = found => match found {
                    Ok(found) => (report, trouble) = (found, None),
                    // What was seen last stays on the screen.
                    Err(error) => trouble = Some(format!("{error:#}")),
                },
            }
        }
    }

    async fn find(&self, client: &Client, namespace: &str) -> Result<WarmReport> {
        match &self.name {
            Some(name) => one(client, namespace, name).await,
            None => all(client, namespace).await,
        }
    }

    fn text(&self, report: &WarmReport, now: Timestamp) -> String {
        match report.images.as_slice() {
            [image] if self.name.is_some() => one_image(image, self.limit, now),
            _ => overview(report, now),
        }
    }
}

async fn all(client: &Client, namespace: &str) -> Result<WarmReport> {
    let mut report = WarmReport { images: cluster::images(client).await?, ..WarmReport::default() };
    match cluster::sets(client).await? {
        Ok(sets) => report.sets = sets,
        Err(warning) => report.warnings.push(warning),
    }
    match cluster::ledgers(client, namespace).await? {
        Ok(ledgers) => report.count_failing(&ledgers),
        Err(warning) => report.warnings.push(warning),
    }
    report.sort();
    Ok(report)
}

async fn one(client: &Client, namespace: &str, name: &str) -> Result<WarmReport> {
    let object = cluster::image(client, name).await?;
    let (mut image, mut warnings) = (ImageReport::of(&object), Vec::new());
    let policy = match &image.policy {
        Some(name) => cluster::policy(client, name).await.unwrap_or_else(|warning| {
            warnings.push(warning);
            None
        }),
        None => None,
    };
    match cluster::ledgers(client, namespace).await? {
        Err(warning) => warnings.push(warning),
        Ok(ledgers) => {
            let own = ledgers.iter().filter(|ledger| ledger.is_of(&image.uid));
            let (stored, broken) = cluster::read(client, namespace, own).await?;
            image.add_nodes(policy.as_ref(), &stored);
            warnings.extend(broken);
        }
    }
    Ok(WarmReport { images: vec![image], sets: Vec::new(), warnings })
}
