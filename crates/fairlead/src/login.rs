//! The logins a person already has: what docker and podman wrote when that person logged in, and what credential
//! helpers keep for them. Commands use them so that people need not log in a second time.
//!
//! Everything here serves people at a command line. The operator's credentials come from Secrets and never from here.

mod environment;
mod error;
mod file;
mod helper;
mod place;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use fairlead_domain::keyring::{Credential, IdentityKey, Keyring};
use fairlead_domain::reference::Repository;

pub(crate) use self::environment::Environment;
use self::error::{FileProblem, LoginError};
use self::file::LoginFile;
use self::helper::Helpers;

/// A helper may have to wait for a person who types a passphrase.
const PATIENCE: Duration = Duration::from_mins(1);

/// Every login that was found, ready to be asked for.
pub(crate) struct Logins {
    identity: IdentityKey,
    files: Vec<LoginFile>,
    helpers: Helpers,
    problems: Vec<LoginError>,
}

/// The credentials for a repository, in the order of trial; none means anonymous access.
#[derive(Debug, Default)]
pub(crate) struct FoundLogins {
    pub(crate) credentials: Vec<Credential>,
    /// What was tried on the way and could not be used.
    pub(crate) problems: Vec<LoginError>,
}

impl Logins {
    /// Reads the files. One of the usual files that is broken does not take the others along: see [`Logins::problems`].
    /// A file that the person chose is another matter; without it nothing would be as meant.
    pub(crate) fn load(environment: &Environment, identity: IdentityKey) -> Result<Self, LoginError> {
        Self::load_with(environment, identity, PATIENCE)
    }

    fn load_with(
        environment: &Environment,
        identity: IdentityKey,
        patience: Duration,
    ) -> Result<Self, LoginError> {
        let helpers = Helpers::new(environment.path.clone(), patience);
        let mut logins = Self { identity, files: Vec::new(), helpers, problems: Vec::new() };
        for (path, shape) in environment.files() {
            let chosen = environment.auth_file.as_ref() == Some(&path);
            match LoginFile::read(&path, shape, &logins.identity) {
                Ok(Some(file)) => logins.take(file),
                Ok(None) if chosen => return Err(LoginError::File { path, problem: FileProblem::Missing }),
                Ok(None) => {}
                Err(problem) if chosen => return Err(problem),
                Err(problem) => logins.problems.push(problem),
            }
        }
        Ok(logins)
    }

    fn take(&mut self, (file, problems): (LoginFile, Vec<LoginError>)) {
        self.files.push(file);
        self.problems.extend(problems);
    }

    /// What could not be read. Worth showing once: a login that is missing here is missed later without a word.
    pub(crate) fn problems(&self) -> &[LoginError] {
        &self.problems
    }

    /// The credentials for a repository, from the first file that has any. In each file a helper for the registry is
    /// asked before the file's own entries are looked at.
    pub(crate) async fn find(&self, repository: &Repository) -> FoundLogins {
        let mut found = FoundLogins::default();
        for file in &self.files {
            match self.ask_helper(file, repository).await {
                Ok(credentials) => found.credentials = credentials,
                Err(problem) => found.problems.push(problem),
            }
            if found.credentials.is_empty() {
                found.credentials = file.keyring.lookup(repository);
            }
            if !found.credentials.is_empty() {
                break;
            }
        }
        found
    }

    async fn ask_helper(
        &self,
        file: &LoginFile,
        repository: &Repository,
    ) -> Result<Vec<Credential>, LoginError> {
        let host = repository.host();
        let Some(helper) = file.helper_for(&host) else {
            return Ok(Vec::new());
        };
        for server in place::servers(&host) {
            let given = self.helpers.get(helper, server).await.map_err(|problem| LoginError::Helper {
                path: file.path.clone(),
                program: helper.program(),
                server: server.to_owned(),
                problem,
            })?;
            if let Some(given) = given {
                let mut keyring = Keyring::new(self.identity.clone());
                keyring.add_login(host.as_str(), given.username.as_bytes(), given.secret.as_bytes());
                return Ok(keyring.lookup(repository));
            }
        }
        Ok(Vec::new())
    }
}

impl fmt::Debug for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<_> = self.files.iter().map(|file| &file.path).collect();
        f.debug_struct("Logins").field("files", &files).finish_non_exhaustive()
    }
}
