//! CRI-O takes up a changed drop-in on a signal, or by itself where it is configured so.
//!
//! A file that CRI-O cannot read does no harm while it runs, and keeps it from starting again. So a CRI-O that ends
//! when a signal makes it reload gets the previous file back, and the new one is not tried a second time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use thiserror::Error;
use toml_edit::{DocumentMut, Item};

use crate::File;
use crate::files::{Applied, ConfigDir, FileError, RealDisk};
use crate::runtime::Runtime;

const CONFIG: &str = "etc/crio/crio.conf";
const DROP_INS: &str = "etc/crio/crio.conf.d";
const PROCESS: &str = "crio";
/// CRI-O that does not survive a reload ends at once.
const SURVIVES: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Why CRI-O does not follow the file.
#[derive(Debug, Error)]
pub enum ReloadError {
    #[error(
        "CRI-O cannot be told to read the new file, because its process is not to be seen: with CRI-O 1.30 or later set \
         auto_reload_registries = true in [crio.image] of its configuration and restart it once; or give the agent \
         hostPID"
    )]
    NoProcess,
    #[error("CRI-O, process {pid}, cannot be told to read the new file: {source}")]
    Signal { pid: i32, source: io::Error },
    #[error(
        "CRI-O ended when it was told to read the new file; the previous one is back in place until policies change"
    )]
    Ended,
    #[error(transparent)]
    File(#[from] FileError),
}

/// Makes CRI-O read its drop-ins again, after those of ours were removed.
pub fn tell(root: &Path, runtime: Runtime) -> Result<(), ReloadError> {
    let crio = Crio::new(root, runtime);
    if crio.reads_by_itself() { Ok(()) } else { crio.reload() }
}

/// Writes drop-ins and makes CRI-O read them.
#[derive(Debug)]
pub(crate) struct Crio {
    root: PathBuf,
    process: String,
    runtime: Runtime,
    /// The file may be newer than what CRI-O has read. So it is at the start: the agent before this one may have been
    /// killed in between.
    is_pending: bool,
    /// What CRI-O did not survive.
    refused: Option<Vec<File>>,
}

impl Crio {
    pub(crate) fn new(root: &Path, runtime: Runtime) -> Self {
        let (root, process) = (root.to_owned(), PROCESS.to_owned());
        Self { root, process, runtime, is_pending: true, refused: None }
    }

    pub(crate) fn apply(&mut self, directory: &ConfigDir, files: &[File]) -> Result<Applied, ReloadError> {
        if self.refused.as_deref() == Some(files) {
            return Err(ReloadError::Ended);
        }
        let applied = directory.apply(files, &mut RealDisk)?;
        self.is_pending |= applied.has_changes();
        if !self.is_pending {
            return Ok(applied);
        }
        let told = if self.reads_by_itself() { Ok(()) } else { self.reload() };
        if let Err(ReloadError::Ended) = told {
            if applied.has_changes() {
                directory.apply(&applied.before, &mut RealDisk)?;
            }
            self.refused = Some(files.to_vec());
        }
        told?;
        (self.is_pending, self.refused) = (false, None);
        Ok(applied)
    }

    /// Whether CRI-O watches the directory of drop-ins. Later files of its configuration override earlier ones.
    fn reads_by_itself(&self) -> bool {
        let drop_ins = fs::read_dir(self.root.join(DROP_INS)).into_iter().flatten().flatten();
        let mut drop_ins: Vec<PathBuf> = drop_ins.map(|entry| entry.path()).collect();
        drop_ins.sort();
        let files = [self.root.join(CONFIG)].into_iter().chain(drop_ins);
        let mut settings = files.rev().filter_map(|file| {
            let config: DocumentMut = fs::read_to_string(file).ok()?.parse().ok()?;
            config.get("crio")?.get("image")?.get("auto_reload_registries").and_then(Item::as_bool)
        });
        self.runtime.can_watch_drop_ins() && settings.next().unwrap_or(false)
    }

    fn reload(&self) -> Result<(), ReloadError> {
        let processes = self.processes();
        if processes.is_empty() {
            return Err(ReloadError::NoProcess);
        }
        for process in &processes {
            kill_process(*process, Signal::HUP).map_err(|error| ReloadError::Signal {
                pid: process.as_raw_nonzero().get(),
                source: error.into(),
            })?;
        }
        let until = Instant::now() + SURVIVES;
        while Instant::now() < until {
            // A process whose parent has not waited for it yet still has a number, and no name in /proc that counts.
            let is_there = |process: &Pid| test_kill_process(*process).is_ok() && !is_zombie(*process);
            if !processes.iter().all(is_there) {
                return Err(ReloadError::Ended);
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Processes of that name, as far as the agent sees them. A program that such a process starts has the same name
    /// for a moment, until it is executed, so children of these processes are none of them.
    fn processes(&self) -> Vec<Pid> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_ours = |number: &i32| {
            let name = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
            name.trim_end() == self.process
        };
        let of_that_name: Vec<i32> = numbers.filter(is_ours).collect();
        let processes = of_that_name.iter().copied().filter_map(Pid::from_raw);
        let counts = |process: &Pid| {
            let found = state_and_parent(*process);
            found.is_some_and(|(state, parent)| state != ZOMBIE && !of_that_name.contains(&parent))
        };
        processes.filter(counts).collect()
    }
}

/// Has ended, and its parent has not waited for it yet.
const ZOMBIE: char = 'Z';

fn is_zombie(process: Pid) -> bool {
    state_and_parent(process).is_some_and(|(state, _)| state == ZOMBIE)
}

fn state_and_parent(process: Pid) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    // They follow the name, which stands in parentheses and may hold anything.
    let mut fields = stat.rsplit_once(") ")?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::{Child, Command};

    use tempfile::TempDir;

    use super::*;
    use crate::toml::HEADER;
    use crate::{DROP_IN, RuntimeName};

    /// A node with a double of CRI-O: a shell of that name, which takes note of signals.
    struct Node {
        root: TempDir,
        crio: Crio,
        process: Option<Child>,
    }

    impl Node {
        fn new(process: &str, version: &str) -> Self {
            let root = TempDir::new().unwrap();
            let runtime = Runtime { name: RuntimeName::Crio, version: Some(version.parse().unwrap()) };
            let mut crio = Crio::new(root.path(), runtime);
            process.clone_into(&mut crio.process);
            Self { root, crio, process: None }
        }

        fn run(&mut self, on_hup: &str) {
            let program = self.root.path().join(&self.crio.process);
            // A link, because a copy cannot be run while another thread's new process still has it open for writing.
            if !program.exists() {
                symlink("/bin/sh", &program).unwrap();
            }
            // The child has the name of the shell, as one that is about to execute something else.
            let script = format!(
                "(while kill -0 $$; do sleep 0.01; done) & child=$!; trap '{on_hup}' HUP; touch up; \
                 while :; do sleep 0.01; done"
            );
            // A shell cannot trap a signal that it inherits as ignored, as everything does under `nohup`.
            let mut command = Command::new("env");
            command
                .arg("--default-signal=HUP")
                .arg(program)
                .args(["-c", &script])
                .current_dir(self.root.path());
            self.process = Some(command.spawn().unwrap());
            while !self.root.path().join("up").exists() {
                thread::sleep(LOOK_EVERY);
            }
        }

        fn apply(&mut self, content: &str) -> Result<Applied, ReloadError> {
            let path = self.root.path().join("registries.conf.d");
            let directory = ConfigDir::new(path, RuntimeName::Crio);
            let content = format!("{HEADER}{content}\n");
            self.crio.apply(&directory, &[File { path: DROP_IN.to_owned(), content }])
        }

        fn has(&self, content: &str) -> bool {
            let file = self.root.path().join("registries.conf.d").join(DROP_IN);
            fs::read_to_string(file).unwrap() == format!("{HEADER}{content}\n")
        }

        fn reloads(&self) -> usize {
            fs::read_to_string(self.root.path().join("reloads")).unwrap_or_default().lines().count()
        }
    }

    impl Drop for Node {
        fn drop(&mut self) {
            if let Some(process) = &mut self.process {
                process.kill().unwrap();
                process.wait().unwrap();
            }
        }
    }

    #[test]
    fn crio_is_told_once_for_each_change_and_once_at_the_start() {
        let mut node = Node::new("crio-told", "1.34.0");
        node.run("echo reload >> reloads; kill $child");
        for (content, reloads) in [("1", 1), ("1", 1), ("2", 2)] {
            node.apply(content).unwrap();
            assert!(node.has(content));
            assert_eq!(node.reloads(), reloads);
        }
        // An agent that was killed before it told CRI-O comes back.
        node.crio = Crio {
            is_pending: true,
            refused: None,
            root: node.crio.root.clone(),
            process: node.crio.process.clone(),
            ..node.crio
        };
        node.apply("2").unwrap();
        assert_eq!(node.reloads(), 3);
    }

    #[test]
    fn the_previous_file_comes_back_if_crio_does_not_survive_the_new_one() {
        let mut node = Node::new("crio-ends", "1.34.0");
        node.run("if grep -q bad registries.conf.d/*.conf; then exit 1; fi");
        node.apply("good").unwrap();
        assert!(matches!(node.apply("bad"), Err(ReloadError::Ended)));
        assert!(node.has("good"));
        let mut ended = node.process.take().unwrap();
        assert!(!ended.wait().unwrap().success());
        // Something starts it again; it is not tried with the same file.
        fs::remove_file(node.root.path().join("up")).unwrap();
        node.run("exit 1");
        assert!(matches!(node.apply("bad"), Err(ReloadError::Ended)));
        assert!(node.has("good") && node.process.as_mut().unwrap().try_wait().unwrap().is_none());
    }

    #[test]
    fn a_crio_that_cannot_be_seen_is_reported_and_tried_again() {
        let mut node = Node::new("crio-hidden", "1.34.0");
        let error = node.apply("1").unwrap_err().to_string();
        assert!(error.contains("auto_reload_registries = true") && error.contains("hostPID"), "{error}");
        assert!(node.has("1"), "it counts when CRI-O starts the next time");
        assert!(node.apply("1").is_err());
        node.run("echo reload >> reloads");
        node.apply("1").unwrap();
        assert_eq!(node.reloads(), 1);
    }

    #[test]
    fn a_crio_that_watches_its_drop_ins_is_not_told() {
        for (version, is_watching) in [("1.34.0", true), ("1.29.4", false)] {
            let mut node = Node::new("crio-watching", version);
            let directory = node.root.path().join(DROP_INS);
            fs::create_dir_all(&directory).unwrap();
            let setting = |value: bool| format!("[crio.image]\nauto_reload_registries = {value}\n");
            fs::write(directory.join("10-a.conf"), setting(false)).unwrap();
            fs::write(directory.join("20-b.conf"), setting(true)).unwrap();
            assert_eq!(node.apply("1").is_ok(), is_watching);
            fs::write(directory.join("30-c.conf"), setting(false)).unwrap();
            assert!(node.apply("2").is_err());
        }
    }
}
