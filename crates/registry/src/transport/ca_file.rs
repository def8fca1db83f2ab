//! The file with a registry's certificate authorities, watched for changes.
//!
//! Mounted files are replaced while the program runs. The file is checked from time to time, and the registry's TLS
//! configuration is built again after a change.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Shortest time between two checks of the file.
const INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct CaFile {
    path: PathBuf,
    /// When the file was last checked, and its stamp then; `None` if there was no file.
    last: Mutex<(Instant, Option<Stamp>)>,
}

/// What changes when a file is written or replaced.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: Option<SystemTime>,
}

impl CaFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        let last = Mutex::new((Instant::now(), Stamp::of(&path)));
        Self { path, last }
    }

    /// Whether the file has changed since the last check. True once for each change.
    pub(crate) fn has_changed(&self) -> bool {
        let mut last = self.last.lock();
        let now = Instant::now();
        if now.saturating_duration_since(last.0) < INTERVAL {
            return false;
        }
        let stamp = Stamp::of(&self.path);
        let changed = stamp != last.1;
        *last = (now, stamp);
        changed
    }
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let file = std::fs::metadata(path).ok()?;
        let modified = file.modified().ok();
        Some(Self { device: file.dev(), inode: file.ino(), length: file.len(), modified })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn every_change_is_noticed_once_and_not_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.pem");
        std::fs::write(&path, "one").unwrap();
        let file = CaFile::new(path.clone());
        std::fs::write(&path, "another").unwrap();
        assert!(!file.has_changed(), "it was checked just now");
        tokio::time::advance(INTERVAL).await;
        assert!(file.has_changed());
        tokio::time::advance(INTERVAL).await;
        assert!(!file.has_changed());
        std::fs::remove_file(&path).unwrap();
        tokio::time::advance(INTERVAL).await;
        assert!(file.has_changed());
    }
}
