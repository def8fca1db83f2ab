//! Runtimes, their versions, and what those versions know.
//!
//! An old `registries.conf` reader ignores a key that it does not know and uses the mirror for everything; an old
//! containerd that cannot read a file behaves as if there were none. So versions decide what is written.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeName {
    Crio,
    /// Also what skopeo and buildah read.
    Podman,
    Containerd,
}

/// A runtime; without a version, one of today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runtime {
    pub name: RuntimeName,
    pub version: Option<Version>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a version: write it as 1.30 or 1.30.2")]
pub struct VersionError(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{name} {version} is too old: it does not read hosts.toml, which needs 1.5 or later")]
pub struct RuntimeError {
    name: RuntimeName,
    version: Version,
}

impl Version {
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }
}

impl FromStr for Version {
    type Err = VersionError;

    /// As runtimes print it: `v1.30.2`, `1.7.13-k3s1`, `2.1.0+unknown`.
    fn from_str(text: &str) -> Result<Self, VersionError> {
        let failed = || VersionError(text.to_owned());
        let plain = text.strip_prefix('v').unwrap_or(text);
        let plain = plain.split(['-', '+', '~']).next().unwrap_or_default();
        let numbers =
            plain.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>().map_err(|_| failed())?;
        match numbers.as_slice() {
            [major, minor] => Ok(Self::new(*major, *minor, 0)),
            [major, minor, patch, ..] => Ok(Self::new(*major, *minor, *patch)),
            _ => Err(failed()),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl fmt::Display for RuntimeName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Crio => "CRI-O",
            Self::Podman => "podman",
            Self::Containerd => "containerd",
        })
    }
}

impl Runtime {
    pub(crate) fn check(&self) -> Result<(), RuntimeError> {
        match (self.name, self.version) {
            (RuntimeName::Containerd, Some(version)) if version < Version::new(1, 5, 0) => {
                Err(RuntimeError { name: self.name, version })
            }
            _ => Ok(()),
        }
    }

    /// Whether a mirror can be restricted to digests or tags by `pull-from-mirror`.
    pub(crate) fn restricts_mirrors(&self) -> bool {
        let since = match self.name {
            RuntimeName::Crio => Version::new(1, 25, 0),
            RuntimeName::Podman | RuntimeName::Containerd => Version::new(4, 1, 0),
        };
        self.version.is_none_or(|version| version >= since)
    }

    /// Whether containerd tries plain HTTP after HTTPS where certificates are not checked.
    pub(crate) fn falls_back_to_http(&self) -> bool {
        self.version.is_none_or(|version| match (version.major, version.minor) {
            (1, 6) => version >= Version::new(1, 6, 38),
            (1, 7) => version >= Version::new(1, 7, 13),
            (major, _) => major >= 2,
        })
    }

    /// Whether CRI-O can be configured to read drop-ins when they change.
    pub(crate) fn can_watch_drop_ins(&self) -> bool {
        self.version.is_none_or(|version| version >= Version::new(1, 30, 0))
    }

    /// Whether containerd looks for `hosts.toml` although its configuration names no directory.
    pub(crate) fn reads_hosts_by_default(&self) -> bool {
        self.version.is_none_or(|version| version >= Version::new(2, 2, 0))
    }

    /// Whether containerd pulls by its transfer service, which knows one directory of `hosts.toml` only.
    pub(crate) fn pulls_by_transfer(&self) -> bool {
        self.version.is_none_or(|version| version >= Version::new(2, 1, 0))
    }

    /// Whether the table of a plugin in an imported file replaces the one of the main file, instead of adding to it.
    pub(crate) fn replaces_imported_tables(&self) -> bool {
        self.version.is_some_and(|version| version < Version::new(2, 0, 0))
    }
}
