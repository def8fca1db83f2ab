//! The reference implementations, as programs that answer questions line by line.
//!
//! Their sources lie in `oracles/`. A program is built once per version of its sources and of Go, into the cache that
//! the test cluster uses too, and found there by every later run.

use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    thread,
};

use fairlead_domain::digest::Digest;
use serde::{Serialize, de::DeserializeOwned};

/// Image references, selectors, regular expressions and paths.
pub(crate) fn names() -> &'static Oracle {
    static BUILT: OnceLock<Oracle> = OnceLock::new();
    BUILT.get_or_init(|| Oracle::build("names"))
}

/// The kubelet's credentials.
pub(crate) fn keyring() -> &'static Oracle {
    static BUILT: OnceLock<Oracle> = OnceLock::new();
    BUILT.get_or_init(|| Oracle::build("keyring"))
}

pub(crate) struct Oracle {
    program: PathBuf,
}

impl Oracle {
    fn build(name: &str) -> Self {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracles").join(name);
        let mut content = go_version();
        for file in ["go.mod", "go.sum", "main.go"] {
            content.extend(
                fs::read(sources.join(file)).unwrap_or_else(|error| panic!("{file} of {name}: {error}")),
            );
        }
        let version = Digest::sha256(&content).hex();
        let directory = cache().join("oracles").join(&version[..16]);
        fs::create_dir_all(&directory).unwrap();
        let program = directory.join(name);
        // Several test runs may want it at once; one of them builds.
        let lock = File::create(directory.join("lock")).unwrap();
        lock.lock().unwrap();
        if !program.exists() {
            let unfinished = directory.join("unfinished");
            let status = Command::new("go")
                .args(["build", "-trimpath", "-buildvcs=false", "-o"])
                .arg(&unfinished)
                .arg(".")
                .current_dir(&sources)
                .status()
                .unwrap();
            assert!(status.success(), "go build failed in {}", sources.display());
            fs::rename(unfinished, &program).unwrap();
        }
        Self { program }
    }

    /// One answer per question, in order.
    pub(crate) fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        function: &[&str],
        questions: &[Q],
    ) -> Vec<A> {
        let mut child = Command::new(&self.program)
            .args(function)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines: Vec<String> =
            questions.iter().map(|question| serde_json::to_string(question).unwrap()).collect();
        let mut input = BufWriter::new(child.stdin.take().unwrap());
        let writer = thread::spawn(move || {
            for line in lines {
                writeln!(input, "{line}").unwrap();
            }
        });
        let answers: Vec<A> = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect();
        writer.join().unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(answers.len(), questions.len());
        answers
    }
}

fn go_version() -> Vec<u8> {
    let output = Command::new("go").args(["env", "GOVERSION", "GOOS", "GOARCH"]).output();
    let output =
        output.expect("Go is needed to compare with the reference implementations: install Go 1.26 or later");
    assert!(output.status.success(), "go env: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Where built programs are kept between runs.
fn cache() -> PathBuf {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("FAIRLEAD_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("fairlead")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/fairlead")))
        .expect("HOME, XDG_CACHE_HOME or FAIRLEAD_CACHE must be set")
}
