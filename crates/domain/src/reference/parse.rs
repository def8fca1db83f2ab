//! Reading a reference as it was written and normalising it the way container runtimes do.
//!
//! Total and linear: every part is cut out by its delimiter and checked in one pass. The rules are those of
//! distribution/reference, the library of containerd, CRI-O's tools and the kubelet; a test compares both.

use super::error::{Fault, Part, ReferenceProblem};
use super::grammar;

pub(super) const DOCKER_HUB: &str = "docker.io";
const DOCKER_HUB_OLD: &str = "index.docker.io";
/// Images without a namespace of their own live here on Docker Hub.
pub(super) const OFFICIAL: &str = "library/";
/// A bare image identifier has this many hexadecimal digits.
const IDENTIFIER: usize = 64;
/// A reference keeps both its spellings and 32-bit offsets into them.
const LENGTH_LIMIT: usize = 1 << 30;

/// A normalised reference cut into its parts.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    pub(super) host: &'a str,
    /// The path starts with [`OFFICIAL`], which is not in `path`.
    pub(super) official: bool,
    pub(super) path: &'a str,
    pub(super) tag: Option<&'a str>,
    pub(super) digest: Option<&'a str>,
}

pub(super) fn is_identifier(text: &str) -> bool {
    text.len() == IDENTIFIER && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

pub(super) fn parse(written: &str) -> Result<Parts<'_>, Fault> {
    if written.is_empty() {
        return Err(Fault::new(Part::Reference, 0, ReferenceProblem::Empty));
    }
    if written.len() > LENGTH_LIMIT {
        let problem = ReferenceProblem::TooLong { length: written.len(), limit: LENGTH_LIMIT };
        return Err(Fault::new(Part::Reference, 0, problem));
    }
    if is_identifier(written) {
        return Err(Fault::new(Part::Reference, 0, ReferenceProblem::Identifier));
    }
    let (host, rest) = match written.split_once('/') {
        Some((first, rest)) if names_host(first) => (Some(first), rest),
        _ => (None, written),
    };
    let base = written.len() - rest.len();
    if let Some(scheme) = host.filter(|host| host.ends_with(':') && rest.starts_with('/')) {
        return Err(Fault::new(Part::Host, scheme.len() - 1, ReferenceProblem::Scheme));
    }
    let plain = host.map_or(Ok(false), plain_host)?;
    let host = canonical_host(host.unwrap_or(DOCKER_HUB));

    let (name, digest) = match rest.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (rest, None),
    };
    let (path, tag) = match name.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (name, None),
    };
    let official = host == DOCKER_HUB && !path.contains('/');

    grammar::path(path).map_err(|fault| fault.shifted(base))?;
    let added = if official { OFFICIAL.len() } else { 0 };
    let counted = if plain { host.len() + 1 } else { 0 };
    grammar::path_length(counted + added + path.len()).map_err(|fault| fault.shifted(base))?;
    if let Some(tag) = tag {
        grammar::tag(tag).map_err(|fault| fault.shifted(base + path.len() + 1))?;
    }
    if let Some(digest) = digest {
        grammar::digest(digest).map_err(|fault| fault.shifted(base + name.len() + 1))?;
    }
    Ok(Parts { host, official, path, tag, digest })
}

/// Whether the text before the first slash is a registry rather than a namespace on Docker Hub.
pub(super) fn names_host(first: &str) -> bool {
    let marks_host = |byte: u8| matches!(byte, b'.' | b':') || byte.is_ascii_uppercase();
    first == "localhost" || first.bytes().any(marks_host)
}

pub(super) fn canonical_host(host: &str) -> &str {
    if host == DOCKER_HUB_OLD { DOCKER_HUB } else { host }
}

/// Checks a host. `true` means that it is one by position only: runtimes read `my_host.lan/app` as a path without a
/// host, and still connect to its first segment. Its length then counts as the repository's.
pub(super) fn plain_host(host: &str) -> Result<bool, Fault> {
    match grammar::host(host) {
        Ok(()) => Ok(false),
        Err(_) if !host.contains('/') && grammar::path(host).is_ok() => Ok(true),
        Err(fault) => Err(fault),
    }
}
