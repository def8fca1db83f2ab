//! The configuration file: one YAML document, read once at start, strict.
//!
//! A misspelt key must not be ignored silently, so every key that is not known is an error that names the key most like
//! it and the line, and all problems of a file are reported at once. Every key is declared once, in `declare`; reading,
//! checking, the reference table of the documentation and the schema in the chart all come from it.

mod checks;
mod declare;
mod environment;
mod keys;
mod monitoring;
mod nearest;
mod problem;
mod reference;
mod registries;
mod schema;
mod tree;
mod types;
mod values;
mod warnings;

use std::{
    fs::File,
    io::{ErrorKind, Read},
    path::Path,
};

use self::{keys::Keys, problem::Problems};
pub use self::{
    monitoring::{CheckMethod, Monitoring, RegistryWatch, SecretName, WatchOverride},
    problem::{ConfigErrors, ConfigProblem},
    reference::reference,
    registries::{Registries, Registry, RegistryOptions},
    schema::schema,
    types::{
        Account, AccountMetrics, ActiveCheck, AgeHistogram, BucketKind, ClassicBuckets, Config, Harbor, Heal,
        Metrics, MigrateIcsp, Mirroring, Nodes, Pinning, Probe, PullSecrets, Routing, StaleMirrorCleanup,
        Warm, WarmMethod,
    },
};

/// Where the configuration is looked for by default.
pub const DEFAULT_PATH: &str = "/etc/fairlead/config.yaml";

/// A `ConfigMap` cannot hold more, so a longer file is some other file.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// A configuration that was found valid, and what its author should know about it all the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    pub config: Config,
    /// Whole sentences, to be logged at start and printed by a check.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads a configuration from its text alone: no file, no environment.
    pub fn parse(text: &str) -> Result<Loaded, ConfigErrors> {
        read_text(text).into_result(None)
    }

    /// Reads the file, then lets the environment variables of the programs that Fairlead replaces win over it.
    ///
    /// Without a path the default one is read, and its absence means the built-in defaults; a path that was given
    /// must exist. `variable` looks up one environment variable.
    pub fn load(
        path: Option<&Path>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Loaded, ConfigErrors> {
        let place = path.unwrap_or(Path::new(DEFAULT_PATH));
        let text = match read_file(place) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound && path.is_none() => String::new(),
            Err(error) => {
                let message = format!(
                    "cannot read the file: {error}; give --config the path of a readable YAML file, or leave it out to use the defaults"
                );
                return Err(ConfigErrors::new(Some(place), vec![ConfigProblem::of_file(message)]));
            }
        };
        let mut read = read_text(&text);
        environment::apply(&mut read.config, &mut read.warnings, variable);
        read.into_result(Some(place))
    }
}

/// What came out of a text, before it is known whether it is of any use.
struct ReadConfig {
    config: Config,
    problems: Problems,
    warnings: Vec<String>,
}

impl ReadConfig {
    fn into_result(self, place: Option<&Path>) -> Result<Loaded, ConfigErrors> {
        if self.problems.is_empty() {
            Ok(Loaded { config: self.config, warnings: self.warnings })
        } else {
            Err(ConfigErrors::new(place, self.problems))
        }
    }
}

fn read_text(text: &str) -> ReadConfig {
    let mut config = Config::default();
    let mut problems = Problems::new();
    let mut warnings = Vec::new();
    if let Some(root) = tree::parse(text, &mut problems) {
        let given = Keys::read(&root, &mut problems, |keys| declare::declare(keys, &mut config));
        warnings = warnings::of(&config, &given);
    }
    ReadConfig { config, problems, warnings }
}

fn read_file(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if u64::try_from(read).is_ok_and(|read| read > MAX_FILE_BYTES) {
        return Err(std::io::Error::other(format!("it is longer than {MAX_FILE_BYTES} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
