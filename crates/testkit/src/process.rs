//! One program that runs under a supervisor: killed, paused, restarted and read on request, and dead when we are.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::names::unique;
use crate::poll::eventually;
pub use crate::supervisor::Ending;
use crate::supervisor::{Launch, Signal, Status, Supervisor};

/// How much of a log is quoted in an error.
const QUOTED_LINES: usize = 15;
/// How much of it is read for that. Conditions that are awaited quote the log at every failed attempt.
const QUOTED_BYTES: u64 = 64 * 1024;
const KILL_DEADLINE: Duration = Duration::from_secs(10);
/// Clock ticks per second in `/proc`, the same on every Linux.
const TICKS: u64 = 100;

/// What programs inherit of our environment. The last two are for those written in Go: a run of all tests has more
/// programs than cores, and tells each to use few threads and to collect garbage rarely.
const INHERITED: [&str; 5] = ["PATH", "HOME", "TMPDIR", "GOMAXPROCS", "GOGC"];

/// A program to be started, with its arguments and environment. Little is inherited, so that no `KUBECONFIG` or proxy
/// of the caller leaks into a test.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    args: Vec<String>,
    env: BTreeMap<String, String>,
}

impl Program {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let env = INHERITED.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
        Self { path: path.into(), args: Vec::new(), env: env.collect() }
    }

    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    #[must_use]
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Starts it as a child of this test process, so to say: when this process ends, it is killed.
    pub async fn start(self) -> Result<Process> {
        let name = self.path.file_name().and_then(OsStr::to_str).unwrap_or("program");
        let name = unique(name);
        let supervisor = tokio::task::spawn_blocking(Supervisor::of_this_process).await??;
        self.start_under(supervisor, &name).await
    }

    pub(crate) async fn start_under(self, supervisor: Arc<Supervisor>, name: &str) -> Result<Process> {
        let process = self.prepare(supervisor, name);
        process.start_again().await?;
        Ok(process)
    }

    fn prepare(self, supervisor: Arc<Supervisor>, name: &str) -> Process {
        let directory = supervisor.directory();
        let launch = Launch {
            program: self.path,
            args: self.args,
            env: self.env,
            dir: directory.to_owned(),
            log: directory.join(format!("{name}.log")),
        };
        Process { name: name.to_owned(), supervisor, launch }
    }
}

/// A program that was started. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    supervisor: Arc<Supervisor>,
    launch: Launch,
}

impl Process {
    /// What it wrote to standard output and error, over all its lives.
    pub fn logs(&self) -> Result<String> {
        let path = &self.launch.log;
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub fn log_path(&self) -> &Path {
        &self.launch.log
    }

    /// Waits until a line of the log contains `text` and returns that line. Fails at once when the program ends before
    /// that.
    pub async fn wait_for_log(&self, text: &str, deadline: Duration) -> Result<String> {
        let found = eventually(deadline, || async {
            // Asked before the log is read, so that the last words of a program that just ended still count.
            let ending = self.ending();
            let logs = self.logs()?;
            if let Some(line) = logs.lines().find(|line| line.contains(text)) {
                return Ok(Ok(line.to_owned()));
            }
            match ending {
                Some(ending) => Ok(Err(ending)),
                None => bail!("{} did not log {text:?}; its last lines:\n{}", self.name, self.log_tail()),
            }
        });
        match found.await? {
            Ok(line) => Ok(line),
            Err(ending) => {
                bail!("{} ended with {ending:?} before it logged {text:?}:\n{}", self.name, self.log_tail())
            }
        }
    }

    /// The last lines of the log, for error messages.
    pub fn log_tail(&self) -> String {
        let logs = end_of(&self.launch.log).unwrap_or_default();
        let lines: Vec<&str> = logs.lines().collect();
        let last = lines.iter().skip(lines.len().saturating_sub(QUOTED_LINES));
        last.fold(String::new(), |text, line| text + "  " + line + "\n")
    }

    fn status(&self) -> Status {
        *self.supervisor.watch(&self.name).borrow()
    }

    pub fn is_running(&self) -> bool {
        matches!(self.status(), Status::Running(_))
    }

    /// Process id; for a part of a cluster with a node, as it is seen inside the cluster's own PID namespace.
    pub fn pid(&self) -> Option<u32> {
        match self.status() {
            Status::Running(pid) => Some(pid),
            _ => None,
        }
    }

    /// How it ended, if it has.
    pub fn ending(&self) -> Option<Ending> {
        match self.status() {
            Status::Ended(ending) => Some(ending),
            _ => None,
        }
    }

    /// Waits for its end.
    pub async fn wait(&self, deadline: Duration) -> Result<Ending> {
        let mut status = self.supervisor.watch(&self.name);
        let ended = status.wait_for(|status| matches!(status, Status::Ended(_)));
        let Ok(ended) = tokio::time::timeout(deadline, ended).await else {
            bail!("{} still runs after {deadline:?}; its last lines:\n{}", self.name, self.log_tail());
        };
        match *ended? {
            Status::Ended(ending) => Ok(ending),
            other => bail!("{} is {other:?}", self.name),
        }
    }

    pub async fn signal(&self, signal: Signal) -> Result<()> {
        self.supervisor.signal(&self.name, signal).await
    }

    /// SIGKILL, and waits until it is gone.
    pub async fn kill(&self) -> Result<()> {
        if self.is_running() {
            self.signal(Signal::Kill).await?;
            self.wait(KILL_DEADLINE).await?;
        }
        Ok(())
    }

    /// Starts it again after its end, with the same arguments and the same log.
    pub async fn start_again(&self) -> Result<()> {
        self.start_again_with(&[]).await
    }

    /// The same with further arguments, for this life only.
    pub async fn start_again_with(&self, args: &[&str]) -> Result<()> {
        ensure!(!self.is_running(), "{} is running", self.name);
        let mut launch = self.launch.clone();
        launch.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self.supervisor.launch(&self.name, &launch).await?;
        Ok(())
    }

    /// Highest resident memory so far, in bytes, as the kernel has counted it.
    pub fn peak_memory(&self) -> Result<u64> {
        let pid = self.pid().with_context(|| format!("{} does not run", self.name))?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: u64 =
            line.and_then(|line| line.trim().strip_suffix("kB")).context("no VmHWM")?.trim().parse()?;
        Ok(kib * 1024)
    }

    /// Processor time so far, of all its threads, in user space and in the kernel.
    pub fn processor_time(&self) -> Result<Duration> {
        let pid = self.pid().with_context(|| format!("{} does not run", self.name))?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name, in brackets, may hold anything; everything after it is numbers.
        let fields = stat.rsplit_once(')').context("an odd /proc/PID/stat")?.1.split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(str::parse::<u64>).sum::<Result<_, _>>()?;
        Ok(Duration::from_millis(ticks * 1000 / TICKS))
    }
}

fn end_of(log: &Path) -> Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(QUOTED_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() && !self.supervisor.is_detached() {
            self.supervisor.signal_and_forget(&self.name, Signal::Kill);
        }
    }
}
