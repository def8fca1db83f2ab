//! The parts of a reference that are values of their own: registry host, repository and tag.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use super::error::{Part, ReferenceError};
use super::key::{HostKey, PlaceKey};
use super::{Reference, grammar, parse};

/// A registry's host with its optional port. The case is kept: it is what the runtime uses as a name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host(Arc<str>);

impl Host {
    pub(super) fn checked(text: &str) -> Self {
        Self(text.into())
    }

    /// Reads `host[:port]`. Docker Hub's old name becomes `docker.io`.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        parse::plain_host(text).map_err(|fault| ReferenceError::new(text, Part::Host, fault))?;
        Ok(Self::checked(parse::canonical_host(text)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The host without its port; an IPv6 address without its brackets.
    pub fn name(&self) -> &str {
        match self.0.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or(rest),
            None => self.0.split(':').next().unwrap_or(&self.0),
        }
    }

    /// The port as written. Runtimes accept any digits here; whether they are a port shows when it is dialled.
    pub fn port(&self) -> Option<&str> {
        let after_name = self.0.rsplit(']').next().unwrap_or(&self.0);
        after_name.split_once(':').map(|(_, port)| port)
    }

    /// The registry, for comparing.
    pub fn key(&self) -> HostKey {
        HostKey::shared(&self.0)
    }

    pub fn is_docker_hub(&self) -> bool {
        *self.0 == *parse::DOCKER_HUB
    }

    /// Host of the registry's API, the same for every spelling of the name. Docker Hub's differs from the one in
    /// references.
    pub fn endpoint(&self) -> Arc<str> {
        let key = self.key().to_shared();
        if *key == *parse::DOCKER_HUB { "registry-1.docker.io".into() } else { key }
    }

    /// Whether the name can only mean this machine.
    pub fn is_loopback(&self) -> bool {
        let name = self.name();
        match name.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => address.to_canonical().is_loopback(),
            Ok(address) => address.is_loopback(),
            Err(_) => {
                let last = name.rsplit('.').next().unwrap_or(name);
                last.eq_ignore_ascii_case("localhost")
            }
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({:?})", &*self.0)
    }
}

impl FromStr for Host {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        Self::parse(text)
    }
}

/// A repository: host and path. Shares the text of the reference it was taken from.
#[derive(Clone)]
pub struct Repository(Reference);

impl Repository {
    pub(super) fn of(reference: Reference) -> Self {
        Self(reference)
    }

    /// The normalised name, `host/path`.
    pub fn as_str(&self) -> &str {
        self.0.name()
    }

    pub fn host(&self) -> Host {
        self.0.host()
    }

    pub(crate) fn host_text(&self) -> &str {
        self.0.host_text()
    }

    pub fn path(&self) -> &str {
        self.0.path()
    }

    /// Host and path, for comparing.
    pub fn place(&self) -> PlaceKey<'_> {
        self.0.place()
    }
}

impl PartialEq for Repository {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Repository {}

impl Hash for Repository {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PartialOrd for Repository {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Repository {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Repository({:?})", self.as_str())
    }
}

/// A valid tag.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(Arc<str>);

impl Tag {
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        grammar::tag(text).map_err(|fault| ReferenceError::new(text, Part::Tag, fault))?;
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({:?})", &*self.0)
    }
}

impl FromStr for Tag {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        Self::parse(text)
    }
}
