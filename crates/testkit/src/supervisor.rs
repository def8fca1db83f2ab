//! Our side of the supervisor program (`cluster/programs/supervisor`), the parent of every process the testkit starts.
//!
//! It ends everything when the pipe to it closes, which the kernel sees to even if we are killed. A parent-death signal
//! set by ourselves would not do: it fires when the *thread* that started the child ends, and test threads end all the
//! time. Everything here works from any thread and any runtime, so that one cluster can serve all tests of a process.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use crate::assets::{Assets, Group};
use crate::cluster::Network;
use crate::workdir;

/// Signals tests send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Signal {
    Hangup = 1,
    Interrupt = 2,
    Kill = 9,
    Terminate = 15,
    Continue = 18,
    Stop = 19,
}

/// How a process ended: one of the two is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    NotStarted,
    Running(u32),
    Ended(Ending),
}

/// What to start, in full: nothing is inherited from our own environment.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub dir: PathBuf,
    pub log: PathBuf,
}

#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Own PID, mount and network namespaces (needs root), reached by this link: for parts that make mounts,
    /// processes and network devices of their own.
    pub namespaces: Option<Link>,
    /// Held locked while the supervisor lives.
    pub pid_file: Option<PathBuf>,
}

/// The way into namespaces.
#[derive(Debug)]
pub(crate) struct Link {
    pub network: Network,
    /// Of the network device and of the control group, both of which all clusters of the machine see.
    pub name: String,
}

#[derive(Serialize, Default)]
struct Request<'a> {
    id: u64,
    op: &'a str,
    name: &'a str,
    argv: Vec<&'a str>,
    env: Option<&'a BTreeMap<String, String>>,
    dir: Option<&'a Path>,
    log: Option<&'a Path>,
    signal: i32,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    id: u64,
    error: Option<String>,
    #[serde(default)]
    pid: u32,
    exited: Option<String>,
    code: i32,
    #[serde(default)]
    signal: i32,
}

struct Pending {
    starts: Option<String>,
    reply: oneshot::Sender<Result<u32>>,
}

#[derive(Default)]
struct Table {
    last_id: u64,
    pending: HashMap<u64, Pending>,
    parts: HashMap<String, watch::Sender<Status>>,
    gone: bool,
}

impl Table {
    fn part(&mut self, name: &str) -> &watch::Sender<Status> {
        self.parts.entry(name.to_owned()).or_insert_with(|| watch::Sender::new(Status::NotStarted))
    }

    fn receive(&mut self, message: Message) {
        if let Some(name) = message.exited {
            let by_signal = message.signal != 0;
            let ending = Ending {
                code: (!by_signal).then_some(message.code),
                signal: by_signal.then_some(message.signal),
            };
            self.part(&name).send_replace(Status::Ended(ending));
        } else if let Some(pending) = self.pending.remove(&message.id) {
            let outcome = match message.error {
                Some(error) => Err(anyhow!(error)),
                None => Ok(message.pid),
            };
            if let (Some(name), Ok(pid)) = (pending.starts, &outcome) {
                self.part(&name).send_replace(Status::Running(*pid));
            }
            // The caller may have stopped waiting.
            drop(pending.reply.send(outcome));
        }
    }

    /// The supervisor is gone, and with it every part.
    fn close(&mut self) {
        self.gone = true;
        self.pending.clear();
        for part in self.parts.values() {
            part.send_if_modified(|status| {
                let ran = matches!(status, Status::Running(_));
                if ran {
                    *status = Status::Ended(Ending { code: None, signal: Some(Signal::Kill as i32) });
                }
                ran
            });
        }
    }
}

/// A running supervisor. Dropping it ends its parts and removes its directory before it returns.
pub struct Supervisor {
    directory: PathBuf,
    child: Child,
    commands: Mutex<Option<ChildStdin>>,
    detached: AtomicBool,
    table: Arc<Mutex<Table>>,
}

impl std::fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Supervisor {
    /// Starts one that owns `directory` and removes it at the end.
    pub(crate) fn start(directory: PathBuf, options: &Options) -> Result<Self> {
        let program = Assets::build(&[Group::Programs])?.program("supervisor")?;
        let log = File::create(directory.join("supervisor.log"))?;
        let mut command = Command::new(&program);
        command.arg("run");
        if let Some(link) = &options.namespaces {
            command.args(["--namespaces", &link.network.argument(), "--name", &link.name]);
        }
        if let Some(file) = &options.pid_file {
            command.arg("--pid-file").arg(file);
        }
        if !workdir::is_kept() {
            command.arg("--remove").arg(&directory);
        }
        let mut child = command
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let commands = child.stdin.take();
        let messages = child.stdout.take().context("the supervisor has no standard output")?;
        let table = Arc::new(Mutex::new(Table::default()));
        let reader = Arc::clone(&table);
        std::thread::Builder::new().name("supervisor".to_owned()).spawn(move || {
            for line in BufReader::new(messages).lines().map_while(Result::ok) {
                if let Ok(message) = serde_json::from_str(&line) {
                    reader.lock().receive(message);
                }
            }
            reader.lock().close();
        })?;
        Ok(Self { directory, child, commands: Mutex::new(commands), detached: AtomicBool::new(false), table })
    }

    /// The supervisor for processes that belong to this test process as a whole.
    pub(crate) fn of_this_process() -> Result<Arc<Self>> {
        static SHARED: Mutex<Option<Arc<Supervisor>>> = Mutex::new(None);
        let mut shared = SHARED.lock();
        if let Some(supervisor) = &*shared {
            return Ok(Arc::clone(supervisor));
        }
        let supervisor = Arc::new(Self::start(workdir::create("processes")?, &Options::default())?);
        *shared = Some(Arc::clone(&supervisor));
        Ok(supervisor)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts a part and returns its process id as seen in the supervisor's PID namespace.
    pub(crate) async fn launch(&self, name: &str, launch: &Launch) -> Result<u32> {
        let program = launch.program.to_str().context("the program's path is not UTF-8")?;
        let mut argv = vec![program];
        argv.extend(launch.args.iter().map(String::as_str));
        let request = Request {
            op: "start",
            name,
            argv,
            env: Some(&launch.env),
            dir: Some(&launch.dir),
            log: Some(&launch.log),
            ..Request::default()
        };
        self.call(request, Some(name)).await
    }

    pub(crate) async fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        self.call(Request { op: "signal", name, signal: signal as i32, ..Request::default() }, None).await?;
        Ok(())
    }

    /// Sends a signal without waiting for the answer, for destructors.
    pub(crate) fn signal_and_forget(&self, name: &str, signal: Signal) {
        let request = Request { op: "signal", name, signal: signal as i32, ..Request::default() };
        // A part that has ended needs no signal, and a supervisor that has ended took its parts along.
        drop(self.send(request, None));
    }

    /// From now on the supervisor and its parts outlive us.
    pub(crate) async fn detach(&self) -> Result<()> {
        self.call(Request { op: "detach", ..Request::default() }, None).await?;
        self.detached.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Acquire)
    }

    pub(crate) fn watch(&self, name: &str) -> watch::Receiver<Status> {
        self.table.lock().part(name).subscribe()
    }

    async fn call(&self, request: Request<'_>, starts: Option<&str>) -> Result<u32> {
        let description = format!("{} {}", request.op, request.name);
        let reply = self.send(request, starts)?;
        reply
            .await
            .context("the supervisor has ended")
            .flatten()
            .with_context(|| format!("supervisor: {description}"))
    }

    fn send(&self, mut request: Request<'_>, starts: Option<&str>) -> Result<oneshot::Receiver<Result<u32>>> {
        let (reply, receiver) = oneshot::channel();
        {
            let mut table = self.table.lock();
            if table.gone {
                bail!("the supervisor has ended; see {}", self.directory.join("supervisor.log").display());
            }
            table.last_id += 1;
            request.id = table.last_id;
            let id = request.id;
            table.pending.insert(id, Pending { starts: starts.map(str::to_owned), reply });
        }
        let mut line = serde_json::to_vec(&request)?;
        line.push(b'\n');
        let mut commands = self.commands.lock();
        let commands = commands.as_mut().context("the supervisor was closed")?;
        commands.write_all(&line).context("cannot reach the supervisor")?;
        Ok(receiver)
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.commands.lock().take();
        // Waited for, so that nothing is running, mounted or on disk any more when this returns. A detached one stays.
        if !self.is_detached() {
            drop(self.child.wait());
        }
    }
}
