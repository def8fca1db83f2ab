//! Sources and mirrors as parsed values: how they are written, which lies inside which, and how they are joined.
//!
//! Texts are compared byte for byte, as runtimes do. The grammar is that of the custom resource definitions; objects
//! from files and of the oldest kind reach the planner unchecked.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::iter;

use fairlead_domain::reference::Reference;
use thiserror::Error;

/// A text that is no source or no mirror.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not a {what}: write {forms}, without scheme, tag and digest, the path in lower case")]
pub struct ScopeError {
    text: String,
    what: &'static str,
    forms: &'static str,
}

/// A place that images can be had from: `host[:port][/path]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location(String);

/// What a policy is about: a place, or `*.domain` for every host below a domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(String);

impl Location {
    pub fn parse(text: &str) -> Result<Self, ScopeError> {
        if !is_location(text) {
            let forms = "host[:port] or host[:port]/path";
            return Err(ScopeError { text: text.to_owned(), what: "mirror", forms });
        }
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The registry, with its port.
    pub fn host(&self) -> &str {
        host(&self.0)
    }

    pub fn path(&self) -> Option<&str> {
        self.0.split_once('/').map(|(_, path)| path)
    }

    /// Whether this is the full name of a repository. A registry alone is no image, a host without dot and port is none
    /// of a registry, and Docker Hub's short names are not full.
    pub(super) fn is_repository(&self) -> bool {
        Reference::parse(&self.0).is_ok_and(|image| image.name() == self.0)
    }

    /// The same place, further down. The suffix is empty or begins with a slash.
    #[must_use]
    pub(super) fn join(&self, suffix: &str) -> Self {
        Self([self.as_str(), suffix].concat())
    }
}

impl Scope {
    pub fn parse(text: &str) -> Result<Self, ScopeError> {
        let domain = text.strip_prefix("*.").is_some_and(is_hostname);
        if !domain && !is_location(text) {
            let forms = "host[:port], host[:port]/path or *.host";
            return Err(ScopeError { text: text.to_owned(), what: "source", forms });
        }
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The registry, with its port; for a domain all of the text.
    pub fn host(&self) -> &str {
        host(&self.0)
    }

    pub fn path(&self) -> Option<&str> {
        self.0.split_once('/').map(|(_, path)| path)
    }

    /// The domain with its leading dot, if this is every host below one.
    pub fn domain(&self) -> Option<&str> {
        self.0.strip_prefix('*')
    }

    /// What follows the part of a place that this scope matches. The port belongs to the matched part: it says how to
    /// reach the source and means nothing at a mirror.
    pub(super) fn suffix<'a>(&self, place: &'a str) -> &'a str {
        let matched = if self.domain().is_some() { host(place).len() } else { self.0.len() };
        place.get(matched..).unwrap_or_default()
    }

    /// Whether a runtime that looks a mirror up again before it contacts it would find this scope: the place itself,
    /// what lies below it, another port of the same host, and a host of the domain.
    pub(super) fn covers(&self, mirror: &str) -> bool {
        if let Some(domain) = self.domain() {
            return hostname(mirror).ends_with(domain);
        }
        let rest = mirror.strip_prefix(&self.0);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', ':']))
    }

    /// What runtimes take this for, if that is something else: a host without dot and port is a namespace of Docker Hub
    /// in images, and that has one name there.
    pub(super) fn taken_for(&self) -> Option<String> {
        const BELOW: &str = "/x/x";
        let host = self.host();
        if self.domain().is_some() || host.contains(['.', ':']) && host != "index.docker.io" {
            return None;
        }
        let image = Reference::parse(&[self.as_str(), BELOW].concat()).ok()?;
        let name = image.name().strip_suffix(BELOW)?;
        (name != self.as_str()).then(|| name.to_owned())
    }

    /// Whether the shortest name in this scope still is the full name of an image at the mirror. A file that names
    /// another mirror makes runtimes give up the pull of that image before they try any other place.
    pub fn is_replaceable_by(&self, mirror: &Location) -> bool {
        mirror.join(if self.path().is_some() { "" } else { "/x" }).is_repository()
    }

    /// Whether that holds for the images below this scope, whatever it is for an image of the scope's own name.
    pub fn is_replaceable_below_by(&self, mirror: &Location) -> bool {
        mirror.join("/x").is_repository()
    }
}

impl Borrow<str> for Scope {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Every text that covers a place or scope, most specific first, beginning with itself.
pub(super) fn enclosing(place: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let paths = iter::successors(Some(place), |text| text.rsplit_once('/').map(|(parent, _)| parent));
    let name = hostname(place);
    let name = name.strip_prefix("*.").unwrap_or(name);
    let above = iter::successors(Some(name), |text| text.split_once('.').map(|(_, parent)| parent)).skip(1);
    paths.map(Cow::Borrowed).chain(above.map(|domain| Cow::Owned(["*.", domain].concat())))
}

pub(super) fn host(text: &str) -> &str {
    text.split_once('/').map_or(text, |(host, _)| host)
}

/// The host without its port.
fn hostname(text: &str) -> &str {
    let host = host(text);
    host.split_once(':').map_or(host, |(name, _)| name)
}

fn is_location(text: &str) -> bool {
    let (host, path) = text.split_once('/').map_or((text, None), |(host, path)| (host, Some(path)));
    let (name, port) = host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
    is_hostname(name)
        && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
        && path.is_none_or(|path| path.split('/').all(is_path_component))
}

fn is_hostname(text: &str) -> bool {
    text.split('.').all(|label| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    })
}

/// Runs of letters and digits, separated by one dot, one or two underscores, or any number of dashes.
fn is_path_component(text: &str) -> bool {
    let is_word = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let separators = text.split(is_word).filter(|separator| !separator.is_empty());
    text.starts_with(is_word)
        && text.ends_with(is_word)
        && separators.into_iter().all(|separator| {
            matches!(separator, "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
        })
}
