//! `fairlead mirror status`: how far the copies of each mirror object are, and what is wrong with those that fail.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::cluster::{Following, WatchScope};
use super::object::{Kind, Object};
use super::report::Report;
use super::table::{TableStyle, table};
use crate::access;
use crate::api_server::operator_namespace;
use crate::connect::Server;
use crate::ending::{Interruption, run_to_end};
use crate::output::{FAILING, Output, write};
use crate::screen::Screen;

/// How often the view is drawn anew. Ages move with it.
const REDRAW: Duration = Duration::from_secs(1);

/// Say how far the copies of each mirror are: in place, waiting, failing and why, unused and until when they are kept
///
/// On a terminal the view is kept up to date until Ctrl-C; elsewhere it is printed once. Ends with 0, with 1 if the
/// cluster cannot be asked or has no object of that name, with 2 for wrong arguments, and with 3 if some copy fails.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Status {
    /// Objects to look at, as NAME or KIND/NAME; all unless said. Kinds are cism and ism, or their full names
    #[arg(value_name = "[KIND/]NAME", value_parser = Wanted::parse)]
    names: Vec<Wanted>,
    /// Namespace of `ImageSetMirror` objects [default: the kubeconfig's, else default]
    #[arg(short, long, value_name = "NS", conflicts_with = "all_namespaces")]
    namespace: Option<String>,
    /// Look at the `ImageSetMirror` objects of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Show only what fails, and all of it
    #[arg(long)]
    failed: bool,
    /// How many failing copies and unused images of each object are shown in a table [default: 10]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Go on also where standard output is no terminal: print again whenever something has changed
    #[arg(short, long)]
    watch: bool,
    /// Print once also on a terminal
    #[arg(long, conflicts_with = "watch")]
    once: bool,
    /// Form of the answer
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    server: Server,
    /// Namespace of the operator, where the ledgers of cluster-wide objects are [default: where the webhook's Service
    /// is, else fairlead-system]
    #[arg(long, value_name = "NS")]
    operator_namespace: Option<String>,
}

/// An object that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    kind: Option<Kind>,
    name: String,
}

impl Wanted {
    fn parse(text: &str) -> Result<Self> {
        let (kind, name) = match text.split_once('/') {
            None => (None, text),
            Some((kind, name)) => {
                let known = Kind::parse(kind);
                (
                    Some(known.with_context(|| {
                        format!("{kind} is no kind of mirrors: write cism/{name} or ism/{name}")
                    })?),
                    name,
                )
            }
        };
        if name.is_empty() {
            bail!("the name of the object is missing");
        }
        Ok(Self { kind, name: name.to_owned() })
    }

    fn is(&self, object: &Object) -> bool {
        self.name == object.name && self.kind.is_none_or(|kind| kind == object.kind)
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            Some(kind) => write!(f, "{} {}", kind.name(), self.name),
            None => write!(f, "mirror {}", self.name),
        }
    }
}

/// A report as it is printed.
struct Words {
    warnings: Vec<String>,
    text: String,
}

impl Words {
    /// Whether the reader is still there.
    fn print(&self) -> Result<bool> {
        for warning in &self.warnings {
            access::warn(warning);
        }
        write(&self.text)
    }
}

impl Status {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let report = run_to_end(self.show())?;
        Ok(if report.is_troubled() { FAILING.into() } else { ExitCode::SUCCESS })
    }

    async fn show(&self) -> Result<Report> {
        let client = self.server.connect().await?.client;
        let operator_namespace = match &self.operator_namespace {
            Some(namespace) => namespace.clone(),
            None => operator_namespace(&client).await,
        };
        let namespace = self.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let scope = WatchScope {
            kinds: self.kinds(),
            namespace: (!self.all_namespaces).then_some(namespace),
            operator_namespace,
        };
        let mut following = Following::start(&client, &scope).await?;
        self.find_all(&following, &scope)?;
        if self.output == Output::Table && !self.once && Screen::is_there() {
            self.live(&mut following, &scope).await?;
        } else if self.watch {
            return self.print_changes(&mut following, &scope).await;
        }
        let report = self.report(&following);
        self.words(&report, &scope)?.print()?;
        Ok(report)
    }

    fn kinds(&self) -> Vec<Kind> {
        let any = self.names.is_empty() || self.names.iter().any(|wanted| wanted.kind.is_none());
        let is_wanted = |kind: &Kind| any || self.names.iter().any(|wanted| wanted.kind == Some(*kind));
        [Kind::ClusterImageSetMirror, Kind::ImageSetMirror].into_iter().filter(is_wanted).collect()
    }

    /// An object that was named and is not there is an error.
    fn find_all(&self, following: &Following, scope: &WatchScope) -> Result<()> {
        for wanted in &self.names {
            if following.view.objects().any(|object| wanted.is(object)) {
                continue;
            }
            let place = match (&scope.namespace, wanted.kind) {
                (_, Some(Kind::ClusterImageSetMirror)) => String::new(),
                (None, _) => " in any namespace".to_owned(),
                (Some(namespace), Some(_)) => {
                    format!(" in namespace {namespace}; -n names another, -A all of them")
                }
                (Some(namespace), None) => format!(
                    ": no ClusterImageSetMirror, and no ImageSetMirror in namespace {namespace}; -n names another \
                     namespace, -A all of them"
                ),
            };
            let told = [format!("there is no {wanted}{place}")].into_iter().chain(following.warnings());
            bail!("{}", told.collect::<Vec<_>>().join("; "));
        }
        Ok(())
    }

    fn report(&self, following: &Following) -> Report {
        let wanted =
            |object: &Object| self.names.is_empty() || self.names.iter().any(|wanted| wanted.is(object));
        let mut report = Report::of(&following.view, wanted, Timestamp::now());
        report.warnings.extend(following.warnings());
        if self.failed { report.only_failing() } else { report }
    }

    fn look(&self, bars: bool) -> TableStyle {
        let usual = if self.failed { usize::MAX } else { 10 };
        TableStyle { most: self.limit.unwrap_or(usual), bars, now: Timestamp::now() }
    }

    /// What to say where there is nothing to show.
    fn nothing(&self, scope: &WatchScope) -> String {
        if self.failed {
            return "Nothing fails.\n".to_owned();
        }
        match &scope.namespace {
            Some(namespace) => {
                format!(
                    "There is no ClusterImageSetMirror, and no ImageSetMirror in namespace {namespace}.\n"
                )
            }
            None => "There is no ClusterImageSetMirror and no ImageSetMirror.\n".to_owned(),
        }
    }

    fn text(&self, report: &Report, scope: &WatchScope, bars: bool) -> String {
        if report.objects.is_empty() { self.nothing(scope) } else { table(report, self.look(bars)) }
    }

    fn words(&self, report: &Report, scope: &WatchScope) -> Result<Words> {
        let (warnings, text) = match self.output {
            Output::Table => (report.warnings.clone(), self.text(report, scope, false)),
            Output::Json => {
                let text = if self.watch {
                    serde_json::to_string(report)
                } else {
                    serde_json::to_string_pretty(report)
                };
                (Vec::new(), text.context("cannot write the report")? + "\n")
            }
        };
        Ok(Words { warnings, text })
    }

    /// Draws until the program is interrupted.
    async fn live(&self, following: &mut Following, scope: &WatchScope) -> Result<()> {
        let mut interruption = Interruption::new()?;
        let screen = Screen::open()?;
        let mut tick = interval(REDRAW);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = interruption.wait() => return Ok(()),
                _ = tick.tick() => {
                    let report = self.report(following);
                    let warnings = report.warnings.iter().map(|warning| format!("Warning: {warning}"));
                    let text = warnings.chain([self.text(&report, scope, true)]).collect::<Vec<_>>().join("\n");
                    screen.draw(&text)?;
                }
                _ = following.next() => {}
            }
        }
    }

    /// Prints again after each change, at most once a second, until the program is ended or its reader leaves.
    async fn print_changes(&self, following: &mut Following, scope: &WatchScope) -> Result<Report> {
        let mut interruption = Interruption::new()?;
        let mut tick = interval(REDRAW);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shown: Option<Report> = None;
        loop {
            tokio::select! {
                biased;
                () = interruption.wait() => break,
                _ = tick.tick() => {
                    let report = self.report(following);
                    if shown.as_ref().is_none_or(|shown| !shown.is_same(&report)) {
                        let mut words = self.words(&report, scope)?;
                        if self.output == Output::Table && shown.is_some() {
                            words.text.insert(0, '\n');
                        }
                        // A reader that stalls may still interrupt.
                        let read = tokio::select! {
                            biased;
                            () = interruption.wait() => break,
                            read = spawn_blocking(move || words.print()) => read??,
                        };
                        if !read {
                            break;
                        }
                        shown = Some(report);
                    }
                }
                _ = following.next() => {}
            }
        }
        Ok(shown.unwrap_or_default())
    }
}
