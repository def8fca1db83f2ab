//! Places inside registries: where mirrors keep their copies and where upstreams keep their originals.
//!
//! Destinations are joined like paths, so that the copies which kuik made are found under the same names. Unlike there,
//! only whole segments count as a prefix, and a path cannot climb out of its registry.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::error::{Fault, Part, ReferenceProblem};
use super::key::{PlaceKey, is_same_host};
use super::{Host, Reference, ReferenceError, grammar, parse};

/// A registry with an optional path, normalised: `host[:port][/path]`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    text: Box<str>,
    host_end: usize,
}

/// Why a derived reference could not be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LocationError {
    #[error("{image} does not lie in {place}: only whole path segments count")]
    Outside { image: Reference, place: Location },
    #[error(
        "{place} has no path, and nothing of {image} is left to name a repository there; give the location a path"
    )]
    NoRepository { image: Reference, place: Location },
    #[error("cannot place {image} in {place}: {source}")]
    Invalid { image: Reference, place: Location, source: Box<ReferenceError> },
}

impl Location {
    /// Joins a registry and a path; slashes at either end of the path do not matter. Without a dot, a port or an
    /// upper-case letter the first segment is a namespace on Docker Hub, as in any reference.
    pub fn new(registry: &str, path: &str) -> Result<Self, ReferenceError> {
        let refuse = |fault: Fault| {
            let written = if path.is_empty() { registry.to_owned() } else { format!("{registry}/{path}") };
            ReferenceError::new(&written, Part::Location, fault)
        };
        if registry.trim_matches('/').is_empty() {
            return Err(refuse(Fault::new(Part::Host, 0, ReferenceProblem::Empty)));
        }
        // The rest of a registry that carries a path is path; it may not be climbed out of either.
        let (first, below) = registry.split_once('/').unwrap_or((registry, ""));
        if first.is_empty() {
            return Err(refuse(Fault::new(Part::Host, 0, ReferenceProblem::Empty)));
        }
        // The join would swallow a scheme's slash and take the scheme for a host.
        if let Some(at) = registry.find("://") {
            return Err(refuse(Fault::new(Part::Host, at, ReferenceProblem::Scheme)));
        }
        let below = contained_join(&[below, path])
            .ok_or_else(|| refuse(Fault::new(Part::Location, 0, ReferenceProblem::AboveRegistry)))?;
        let (host, path) = if parse::names_host(first) {
            parse::plain_host(first).map_err(refuse)?;
            (parse::canonical_host(first), below)
        } else {
            (parse::DOCKER_HUB, clean_join(&[first, &below]))
        };
        if !path.is_empty() {
            grammar::path(&path)
                .and_then(|()| grammar::path_length(path.len()))
                .map_err(|fault| ReferenceError::new(&path, Part::Location, fault))?;
        }
        let text = if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") };
        Ok(Self { text: text.into(), host_end: host.len() })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn host(&self) -> Host {
        Host::checked(self.text.get(..self.host_end).unwrap_or_default())
    }

    /// The path below the host; empty for a whole registry.
    pub fn path(&self) -> &str {
        self.text.get(self.host_end + 1..).unwrap_or_default()
    }

    /// Host and path, for comparing.
    pub fn key(&self) -> PlaceKey<'_> {
        PlaceKey::new(&self.text, self.host_end)
    }

    /// How many bytes of the image's text name this place; what follows in its name is empty or starts with a slash.
    pub(super) fn prefix_in(&self, image: &Reference) -> Option<usize> {
        let (host, path) = self.text.split_at_checked(self.host_end)?;
        let (image_host, below) = image.name().split_at_checked(image.host_end())?;
        let rest = below.strip_prefix(path)?;
        let whole_segments = rest.is_empty() || rest.starts_with('/');
        (whole_segments && is_same_host(host, image_host)).then_some(image.host_end() + path.len())
    }

    /// What is left of the image's name after this place: empty, or starting with a slash.
    fn remainder<'a>(&self, image: &'a Reference) -> Option<&'a str> {
        image.name().get(self.prefix_in(image)?..)
    }

    /// Whether the image lies in this place, compared segment by segment, the host in whatever spelling.
    pub fn contains(&self, image: &Reference) -> bool {
        self.remainder(image).is_some()
    }

    /// Where a mirror at this location keeps its copy of an image: the source's path below it, with tag and digest.
    pub fn copy_of(&self, image: &Reference) -> Result<Reference, LocationError> {
        self.hold(image, image.path())
    }

    /// The image under another place that holds the same images: this place is taken off its name and the other put on.
    pub fn moved(&self, image: &Reference, to: &Self) -> Result<Reference, LocationError> {
        match self.remainder(image) {
            Some(rest) => to.hold(image, rest.trim_start_matches('/')),
            None => Err(LocationError::Outside { image: image.clone(), place: self.clone() }),
        }
    }

    fn hold(&self, image: &Reference, path: &str) -> Result<Reference, LocationError> {
        if self.path().is_empty() && path.is_empty() {
            return Err(LocationError::NoRepository { image: image.clone(), place: self.clone() });
        }
        let slash = if path.is_empty() { "" } else { "/" };
        // Parsing finds the host again, because `new` kept as host only what a reference would read as one.
        Reference::parse(&format!("{}{slash}{path}{}", self.text, image.suffix())).map_err(|source| {
            LocationError::Invalid { image: image.clone(), place: self.clone(), source: Box::new(source) }
        })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({:?})", &*self.text)
    }
}

impl FromStr for Location {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        Self::new(text, "")
    }
}

/// Joins path elements the way Go's `path.Join` does: empty ones skipped, slashes collapsed, `.` and `..` resolved.
pub fn clean_join(elements: &[&str]) -> String {
    let joined = elements.iter().filter(|element| !element.is_empty()).copied().collect::<Vec<_>>().join("/");
    if joined.is_empty() {
        return joined;
    }
    let rooted = joined.starts_with('/');
    let mut kept: Vec<&str> = Vec::new();
    for segment in joined.split('/') {
        match segment {
            "" | "." => {}
            ".." if kept.last().is_some_and(|last| *last != "..") => {
                kept.pop();
            }
            ".." if rooted => {}
            _ => kept.push(segment),
        }
    }
    let path = kept.join("/");
    match (rooted, path.is_empty()) {
        (true, _) => format!("/{path}"),
        (false, true) => ".".to_owned(),
        (false, false) => path,
    }
}

/// The joined path without slashes at its ends, or `None` if `..` leads above its start.
fn contained_join(elements: &[&str]) -> Option<String> {
    let mut depth = 0usize;
    for segment in elements.iter().flat_map(|element| element.split('/')) {
        match segment {
            "" | "." => {}
            ".." => depth = depth.checked_sub(1)?,
            _ => depth += 1,
        }
    }
    let joined = clean_join(elements);
    Some(if joined == "." { String::new() } else { joined.trim_matches('/').to_owned() })
}
