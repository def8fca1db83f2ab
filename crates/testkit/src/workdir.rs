//! Where a cluster, a registry or a group of processes keeps its files. The supervisor removes the directory at its
//! end, because the process that made it may be killed, or may hold it in a static that is never dropped.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Set to anything, keeps work directories, so that logs can be read after a failure.
const KEEP: &str = "FAIRLEAD_TEST_KEEP";

pub(crate) fn create(prefix: &str) -> Result<PathBuf> {
    let directory = tempfile::Builder::new()
        .prefix(&format!("fairlead-{prefix}-"))
        .tempdir()
        .context("cannot make a work directory under the directory for temporary files")?;
    Ok(directory.keep())
}

pub(crate) fn is_kept() -> bool {
    std::env::var_os(KEEP).is_some()
}

pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    std::fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}
