//! The file that holds a registry's certificate authorities, watched for changes.
//!
//! CaFile are rotated while the program runs: a mounted file is replaced, and nobody restarts anything. So the file is
//! looked at again from time to time, and what depends on it is made anew when it is another.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;

/// How often the file is looked at, at most: soon enough for whoever waits for a repair, too rarely to be felt.
const LOOK: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct CaFile {
    path: PathBuf,
    last: Mutex<Look>,
}

#[derive(Debug)]
struct Look {
    at: Instant,
    /// `None` if there was no file.
    seen: Option<Stamp>,
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
        let last = Mutex::new(Look { at: Instant::now(), seen: Stamp::of(&path) });
        Self { path, last }
    }

    /// Whether the file is another than at the last look. True once for each change.
    pub(crate) fn has_changed(&self) -> bool {
        let mut last = self.last.lock();
        let now = Instant::now();
        if now.saturating_duration_since(last.at) < LOOK {
            return false;
        }
        last.at = now;
        let seen = Stamp::of(&self.path);
        let changed = seen != last.seen;
        last.seen = seen;
        changed
    }
}

impl Stamp {
    fn of(path: &std::path::Path) -> Option<Self> {
        let file = std::fs::metadata(path).ok()?;
        Some(Self {
            device: file.dev(),
            inode: file.ino(),
            length: file.len(),
            modified: file.modified().ok(),
        })
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
        assert!(!file.has_changed(), "it was looked at a moment ago");
        tokio::time::advance(LOOK).await;
        assert!(file.has_changed());
        tokio::time::advance(LOOK).await;
        assert!(!file.has_changed());
        std::fs::remove_file(&path).unwrap();
        tokio::time::advance(LOOK).await;
        assert!(file.has_changed());
    }
}
