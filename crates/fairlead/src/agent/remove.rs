//! `fairlead agent remove`: takes everything off a node that an agent has put there.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use fairlead_node::files::{ConfigDir, RealDisk};
use fairlead_node::{Runtime, RuntimeName, crio};
use tokio::sync::watch;

use super::{RuntimePlace, every_node, ready};
use crate::access::warn;
use crate::connect::Server;
use crate::ending::{Interruption, run_to_end};
use crate::output::write;

/// Where agents write unless an option says otherwise or they find something else.
const USUAL: [(&str, RuntimeName); 2] = [
    ("etc/containerd/certs.d", RuntimeName::Containerd),
    ("etc/containers/registries.conf.d", RuntimeName::Crio),
];

/// Remove the files that agents have written on this node
///
/// Files of others stay. Images are then pulled from their sources, also where policies forbid it. Stop the agent
/// first: one that runs writes its files again. With --every-node, the Pods of the agents' `DaemonSet` do it instead of
/// what they did before, on all nodes of the cluster.
#[derive(Debug, Args)]
pub(crate) struct Remove {
    #[command(flatten)]
    place: RuntimePlace,
    /// Name the files, and keep them
    #[arg(long)]
    keep: bool,
    /// Stay when it is done, until a signal, as a Pod of a `DaemonSet` has to
    #[arg(long, conflicts_with = "every_node")]
    stay: bool,
    /// File that says whether it is done, for `fairlead agent ready`
    #[arg(long, value_name = "FILE", requires = "stay")]
    ready_file: Option<PathBuf>,
    /// Have the files removed from every node of a cluster by its agents, which end with it
    #[arg(long, conflicts_with_all = ["keep", "host_root", "runtime", "runtime_version", "config_dir"])]
    every_node: bool,
    #[command(flatten)]
    everywhere: every_node::EveryNode,
    #[command(flatten)]
    server: Server,
}

impl Remove {
    pub(super) fn run(&self) -> Result<()> {
        if self.every_node {
            return run_to_end(self.everywhere.remove(&self.server));
        }
        // What keeps one directory as it is must not keep the others.
        let removed: Vec<Result<()>> =
            self.directories().iter().map(|directory| self.remove(directory)).collect();
        removed.into_iter().collect::<Result<()>>()?;
        if self.stay { run_to_end(self.wait()) } else { Ok(()) }
    }

    /// All directories in which an agent may have written: a runtime may have been exchanged since, or lost its
    /// `config_path`.
    fn directories(&self) -> Vec<ConfigDir> {
        let found = self.place.find(None).ok().map(|(directory, _)| directory);
        if self.place.config_dir.is_some() {
            return found.into_iter().collect();
        }
        let usual = USUAL.map(|(path, runtime)| ConfigDir::new(self.place.host_root.join(path), runtime));
        let mut all: Vec<ConfigDir> = found.into_iter().collect();
        for directory in usual {
            if !all.iter().any(|found| found.path == directory.path) {
                all.push(directory);
            }
        }
        all
    }

    fn remove(&self, directory: &ConfigDir) -> Result<()> {
        let (verb, paths) = if self.keep {
            ("kept", directory.ours()?)
        } else {
            ("removed", directory.remove(&mut RealDisk)?.removed)
        };
        let said = paths.iter().map(|path| format!("{verb} {}\n", directory.path.join(path).display()));
        write(&said.collect::<String>())?;
        if directory.runtime == RuntimeName::Crio && !self.keep && !paths.is_empty() {
            let runtime = Runtime { name: RuntimeName::Crio, version: self.place.runtime_version };
            if let Err(error) = crio::tell(&self.place.host_root, runtime) {
                warn(&format!("until CRI-O starts again, it follows the removed file: {error}"));
            }
        }
        Ok(())
    }

    async fn wait(&self) -> Result<()> {
        let mut interruption = Interruption::new()?;
        let (beat, readiness) = watch::channel(None);
        if let Some(file) = &self.ready_file {
            tokio::spawn(ready::keep(file.clone(), readiness));
        }
        let beating = async {
            loop {
                beat.send_replace(None);
                tokio::time::sleep(super::LOOK_EVERY).await;
            }
        };
        tokio::select! {
            () = interruption.wait() => {}
            () = beating => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        remove: Remove,
    }

    #[test]
    fn a_directory_that_cannot_be_cleared_does_not_keep_the_others() {
        let node = tempfile::tempdir().unwrap();
        let drop_in = node.path().join("etc/containers/registries.conf.d/50-fairlead.conf");
        fs::create_dir_all(drop_in.parent().unwrap()).unwrap();
        fs::write(&drop_in, "# Written by Fairlead from mirror policies: edit those, not this file.\n")
            .unwrap();
        fs::create_dir_all(node.path().join("etc/containerd")).unwrap();
        fs::write(node.path().join("etc/containerd/certs.d"), "not a directory").unwrap();
        let command = Command::parse_from(["remove", "--host-root", node.path().to_str().unwrap()]);
        let error = command.remove.run().unwrap_err().to_string();
        assert!(error.contains("certs.d"), "{error}");
        assert!(!drop_in.exists());
    }
}
