//! What can be wrong with the logins a person has, in words that name the file and never what it holds.

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// A login that could not be used. The rest of the logins still can.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum LoginError {
    #[error("the login file {}: {problem}", .path.display())]
    File { path: PathBuf, problem: FileProblem },
    #[error("the credential helper {program}, asked for {server} as {} says: {problem}", .path.display())]
    Helper { path: PathBuf, program: String, server: String, problem: HelperProblem },
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum FileProblem {
    #[error("it does not exist; check its name, or leave it out and the usual files are read")]
    Missing,
    #[error("it cannot be read ({0}); check what it is and who may read it")]
    Unreadable(String),
    #[error("it has more than {0} bytes, so it is hardly a login file; check its name")]
    TooLarge(usize),
    #[error(
        "it is not valid JSON: see line {line}, column {column}; repair it, or remove it and log in again"
    )]
    Syntax { line: usize, column: usize },
    #[error(
        "a value has the wrong type before line {line}, column {column}: auths and credHelpers are objects, \
         everything in them that is used is text"
    )]
    Type { line: usize, column: usize },
    #[error("the entry for {location:?}: \"auth\" must be the base64 of user:password; log in again")]
    Auth { location: String },
    #[error(
        "the entry for {location:?} holds a registry token alone, which cannot be used here; log in with a password"
    )]
    RegistryToken { location: String },
    #[error("the entry for {location:?} is for no place that can be read: write host[:port][/path]")]
    Place { location: String },
    #[error(
        "the value of {setting} cannot be the name of a credential helper, which has letters, digits, '-', '_' and '.'; \
         write what follows docker-credential- in the name of its program"
    )]
    HelperName { setting: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum HelperProblem {
    #[error("there is no such program on the PATH; install it, or remove it from the file")]
    NotInstalled,
    #[error("it cannot be run: {0}")]
    NotStarted(String),
    #[error("it did not answer within {} s; run `{program} get` yourself and type the registry's name", .after.as_secs())]
    TimedOut { program: String, after: Duration },
    // Its words are not repeated: a program that fails may print secrets.
    #[error("it failed with {status}; run `{program} get` yourself and type the registry's name")]
    Failed { program: String, status: String },
    #[error("it answered with more than {0} bytes, which no credential has")]
    TooMuch(usize),
    #[error("its answer is not an object with Username and Secret")]
    Answer,
}
