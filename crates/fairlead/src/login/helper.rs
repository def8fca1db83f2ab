//! Credential helpers: programs that keep logins outside of files and give them out on request.
//!
//! The protocol is docker's: the program's argument is `get`, its input the registry's name, its output an object with
//! `Username` and `Secret`. A helper may ask a person something, so it has time; but it cannot keep us for ever.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::{json, json_object};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::error::HelperProblem;
use super::file::Secret;

const PREFIX: &str = "docker-credential-";
const LONGEST_NAME: usize = 100;
const LONGEST_ANSWER: usize = 64 * 1024;
/// Helpers may be whole interpreters; a list of images from many registries must not start all of them at once.
const AT_ONCE: usize = 4;
/// What every helper prints, with a status of failure, when it has no login for the registry.
const NOT_FOUND: &[u8] = b"credentials not found";

/// The last part of a helper's program name. It comes from a file and becomes part of a path, so it is checked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HelperName(String);

impl HelperName {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(fine);
        is_name.then(|| Self(name.to_owned()))
    }

    pub(super) fn program(&self) -> String {
        format!("{PREFIX}{}", self.0)
    }
}

/// What a helper gave. A user named `<token>` marks an identity token, which the client understands.
#[derive(Clone)]
pub(super) struct Given {
    pub(super) username: Arc<Zeroizing<String>>,
    pub(super) secret: Arc<Zeroizing<String>>,
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Given(…)")
    }
}

type HelperResult = Result<Option<Given>, HelperProblem>;
/// By helper and registry.
type Asked = HashMap<(HelperName, String), Arc<OnceCell<HelperResult>>>;

/// Asks helpers, each only once for the same registry.
#[derive(Debug)]
pub(super) struct Helpers {
    path: OsString,
    patience: Duration,
    asked: Mutex<Asked>,
    turns: Semaphore,
}

impl Helpers {
    pub(super) fn new(path: OsString, patience: Duration) -> Self {
        Self { path, patience, asked: Mutex::default(), turns: Semaphore::new(AT_ONCE) }
    }

    /// The login for a registry; `None` if the helper has none.
    pub(super) async fn get(&self, helper: &HelperName, server: &str) -> HelperResult {
        let cell = {
            let mut asked = self.asked.lock();
            Arc::clone(asked.entry((helper.clone(), server.to_owned())).or_default())
        };
        cell.get_or_init(|| self.ask(helper.program(), server)).await.clone()
    }

    async fn ask(&self, program: String, server: &str) -> HelperResult {
        let file = find(&self.path, &program).ok_or(HelperProblem::NotInstalled)?;
        // The semaphore is never closed; without a turn the helper is simply asked at once.
        let _turn = self.turns.acquire().await;
        let late = HelperProblem::TimedOut { program: program.clone(), after: self.patience };
        timeout(self.patience, self.converse(&file, program, server)).await.unwrap_or(Err(late))
    }

    async fn converse(&self, file: &Path, program: String, server: &str) -> HelperResult {
        let trouble = |error: std::io::Error| HelperProblem::NotStarted(error.to_string());
        let mut child = Command::new(file)
            .arg("get")
            .env("PATH", &self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(trouble)?;
        if let Some(mut input) = child.stdin.take() {
            // A helper that answers without listening is its own affair.
            drop(input.write_all(server.as_bytes()).await);
        }
        let mut answer = Zeroizing::new(Vec::with_capacity(LONGEST_ANSWER + 1));
        if let Some(output) = child.stdout.take() {
            output.take(LONGEST_ANSWER as u64 + 1).read_to_end(&mut answer).await.map_err(trouble)?;
        }
        if answer.len() > LONGEST_ANSWER {
            return Err(HelperProblem::TooMuch(LONGEST_ANSWER));
        }
        let status = child.wait().await.map_err(trouble)?;
        if status.success() {
            return read(&answer);
        }
        if answer.trim_ascii_start().starts_with(NOT_FOUND) {
            return Ok(None);
        }
        Err(HelperProblem::Failed { program, status: status.to_string() })
    }
}

/// Directories that depend on where one stands are left out, as shells' users have learnt to.
fn find(path: &OsStr, program: &str) -> Option<PathBuf> {
    std::env::split_paths(path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(program))
        .find(|file| {
            let executable =
                |about: std::fs::Metadata| about.is_file() && about.permissions().mode() & 0o111 != 0;
            std::fs::metadata(file).is_ok_and(executable)
        })
}

#[derive(Default)]
struct HelperAnswer {
    username: Option<Secret>,
    secret: Option<Secret>,
}

json_object!(HelperAnswer { "Username" => username, "Secret" => secret });

fn read(answer: &[u8]) -> HelperResult {
    // The decoder's own words would quote the answer.
    let HelperAnswer { username, secret } = json::from_slice(answer).map_err(|_| HelperProblem::Answer)?;
    let secret = secret.ok_or(HelperProblem::Answer)?;
    let username = username.map(|text| text.0).unwrap_or_default();
    if username.is_empty() && secret.0.is_empty() {
        return Ok(None);
    }
    Ok(Some(Given { username: Arc::new(username), secret: Arc::new(secret.0) }))
}
