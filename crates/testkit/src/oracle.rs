//! The reference implementations, as programs that answer questions line by line.
//!
//! Their sources lie in `oracles/`. A program is built once per version of its sources and of Go, into the cache that
//! the test cluster uses too, and found there by every later run.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

/// A program that was built from the sources of that name.
#[derive(Clone, Debug)]
pub struct Oracle {
    program: PathBuf,
}

impl Oracle {
    pub fn build(name: &str) -> Result<Self> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracles").join(name);
        let mut content = Sha256::new();
        content.update(go_version()?);
        for file in ["go.mod", "go.sum", "main.go"] {
            let file = sources.join(file);
            content.update(fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
        }
        let mut version = String::new();
        for byte in content.finalize().iter().take(8) {
            write!(version, "{byte:02x}")?;
        }
        let directory = cache()?.join("oracles").join(version);
        fs::create_dir_all(&directory)?;
        let program = directory.join(name);
        // Several test runs may want it at once; one of them builds.
        let lock = File::create(directory.join("lock"))?;
        lock.lock()?;
        if !program.exists() {
            let unfinished = directory.join("unfinished");
            let status = Command::new("go")
                .args(["build", "-trimpath", "-buildvcs=false", "-tags=containers_image_openpgp", "-o"])
                .arg(&unfinished)
                .arg(".")
                // Two releases of one library each bring the same C function, and none of it is needed.
                .env("CGO_ENABLED", "0")
                // Tests want programs that they run to use few threads; a compiler may use all.
                .env_remove("GOMAXPROCS")
                .current_dir(&sources)
                .status()?;
            ensure!(status.success(), "go build failed in {}", sources.display());
            fs::rename(unfinished, &program)?;
        }
        Ok(Self { program })
    }

    /// One answer per question, in order.
    pub fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        function: &[&str],
        questions: &[Q],
    ) -> Result<Vec<A>> {
        let mut child = Command::new(&self.program)
            .args(function)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        let lines = questions.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        let mut input = BufWriter::new(child.stdin.take().context("standard input was asked for")?);
        let writer = thread::spawn(move || lines.into_iter().try_for_each(|line| writeln!(input, "{line}")));
        let output = child.stdout.take().context("standard output was asked for")?;
        let answers = BufReader::new(output).lines().map(|line| Ok(serde_json::from_str(&line?)?));
        let answers = answers.collect::<Result<Vec<A>>>()?;
        writer.join().ok().context("the questions could not be written")??;
        ensure!(child.wait()?.success(), "{} failed", self.program.display());
        ensure!(answers.len() == questions.len(), "{} of {} answers", answers.len(), questions.len());
        Ok(answers)
    }
}

fn go_version() -> Result<Vec<u8>> {
    let output = Command::new("go")
        .args(["env", "GOVERSION", "GOOS", "GOARCH"])
        .output()
        .context("Go is needed to compare with the reference implementations: install Go 1.26 or later")?;
    ensure!(output.status.success(), "go env: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}

/// Where built programs are kept between runs.
fn cache() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("FAIRLEAD_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("fairlead")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/fairlead")))
        .context("HOME, XDG_CACHE_HOME or FAIRLEAD_CACHE must be set")
}
