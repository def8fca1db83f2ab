//! A person at a command line, for the commands that people run: a home, login files, what they see.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

pub const PASSWORD: &str = "correct horse battery staple";

/// A person with a home of their own and nothing else in the environment.
pub struct Person {
    home: TempDir,
}

pub struct Outcome {
    pub status: Option<i32>,
    pub output: String,
    pub errors: String,
}

impl Person {
    pub fn new() -> Result<Self> {
        Ok(Self { home: tempfile::tempdir()? })
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.home.path().join(file)
    }

    pub fn write(&self, file: &str, content: &str) -> Result<PathBuf> {
        let path = self.path(file);
        std::fs::create_dir_all(path.parent().unwrap())?;
        std::fs::write(&path, content)?;
        Ok(path)
    }

    pub fn run(&self, args: &[&str], input: &str) -> Result<Outcome> {
        let mut child = self.start(args)?;
        child.stdin.take().unwrap().write_all(input.as_bytes())?;
        Outcome::of(child)
    }

    pub fn start(&self, args: &[&str]) -> Result<Child> {
        Ok(self.command(args).spawn()?)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairlead"));
        command
            .args(args)
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", format!("{}:/usr/bin:/bin", self.path("bin").display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Puts a credential helper of this name on the PATH. It is written by another process: a file that this one has
    /// open for writing cannot be run by its children.
    pub fn helper(&self, name: &str, script: &str) -> Result<()> {
        let write = r#"mkdir -p "$1" && printf '#!/bin/sh\n%s\n' "$3" > "$1/$2" && chmod +x "$1/$2""#;
        let written = Command::new("sh")
            .args(["-c", write, "sh"])
            .arg(self.path("bin"))
            .args([&format!("docker-credential-{name}"), script])
            .status()?;
        ensure!(written.success(), "the helper {name} could not be written");
        Ok(())
    }
}

impl Outcome {
    /// Waits for the end. Whatever was run, it must not have shown the password.
    pub fn of(child: Child) -> Result<Self> {
        let output = child.wait_with_output()?;
        let outcome = Self {
            status: output.status.code(),
            output: String::from_utf8(output.stdout)?,
            errors: String::from_utf8(output.stderr)?,
        };
        let encoded = base64(&format!("u:{PASSWORD}"));
        for secret in [PASSWORD, encoded.as_str()] {
            assert!(
                !outcome.output.contains(secret) && !outcome.errors.contains(secret),
                "a password is shown"
            );
        }
        Ok(outcome)
    }

    pub fn is(&self, status: i32) -> &Self {
        assert_eq!(self.status, Some(status), "{}{}", self.output, self.errors);
        self
    }

    /// The words of each line.
    pub fn rows(&self) -> Vec<Vec<&str>> {
        self.output.lines().map(|line| line.split_whitespace().collect()).collect()
    }

    pub fn objects(&self) -> Vec<Value> {
        self.output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

pub fn base64(text: &str) -> String {
    let output =
        Command::new("sh").args(["-c", r#"printf %s "$1" | base64 -w0"#, "sh", text]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

pub fn login(host: &str, pair: &str) -> String {
    json!({"auths": {host: {"auth": base64(pair)}}}).to_string()
}
