//! Changes of files as steps of one system call each.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use fairlead_plan::node_config::FileChange;

/// Directories and files that are not finished have names that no runtime looks for.
const NEW: &str = ".fairlead-new";
const OLD: &str = ".fairlead-old";
/// Ends of hidden names beside a file.
const PREVIOUS: &str = "previous";
const NEXT: &str = "new";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    MakeDirectory(PathBuf),
    /// Writes a whole file and waits until it is stored.
    Write(PathBuf, String),
    /// Keeps a file under a second name.
    Keep(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf),
    /// Waits until the names in a directory are stored.
    Sync(PathBuf),
    /// Removes a file, if it is there.
    RemoveFile(PathBuf),
    /// Removes a directory with what is in it, if it is there.
    RemoveTree(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Steps(pub(super) Vec<Step>);

impl Steps {
    /// Clears away what an interrupted run has left.
    pub(super) fn clear(root: &Path) -> Self {
        Self(vec![Step::RemoveTree(root.join(NEW)), Step::RemoveTree(root.join(OLD))])
    }

    pub(super) fn of(root: &Path, change: &FileChange) -> Self {
        let at = |path: &String| {
            let path = root.join(path);
            let directory = path.parent().unwrap_or(root).to_owned();
            (path, directory)
        };
        let steps = match change {
            FileChange::Create { path, content } => {
                let (path, directory) = at(path);
                if directory == root {
                    replace(&path, &directory, content, false)
                } else {
                    create(root, &path, &directory, content)
                }
            }
            FileChange::Replace { path, content } => {
                let (path, directory) = at(path);
                replace(&path, &directory, content, true)
            }
            FileChange::Remove { path } => {
                let (path, directory) = at(path);
                remove(root, &path, &directory)
            }
        };
        Self(steps)
    }
}

/// A directory appears together with its file. It takes the place of an empty one, so what was kept of a lost file
/// goes before.
fn create(root: &Path, path: &Path, directory: &Path, content: &str) -> Vec<Step> {
    let new = root.join(NEW);
    let file = new.join(path.file_name().unwrap_or_default());
    let kept = hidden(path).into_iter().filter(|_| directory.is_dir()).map(Step::RemoveFile);
    let steps = [
        Step::RemoveTree(new.clone()),
        Step::MakeDirectory(new.clone()),
        Step::Write(file, content.to_owned()),
        Step::Sync(new.clone()),
        Step::Rename(new, directory.to_owned()),
        Step::Sync(root.to_owned()),
    ];
    kept.chain(steps).collect()
}

fn replace(path: &Path, directory: &Path, content: &str, keeps: bool) -> Vec<Step> {
    let new = beside(path, NEXT);
    let mut steps = vec![Step::Write(new.clone(), content.to_owned())];
    if keeps {
        let previous = beside(path, PREVIOUS);
        steps.extend([Step::RemoveFile(previous.clone()), Step::Keep(path.to_owned(), previous)]);
    }
    steps.extend([Step::Rename(new, path.to_owned()), Step::Sync(directory.to_owned())]);
    steps
}

/// A directory goes together with its file, unless others have put files there.
fn remove(root: &Path, path: &Path, directory: &Path) -> Vec<Step> {
    let [previous, new] = hidden(path);
    let ours = [path.to_owned(), previous, new];
    let is_alone = directory != root && holds_nothing_but(directory, &ours).unwrap_or(false);
    if is_alone {
        let old = root.join(OLD);
        return vec![
            Step::RemoveTree(old.clone()),
            Step::Rename(directory.to_owned(), old.clone()),
            Step::Sync(root.to_owned()),
            Step::RemoveTree(old),
        ];
    }
    let sync = Step::Sync(directory.to_owned());
    ours.into_iter().map(Step::RemoveFile).chain([sync]).collect()
}

pub(super) fn holds_nothing_but(directory: &Path, ours: &[PathBuf]) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        if !ours.contains(&entry?.path()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What stands beside a file of ours: its previous version, and the next one while that is being written.
pub(super) fn hidden(path: &Path) -> [PathBuf; 2] {
    [beside(path, PREVIOUS), beside(path, NEXT)]
}

/// A hidden name beside a file. Drop-ins of `registries.conf` are read only if they end in `.conf`.
fn beside(path: &Path, what: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{what}"))
}

/// What carries steps out; a test stops it at each of them.
pub trait Disk {
    fn carry_out(&mut self, step: &Step) -> io::Result<()>;
}

/// The file system of the node.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn carry_out(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::MakeDirectory(path) => fs::create_dir(path),
            Step::Write(path, content) => write(path, content).inspect_err(|_| {
                // What is not whole only takes space, which may be what is missing.
                let _ = fs::remove_file(path);
            }),
            Step::Keep(path, second) => fs::hard_link(path, second),
            Step::Rename(from, to) => fs::rename(from, to),
            Step::Sync(path) => File::open(path)?.sync_all(),
            Step::RemoveFile(path) => unless_missing(fs::remove_file(path)),
            Step::RemoveTree(path) => unless_missing(fs::remove_dir_all(path)),
        }
    }
}

fn write(path: &Path, content: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

fn unless_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl Step {
    pub(super) fn attempt(&self) -> &'static str {
        match self {
            Self::MakeDirectory(_) => "make the directory",
            Self::Write(..) => "write",
            Self::Keep(..) => "keep the previous version of",
            Self::Rename(..) => "put in place",
            Self::Sync(_) => "store",
            Self::RemoveFile(_) | Self::RemoveTree(_) => "remove",
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::MakeDirectory(path)
            | Self::Write(path, _)
            | Self::Keep(path, _)
            | Self::Rename(_, path)
            | Self::Sync(path)
            | Self::RemoveFile(path)
            | Self::RemoveTree(path) => path,
        }
    }
}
