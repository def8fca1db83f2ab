//! `fairlead render`: the files for a node, from manifests or a cluster.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use super::{Given, Planned};
use crate::access::warn;
use crate::output::{FAILING, write};

/// Print the configuration that makes a node's runtime follow mirror policies
///
/// Policies come from files, or from the cluster that kubectl would use; nothing is changed there.
///
/// What the runtime's files cannot express is left out and named on standard error. Ends with 0 if the files say all of
/// it, with 1 if nothing could be written, with 2 for wrong arguments, and with 3 if something is not exact or a policy
/// is wrong.
#[derive(Debug, Args)]
pub(crate) struct Render {
    #[command(flatten)]
    given: Given,
    /// Write the files into this directory instead of to standard output
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
}

impl Render {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let Planned { config, runtime, router, has_failures } = self.given.plan()?;
        let rendered = fairlead_node::render(&config, &runtime, router)?;
        for one in &rendered.inexact {
            warn(&format!("not exact for {}: {}: {}", runtime.name, one.source, one.message));
        }
        for one in &rendered.notes {
            warn(&format!("{}: {}", one.source, one.message));
        }
        if let Some(directory) = &self.output_dir {
            for file in &rendered.files {
                let path = directory.join(&file.path);
                let context = || format!("cannot write {}", path.display());
                fs::create_dir_all(path.parent().unwrap_or(directory)).with_context(context)?;
                fs::write(&path, &file.content).with_context(context)?;
            }
        } else {
            let named = rendered.files.iter().map(|file| format!("# {}\n{}", file.path, file.content));
            write(&named.collect::<Vec<_>>().join("\n"))?;
        }
        let is_exact = rendered.inexact.is_empty() && !has_failures;
        Ok(if is_exact { ExitCode::SUCCESS } else { FAILING.into() })
    }
}
