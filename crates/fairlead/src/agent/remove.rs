//! `fairlead agent remove`: takes everything off a node that an agent has put there.

use anyhow::Result;
use clap::Args;
use fairlead_node::files::RealDisk;

use super::Place;
use crate::output::write;

/// Remove the files that agents have written on this node
///
/// Files of others stay. Images are then pulled from their sources, also where policies forbid it. Stop the agent
/// first: one that runs writes its files again.
#[derive(Debug, Args)]
pub(crate) struct Remove {
    #[command(flatten)]
    place: Place,
}

impl Remove {
    pub(super) fn run(&self) -> Result<()> {
        let (directory, _) = self.place.find(None)?;
        let applied = directory.remove(&mut RealDisk)?;
        let removed =
            applied.removed.iter().map(|path| format!("removed {}\n", directory.path.join(path).display()));
        write(&removed.collect::<String>())?;
        Ok(())
    }
}
