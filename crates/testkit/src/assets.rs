//! The programs that clusters are made of: built by `cluster/build.sh` into a cache, or found where
//! `FAIRLEAD_TEST_ASSETS` says.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;

/// A unit of building, as `cluster/build.sh` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The supervisor, and the programs inside test images.
    Programs,
    /// etcd, the control plane, kubelet and kubectl.
    ControlPlane,
    /// containerd and its shim.
    Containerd,
    /// distribution v3.
    Registry,
    /// Simulated nodes.
    Kwok,
    Helm,
    /// What copies are compared with.
    Crane,
}

impl Group {
    fn name(self) -> &'static str {
        match self {
            Self::Programs => "programs",
            Self::ControlPlane => "controlplane",
            Self::Containerd => "containerd",
            Self::Registry => "registry",
            Self::Kwok => "kwok",
            Self::Helm => "helm",
            Self::Crane => "crane",
        }
    }
}

/// Lets a program written in Go collect garbage more rarely: one that runs for seconds to minutes need not be thrifty,
/// and an API server takes a seventh less processor time.
pub(crate) const COLLECT_RARELY: (&str, &str) = ("GOGC", "400");

/// A directory with programs.
#[derive(Clone, Debug)]
pub struct Assets {
    directory: PathBuf,
}

/// What this process has found to be built. The script hashes its sources at every call, which takes longer than the
/// start of some programs.
static BUILT: Mutex<Vec<(Group, PathBuf)>> = Mutex::new(Vec::new());

impl Assets {
    /// Makes sure that the groups are built. Blocks, on a machine's first run for minutes, and shows progress on
    /// standard error.
    pub fn build(groups: &[Group]) -> Result<Self> {
        // The lock is not held during a build: tests that need less need not wait for it.
        let built = |group| BUILT.lock().iter().find(|(one, _)| *one == group).map(|(_, path)| path.clone());
        let known: Option<Vec<PathBuf>> = groups.iter().map(|group| built(*group)).collect();
        if let Some(directory) = known.and_then(|mut directories| directories.pop()) {
            return Ok(Self { directory });
        }
        let directory = run_script(groups)?;
        BUILT.lock().extend(groups.iter().map(|group| (*group, directory.clone())));
        Ok(Self { directory })
    }

    /// [`Assets::build`] for callers on an asynchronous runtime.
    pub async fn ensure(groups: &'static [Group]) -> Result<Self> {
        tokio::task::spawn_blocking(|| Self::build(groups)).await?
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Path of a program, which must exist: with `FAIRLEAD_TEST_ASSETS` the directory was filled elsewhere.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        ensure!(path.exists(), "{} does not exist: is FAIRLEAD_TEST_ASSETS complete?", path.display());
        Ok(path)
    }
}

fn run_script(groups: &[Group]) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cluster/build.sh");
    let output = Command::new(&script)
        .args(groups.iter().map(|group| group.name()))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", script.display()))?;
    ensure!(
        output.status.success(),
        "the programs of the test cluster could not be built; what failed is said above ({} ended with {})",
        script.display(),
        output.status
    );
    let directory = String::from_utf8(output.stdout).context("cluster/build.sh printed something odd")?;
    Ok(PathBuf::from(directory.trim()))
}
