//! Files on a node: found, written and removed so that the runtime sees the old state or the new one, whatever happens
//! in between.
//!
//! A file is ours if it begins with our header. Everything is done in steps of one system call each, in an order in
//! which a stop after any of them leaves nothing half-done where a runtime looks; the next run clears away the rest. A
//! new directory appears with its file in it, because containerd takes an empty one for a registry without mirrors.

mod steps;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use fairlead_plan::node_config::{FileChange, FilePlan, ForeignFile, Found, LaterDirectories};
use thiserror::Error;

use self::steps::Steps;
pub use self::steps::{Disk, RealDisk, Step};
use crate::toml::HEADER;
use crate::{DROP_IN, File as Wanted, RuntimeName};

const HOSTS: &str = "hosts.toml";

/// The directory in which a runtime looks for its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigDir {
    pub path: PathBuf,
    pub runtime: RuntimeName,
    /// Directories in which containerd looks for a registry that it does not find here. Nothing is written there.
    pub later_roots: Vec<PathBuf>,
}

/// What has become of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    pub written: Vec<String>,
    pub removed: Vec<String>,
    pub foreign: Vec<ForeignFile>,
    /// Directories of registries that have another owner, whether a file of ours belongs there or not. Empty ones are
    /// among them.
    pub of_others: Vec<String>,
    /// What another owner has for every registry without a directory of its own.
    pub default_of_others: Option<String>,
    /// What was there of ours, if something has changed.
    pub before: Vec<Wanted>,
}

impl Applied {
    pub fn has_changes(&self) -> bool {
        !self.written.is_empty() || !self.removed.is_empty()
    }
}

#[derive(Debug, Error)]
#[error("cannot {attempt} {}: {error}; {}", path.display(), remedy(error))]
pub struct FileError {
    attempt: &'static str,
    path: PathBuf,
    error: io::Error,
}

/// What a person can do about it. Files change one after another, so earlier ones may have.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free space on this file system",
        ErrorKind::ReadOnlyFilesystem => "mount it writable, or name another directory with --config-dir",
        ErrorKind::PermissionDenied => "let the agent write there",
        _ => "this file is as it was",
    }
}

impl ConfigDir {
    pub fn new(path: PathBuf, runtime: RuntimeName) -> Self {
        Self { path, runtime, later_roots: Vec::new() }
    }

    /// Makes the directory hold exactly the wanted files of ours.
    pub fn apply(&self, wanted: &[Wanted], disk: &mut impl Disk) -> Result<Applied, FileError> {
        fs::create_dir_all(&self.path).map_err(self.failed("make the directory"))?;
        // Two agents run while one takes over from the other.
        let directory = File::open(&self.path).map_err(self.failed("open"))?;
        directory.lock().map_err(self.failed("lock"))?;
        let wanted: BTreeMap<String, String> =
            wanted.iter().map(|file| (file.path.clone(), file.content.clone())).collect();
        let found = self.found()?;
        let plan = FilePlan::new(&wanted, &found, &self.later()?);
        let (foreign, default_of_others) = (plan.foreign, plan.foreign_default);
        let mut applied = Applied { foreign, default_of_others, ..Applied::default() };
        for (path, found) in found {
            match found {
                Found::Foreign | Found::Empty => {
                    applied.of_others.extend(path.split_once('/').map(|(name, _)| name.to_owned()));
                }
                Found::Ours { content } if !plan.changes.is_empty() => {
                    applied.before.push(Wanted { path, content });
                }
                Found::Ours { .. } | Found::Lost => {}
            }
        }
        carry_out(disk, Steps::clear(&self.path))?;
        for change in plan.changes {
            let (path, done) = match &change {
                FileChange::Create { path, .. } | FileChange::Replace { path, .. } => {
                    (path, &mut applied.written)
                }
                FileChange::Remove { path } => (path, &mut applied.removed),
            };
            done.push(path.clone());
            carry_out(disk, Steps::of(&self.path, &change))?;
        }
        Ok(applied)
    }

    /// Removes every file of ours.
    pub fn remove(&self, disk: &mut impl Disk) -> Result<Applied, FileError> {
        if !self.path.exists() {
            return Ok(Applied::default());
        }
        self.apply(&[], disk)
    }

    /// The files of ours.
    pub fn ours(&self) -> Result<Vec<String>, FileError> {
        if !self.path.exists() {
            return Ok(Vec::new());
        }
        let found = self.found()?.into_iter();
        Ok(found.filter(|(_, found)| matches!(found, Found::Ours { .. })).map(|(path, _)| path).collect())
    }

    /// What stands where our files would.
    fn found(&self) -> Result<BTreeMap<String, Found>, FileError> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.path).map_err(self.failed("list"))? {
            let entry = entry.map_err(self.failed("list"))?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let one = match self.runtime {
                RuntimeName::Containerd if !name.starts_with('.') => {
                    (format!("{name}/{HOSTS}"), Some(in_directory(&entry.path())))
                }
                RuntimeName::Crio | RuntimeName::Podman if name == DROP_IN => (name, in_file(&entry.path())),
                _ => continue,
            };
            if let (path, Some(one)) = one {
                found.insert(path, one);
            }
        }
        if self.runtime != RuntimeName::Containerd && is_lost(&self.path.join(DROP_IN)) {
            found.entry(DROP_IN.to_owned()).or_insert(Found::Lost);
        }
        Ok(found)
    }

    /// Directories of registries in later roots. One that cannot be read may hold any.
    fn later(&self) -> Result<LaterDirectories, FileError> {
        let mut later = LaterDirectories::new();
        for root in self.later_roots.iter().rev() {
            let failed = |error| FileError { attempt: "list", path: root.clone(), error };
            let entries = match fs::read_dir(root) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                entries => entries.map_err(failed)?,
            };
            for entry in entries {
                let entry = entry.map_err(failed)?;
                if let (Ok(name), true) = (entry.file_name().into_string(), entry.path().is_dir()) {
                    later.insert(name, entry.path().display().to_string());
                }
            }
        }
        Ok(later)
    }

    fn failed(&self, attempt: &'static str) -> impl Fn(io::Error) -> FileError {
        let path = self.path.clone();
        move |error| FileError { attempt, path: path.clone(), error }
    }
}

fn carry_out(disk: &mut impl Disk, steps: Steps) -> Result<(), FileError> {
    for step in steps.0 {
        disk.carry_out(&step).map_err(|error| FileError {
            attempt: step.attempt(),
            path: step.path().to_owned(),
            error,
        })?;
    }
    Ok(())
}

/// A directory with other files than ours has another owner: certificates may be in it. Agents make no links, so one
/// that leads to a file of ours has another owner as well.
fn in_directory(path: &Path) -> Found {
    if path.is_symlink() {
        return Found::Foreign;
    }
    let hosts = path.join(HOSTS);
    in_file(&hosts).unwrap_or_else(|| match steps::holds_nothing_but(path, &steps::hidden(&hosts)) {
        Ok(true) if is_lost(&hosts) => Found::Lost,
        Ok(true) => Found::Empty,
        _ => Found::Foreign,
    })
}

/// Whether something was kept of a file of ours.
fn is_lost(path: &Path) -> bool {
    steps::hidden(path).iter().any(|kept| kept.exists())
}

/// What cannot be read is not ours.
fn in_file(path: &Path) -> Option<Found> {
    match fs::read_to_string(path) {
        Ok(_) if path.is_symlink() => Some(Found::Foreign),
        Ok(content) if content.starts_with(HEADER) => Some(Found::Ours { content }),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        _ => Some(Found::Foreign),
    }
}
