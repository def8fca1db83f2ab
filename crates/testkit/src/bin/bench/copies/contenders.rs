//! The programs that are measured, and how each is called to make the same copy.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use fairlead_testkit::assets::{Assets, Group};

use super::source::{Large, MANY, ONE, Small};

/// Debian's package.
const SKOPEO: &str = "/usr/bin/skopeo";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Fairlead,
    Skopeo,
    Crane,
    Floor,
}

impl Contender {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fairlead => "fairlead",
            Self::Skopeo => "skopeo",
            Self::Crane => "crane",
            Self::Floor => "floor",
        }
    }
}

/// What is to be copied.
#[derive(Clone, Copy)]
pub(crate) enum Task<'a> {
    Large(&'a Large),
    /// All small images, each into a repository of its own.
    ToMany(&'a Small),
    /// All small images into one repository.
    ToOne(&'a Small),
}

/// A registry's address, as it stands in references.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'a> {
    pub(crate) source: &'a str,
    pub(crate) destination: &'a str,
    /// For lists that a contender wants to have in a file.
    pub(crate) directory: &'a Path,
}

pub(crate) struct Programs {
    fairlead: PathBuf,
    crane: PathBuf,
    bench: PathBuf,
}

impl Programs {
    pub(crate) async fn find() -> Result<Self> {
        let bench = std::env::current_exe().context("cannot tell where this program is")?;
        let fairlead = bench.with_file_name("fairlead");
        ensure!(fairlead.exists(), "{} is not there: use `make bench`", fairlead.display());
        ensure!(Path::new(SKOPEO).exists(), "{SKOPEO} is not there: on Debian, apt-get install skopeo");
        let crane = Assets::ensure(&[Group::Crane]).await?.program("crane")?;
        Ok(Self { fairlead, crane, bench })
    }

    /// The program and its arguments.
    pub(crate) fn command(
        &self,
        contender: Contender,
        task: Task<'_>,
        ends: Ends<'_>,
    ) -> Result<(&Path, Vec<String>)> {
        let Ends { source, destination, directory } = ends;
        Ok(match (contender, task) {
            (Contender::Fairlead, Task::Large(large)) => {
                let [from, to] = [source, destination].map(|host| format!("{host}/{}:1", large.repository));
                (&self.fairlead, vec!["copy".into(), from, to])
            }
            (Contender::Fairlead, Task::ToMany(small)) => {
                let line = |name: &str| format!("{source}/{MANY}/{name}:1 {destination}/{name}:1");
                (&self.fairlead, listed(directory, small, line)?)
            }
            (Contender::Fairlead, Task::ToOne(small)) => {
                let line = |name: &str| format!("{source}/{ONE}:{name} {destination}/{ONE}:{name}");
                (&self.fairlead, listed(directory, small, line)?)
            }
            (Contender::Skopeo, Task::Large(large)) => {
                let [from, to] =
                    [source, destination].map(|host| format!("docker://{host}/{}:1", large.repository));
                let flags = [
                    "copy",
                    "--insecure-policy",
                    "--all",
                    "--src-tls-verify=false",
                    "--dest-tls-verify=false",
                ];
                (Path::new(SKOPEO), flags.map(str::to_owned).into_iter().chain([from, to]).collect())
            }
            (Contender::Skopeo, Task::ToMany(small)) => {
                let file = directory.join("skopeo.yaml");
                let mut text = format!("{source}:\n  tls-verify: false\n  images:\n");
                for (name, _) in &small.images {
                    writeln!(text, "    {MANY}/{name}: ['1']")?;
                }
                std::fs::write(&file, text)?;
                let flags = [
                    "sync",
                    "--insecure-policy",
                    "--all",
                    "--dest-tls-verify=false",
                    "--src=yaml",
                    "--dest=docker",
                ];
                let ends = [file.display().to_string(), destination.to_owned()];
                (Path::new(SKOPEO), flags.map(str::to_owned).into_iter().chain(ends).collect())
            }
            (Contender::Crane, Task::Large(large)) => {
                let [from, to] = [source, destination].map(|host| format!("{host}/{}:1", large.repository));
                (&self.crane, vec!["copy".into(), from, to])
            }
            (Contender::Crane, Task::ToOne(_)) => {
                let [from, to] = [source, destination].map(|host| format!("{host}/{ONE}"));
                (&self.crane, vec!["copy".into(), "--all-tags".into(), from, to])
            }
            (Contender::Floor, task) => {
                let blobs = match task {
                    Task::Large(large) => &large.directory,
                    Task::ToMany(small) | Task::ToOne(small) => &small.directory,
                };
                let port = destination.rsplit(':').next().unwrap_or_default();
                (&self.bench, vec!["floor".into(), port.into(), ONE.into(), blobs.display().to_string()])
            }
            (contender, _) => bail!("{} has no way to do this in one go", contender.name()),
        })
    }
}

/// The arguments for copying what a list says.
fn listed(directory: &Path, small: &Small, line: impl Fn(&str) -> String) -> Result<Vec<String>> {
    let file = directory.join("fairlead.list");
    let lines: Vec<String> = small.images.iter().map(|(name, _)| line(name)).collect();
    std::fs::write(&file, lines.join("\n"))?;
    Ok(vec!["copy".into(), "--file".into(), file.display().to_string()])
}
