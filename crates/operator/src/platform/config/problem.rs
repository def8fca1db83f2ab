//! What is wrong with a configuration, said so that it can be mended without reading the program.

use std::{
    fmt,
    path::{Path, PathBuf},
};

pub(super) type Problems = Vec<ConfigProblem>;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// Line of the file, counted from 1; none for the file itself.
    pub line: Option<usize>,
    /// Path of the key, such as `mirroring.platforms[0].architecture`; empty for the file as a whole.
    pub path: String,
    /// What is wrong and what to do about it.
    pub message: String,
}

impl ConfigProblem {
    pub(super) fn at(line: usize, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { line: Some(line), path: path.into(), message: message.into() }
    }

    pub(super) fn of_file(message: impl Into<String>) -> Self {
        Self { line: None, path: String::new(), message: message.into() }
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Everything that is wrong with one configuration, in the order of its lines. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    file: Option<PathBuf>,
    problems: Vec<ConfigProblem>,
}

impl ConfigErrors {
    pub(super) fn new(file: Option<&Path>, mut problems: Vec<ConfigProblem>) -> Self {
        problems.sort_by_key(|problem| problem.line);
        Self { file: file.map(Path::to_owned), problems }
    }

    pub fn problems(&self) -> &[ConfigProblem] {
        &self.problems
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "the configuration file {} is not valid:", file.display())?,
            None => f.write_str("the configuration is not valid:")?,
        }
        for problem in &self.problems {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
