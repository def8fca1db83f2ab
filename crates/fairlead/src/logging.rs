//! Log lines on standard error: one JSON object each for machines, plain text for people at a terminal.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Json,
    Text,
}

/// The Kubernetes client repeats what the operator reports itself, and prints whole responses that it cannot read,
/// which may hold secrets. It can be turned on again by name.
const QUIET: &str = "kube_client=off,kube_runtime=off";

/// Sets up logging for the rest of the process. `levels` is a level, or levels by module as in `RUST_LOG`.
pub(crate) fn start(format: Option<Format>, levels: &str) -> Result<()> {
    let filter = EnvFilter::builder().parse(format!("{QUIET},{levels}")).with_context(|| {
        format!("--log-level {levels} is neither a level nor a list such as info,fairlead_operator=debug")
    })?;
    let terminal = std::io::stderr().is_terminal();
    let format = format.unwrap_or(if terminal { Format::Text } else { Format::Json });
    let lines = match format {
        Format::Json => {
            let json = layer().json().flatten_event(true).with_span_list(false).with_writer(std::io::stderr);
            Box::new(json) as Box<dyn tracing_subscriber::Layer<_> + Send + Sync>
        }
        Format::Text => Box::new(layer().with_ansi(terminal).with_writer(std::io::stderr)),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "panicked; this is a bug")));
    Ok(())
}
